"""Pools of processes for tests, forked from a server that has imported our code, where others start new interpreters.

A new interpreter takes a third of a second of processor time to import what it needs to look at a source, and the
conformance suite starts four for each source. What they are given and asked is the same, in the same pickled form.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from multiprocessing import forkserver, get_context
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from loader_server.conformance import life_checks
from loader_server.index import pool

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["forked_pools"]

_IMPORTED = (
    "loader_server.index.probe",
    "loader_server.conformance.case",
    "tests.conformance.fixtures",
    "tests.conformance.test_sources",  # whose sources with faults they construct
)


@contextmanager
def forked_pools() -> Iterator[None]:
    """Indexing and the checks fork their processes in this block."""
    context = get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    forkserver.ensure_running()
    server: int = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        for module in (life_checks, pool):
            patch.setattr(module, "get_context", lambda _: context)
        # Processes end with their parent, which is the server; and that ends with us.
        patch.setattr(pool, "os", SimpleNamespace(**{**vars(os), "getpid": lambda: server}))
        yield

"""Layouts of batches, kept by shape and by the room of strings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.building.layouts import Layouts
from shared.wire.batch_layout import BucketShape
from tests.support.in_memory import MemoryStream

if TYPE_CHECKING:
    import pytest

NONE = np.zeros(0, np.int64)


def _planned(length: int) -> Any:
    return SimpleNamespace(shape=BucketShape(rows=1, lengths={"tokens": length}), rows=None)


def test_layouts_are_kept_but_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loader_server.building.layouts._LAYOUTS_KEPT", 2)
    layouts = Layouts(MemoryStream())
    planned = [_planned(length) for length in (1, 2, 3)]
    kept = layouts.of(planned[0], NONE).layout
    assert layouts.of(planned[0], NONE).layout is kept
    for batch in planned:
        assert layouts.of(batch, NONE).layout is layouts.of(batch, NONE).layout
        assert len(layouts._known) <= 2

"""Work shared by processes: in order, made once in each process, its errors passed on."""

from __future__ import annotations

import os
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from loader_server.index.pool import run_in_order, usable_processes
from shared.errors import DataError
from tests.support.forked_pools import forked_pools

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def forked():
    with forked_pools():
        yield


def _make_doubling(folder: str) -> Callable[[int], int]:
    with open(f"{folder}/{os.getpid()}", "x"):  # noqa: PTH123 - fails if it is made twice in one process
        return lambda piece: 2 * piece


def _fail(said: str) -> Callable[[Any], Any]:
    raise DataError(expected="data", got=said, where="here", remedy="Mend them.")


def _make_dying() -> Callable[[int], None]:
    return os._exit


def test_results_come_in_the_order_of_the_pieces_and_each_process_makes_its_work_once(tmp_path):
    found = list(run_in_order(partial(_make_doubling, str(tmp_path)), iter(range(40)), 2))
    assert found == list(range(0, 80, 2))
    assert 1 <= len(list(tmp_path.iterdir())) <= 2


def test_an_error_in_making_the_work_reaches_the_caller_as_it_is():
    with pytest.raises(DataError, match="got none"):
        list(run_in_order(partial(_fail, "none"), iter(range(3)), 2))


def test_a_process_that_dies_is_an_error():
    with pytest.raises(BrokenProcessPool):
        list(run_in_order(_make_dying, iter([7]), 1))


def test_one_process_works_alone_where_there_is_no_room_for_semaphores(monkeypatch):
    assert usable_processes(3) == 3

    def refuse(_: str) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("loader_server.index.pool.get_context", refuse)
    assert usable_processes(3) == 1
    assert usable_processes(1) == 1

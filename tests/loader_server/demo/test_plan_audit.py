"""The demo's books find what is lost, repeated or out of order."""

from __future__ import annotations

import pytest

from loader_server.demo.plan_audit import Audit, Step

PLANNED = [[3, 1], [2, 5], [4]]


def _settled(batches: list[tuple[int, ...]], planned: list[list[int]] = PLANNED):
    audit = Audit()
    for tags in batches:
        audit.add(Step(tags=tags, shape=(2, 10), filled=8 * len(tags)))
    return audit.settle(planned)


def test_what_was_planned_and_trained_is_in_order() -> None:
    settled = _settled([(1, 3), (2, 5), (4,)])
    assert (settled.batches, settled.lost, settled.repeated, settled.in_plan_order) == (3, 0, 0, True)


@pytest.mark.parametrize(
    ("batches", "lost", "repeated"),
    [
        ([(1, 3), (4,)], 2, 0),
        ([(1, 3), (2, 5), (2, 5), (4,)], 0, 2),
        ([(1, 3), (2, 5), (2, 5)], 1, 2),
        ([(1, 3), (4,), (2, 5)], 0, 0),
        ([(1, 3), (2, 9), (4,)], 1, 1),
    ],
)
def test_each_way_to_go_wrong_is_seen(batches: list[tuple[int, ...]], lost: int, repeated: int) -> None:
    settled = _settled(batches)
    assert (settled.lost, settled.repeated, settled.in_plan_order) == (lost, repeated, False)


def test_padding_is_what_no_sample_fills() -> None:
    assert _settled([(1, 3), (2, 5), (4,)]).padding == pytest.approx(1 - 40 / 60)


def test_epochs_add_up() -> None:
    audit = Audit()
    for batches in ([(1, 3)], [(1,), (3,), (3,)]):
        for tags in batches:
            audit.add(Step(tags=tags, shape=(2, 10), filled=10))
        audit.settle([[1, 3]])
    assert (audit.lost, audit.repeated, audit.steps) == (0, 1, 0)
    assert audit.padding == pytest.approx(1 - 40 / 80)
    assert audit.shapes == {(2, 10)}

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.core.upcoming import Course, Position, Ranks, UpcomingBatch


def course(start: Position, *, rank=0, replicas=1, world=1, next_group=4, repeats=False, **batches: int) -> Course:
    known = {
        (int(epoch[1:]), start.group if int(epoch[1:]) == start.epoch else next_group): count
        for epoch, count in batches.items()
    }
    ranks = Ranks(rank=rank, replicas=replicas, world=world)
    return Course(start, ranks, known, next_group=next_group, repeats=repeats)


def learn(some: Course, epoch: int, group: int, batches: int) -> None:
    some._known[epoch, group] = batches


def ahead(some: Course, most: int = 100) -> list[UpcomingBatch]:
    found = []
    while len(found) < most and (target := some.advance()) is not None:
        found.append(target)
    return found


def test_it_goes_through_the_epoch_and_on_to_the_next():
    targets = ahead(course(Position(0, 0, 4), e0=3, e1=2))
    assert [(one.position.epoch, one.number, one.lap) for one in targets] == [
        (0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 0, 1), (1, 1, 1),
    ]  # fmt: skip
    assert [one.last for one in targets] == [False, False, True, False, True]


def test_it_stops_where_it_does_not_know_and_goes_on_when_it_does():
    some = course(Position(0, 2, 4), e0=3)
    assert len(ahead(some)) == 1
    assert some.missing() == (1, 4)
    assert some.next_lap() == Position(1, 0, 4)
    learn(some, 1, 4, 5)
    assert some.missing() is None
    assert len(ahead(some)) == 5


def test_nothing_is_missing_in_the_midst_of_a_lap():
    some = course(Position(0, 0, 4), e0=3)
    some.advance()
    assert some.missing() is None
    assert some.next_lap() is None


@pytest.mark.fault(20)
def test_a_new_group_takes_effect_with_the_next_epoch():
    targets = ahead(course(Position(0, 2, 4), next_group=8, e0=4, e1=1))
    assert [one.position for one in targets] == [Position(0, 2, 4), Position(0, 3, 4), Position(1, 0, 8)]


def test_an_evaluation_stream_gives_the_same_lap_again():
    targets = ahead(course(Position(0, 1, 4), repeats=True, e0=3), most=6)
    assert [(one.lap, one.number) for one in targets] == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)]


@pytest.mark.parametrize(("number", "batches"), [(0, 0), (3, 3)])
def test_there_is_nothing_to_repeat_at_the_end_of_an_epoch(number, batches):
    some = course(Position(0, number, 4), repeats=True, e0=batches)
    assert some.advance() is None


def test_a_cursor_at_the_end_goes_on_with_the_next_epoch():
    targets = ahead(course(Position(0, 3, 4), e0=3, e1=1))
    assert [(one.position, one.last) for one in targets] == [(Position(1, 0, 4), True)]


def test_an_epoch_without_batches_is_passed():
    assert [one.position.epoch for one in ahead(course(Position(0, 0, 4), e0=0, e1=0, e2=1))] == [2]


def test_a_round_that_goes_past_its_group_is_filled_with_empty_batches():
    some = course(Position(0, 0, 3), rank=1, world=2, e0=3)
    assert [(one.number, one.empty) for one in ahead(some)] == [(1, False), (2, True)]


def test_several_ranks_in_one_trainer_get_their_batches_round_by_round():
    targets = ahead(course(Position(0, 0, 4), rank=0, replicas=2, world=2, e0=4))
    assert [(one.position.number, one.replica, one.number) for one in targets] == [
        (0, 0, 0),
        (0, 1, 1),
        (2, 0, 2),
        (2, 1, 3),
    ]
    assert [one.last for one in targets] == [False, False, False, True]


@pytest.mark.heritage("R5")
@pytest.mark.heritage("D15")
@pytest.mark.fault(20)
@given(
    group=st.integers(1, 6),
    world=st.integers(1, 6),
    batches=st.integers(0, 30),
    start=st.integers(0, 30),
    data=st.data(),
)
def test_ranks_together_get_every_batch_once_in_equally_many_steps(group, world, batches, start, data):
    world = min(world, group)
    sizes = data.draw(
        st.lists(st.integers(1, world), min_size=1, max_size=world).filter(lambda some: sum(some) == world)
    )
    per_trainer, rank = [], 0
    for replicas in sizes:
        some = course(Position(0, start, group), rank=rank, replicas=replicas, world=world, e0=batches)
        per_trainer.append(ahead(some))
        rank += replicas
    real = sorted(one.number for targets in per_trainer for one in targets if not one.empty)
    assert real == list(range(start, batches))
    steps = {len(targets) / replicas for targets, replicas in zip(per_trainer, sizes, strict=True)}
    assert len(steps) == 1
    for targets in per_trainer:
        assert [one.last for one in targets] == [False] * (len(targets) - 1) + [True] * bool(targets)
        assert all(one.number // group == one.position.number // group for one in targets), "a round stays in its group"

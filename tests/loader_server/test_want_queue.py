from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.want_queue import WantQueue


def queue(*jobs: tuple[str, int], urgent: tuple[tuple[str, int], ...] = ()) -> WantQueue[str, int]:
    made: WantQueue[str, int] = WantQueue()
    for trainer, job in jobs:
        made.put(trainer, job, urgent=False)
    for trainer, job in urgent:
        made.put(trainer, job, urgent=True)
    return made


def taken(some: WantQueue[str, int]) -> list[int]:
    return [some.take() for _ in range(len(some))]


def test_within_a_trainer_wants_keep_their_order():
    assert taken(queue(("a", 1), ("a", 2), ("a", 3))) == [1, 2, 3]


@pytest.mark.fault(18)
def test_trainers_have_their_turns():
    assert taken(queue(("a", 1), ("a", 2), ("a", 3), ("b", 11), ("b", 12))) == [1, 11, 2, 12, 3]


@pytest.mark.fault(18)
def test_a_trainer_with_many_wants_delays_another_by_one_batch_at_most():
    some = queue(*[("a", number) for number in range(50)])
    assert some.take() == 0
    some.put("b", 99, urgent=False)
    assert 99 in (some.take(), some.take())


def test_asked_again_heads_go_before_all():
    assert taken(queue(("a", 1), ("b", 11), urgent=(("b", 12), ("a", 2)))) == [12, 2, 1, 11]


def test_an_empty_queue_has_nothing():
    some = queue()
    assert some.take() is None
    assert len(some) == 0


def test_a_job_is_removed_once_wherever_it_is():
    some = queue(("a", 1), ("a", 2), urgent=(("a", 3),))
    assert some.remove("a", 2)
    assert some.remove("a", 3)
    assert not some.remove("a", 2)
    assert not some.remove("b", 1)
    assert taken(some) == [1]


def test_dropping_a_trainer_leaves_the_others():
    some = queue(("a", 1), ("b", 11), urgent=(("a", 2), ("b", 12)))
    assert sorted(some.drop("a")) == [1, 2]
    assert some.drop("a") == []
    assert taken(some) == [12, 11]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.sampled_from(["put", "take", "remove", "drop"]))))
def test_nothing_is_lost_or_given_twice(script):
    some, inside = queue(), {}
    for number, (trainer, urgent, act) in enumerate(script):
        if act == "put":
            some.put(trainer, number, urgent=urgent)
            inside[number] = trainer
        elif act == "take":
            job = some.take()
            assert (job is None) == (not inside)
            inside.pop(job, None)
        elif act == "drop":
            gone = some.drop(trainer)
            assert sorted(gone) == sorted(job for job, one in inside.items() if one == trainer)
            inside = {job: one for job, one in inside.items() if one != trainer}
        elif inside:
            job, owner = next(iter(inside.items()))
            assert some.remove(owner, job)
            del inside[job]
        assert len(some) == len(inside)
    assert sorted(taken(some)) == sorted(inside)

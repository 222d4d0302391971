from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.wants.want_queue import WantQueue


def queue(*wants: tuple[str, int], urgent: tuple[tuple[str, int], ...] = ()) -> WantQueue[str, int]:
    made: WantQueue[str, int] = WantQueue()
    for trainer, want in wants:
        made.put(trainer, want, urgent=False)
    for trainer, want in urgent:
        made.put(trainer, want, urgent=True)
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


# --- a trainer that has its way ---


@pytest.mark.fault(42)
@given(st.lists(st.booleans(), min_size=40, max_size=40), st.lists(st.booleans(), min_size=40, max_size=40))
def test_urgent_wants_without_end_delay_another_by_two_batches(greedy, other):
    """Whichever of their wants are urgent."""
    some, since = queue(), 0
    for number, urgent in enumerate(other):
        some.put("b", number, urgent=urgent)
    for number, urgent in enumerate(greedy):
        some.put("a", 100 + 2 * number, urgent=True)
        some.put("a", 101 + 2 * number, urgent=urgent)
        since = since + 1 if some.take() >= 100 else 0
        assert since <= 2


@pytest.mark.fault(42)
@given(st.integers(2, 6), st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=150))
def test_nobody_waits_longer_than_two_turns_of_all_others(trainers, puts):
    some, waited = queue(), dict.fromkeys(range(trainers), 0)
    for trainer in range(trainers):
        for _ in range(len(puts)):
            some.put(trainer, trainer, urgent=False)
    for trainer, urgent in puts:
        some.put(trainer % trainers, trainer % trainers, urgent=urgent)
        served = some.take()
        waited = {one: 0 if one == served else count + 1 for one, count in waited.items()}
        assert max(waited.values()) <= 2 * (trainers - 1)


def test_an_urgent_want_goes_before_the_others_of_its_trainer_also_in_its_turn():
    some = queue(("a", 1), ("b", 11), ("b", 12), urgent=(("a", 2), ("a", 3), ("a", 4)))
    assert taken(some) == [2, 3, 11, 4, 12, 1]


def test_who_went_before_all_may_do_so_again_once_all_had_their_turn():
    some = queue(("a", 1), ("a", 2), ("b", 11), ("b", 12), urgent=(("a", 3),))
    assert some.take() == 3
    some.put("a", 4, urgent=True)  # too early: it waits for its turn
    assert [some.take(), some.take()] == [4, 11]
    some.put("a", 5, urgent=True)
    assert taken(some) == [5, 1, 12, 2]


# --- who has to wait for itself ---


def not_of(*trainers):
    return lambda trainer, _want: trainer not in trainers


@pytest.mark.fault(42)
def test_who_may_not_be_built_for_holds_up_nobody_else():
    some = queue(("a", 1), ("b", 11), ("a", 2), ("b", 12), urgent=(("a", 3),))
    assert [some.take(not_of("a")) for _ in range(3)] == [11, 12, None]
    assert len(some) == 3
    assert taken(some) == [3, 1, 2], "and has lost nothing"


def test_what_may_not_be_built_yet_keeps_its_turn():
    some = queue(("a", 1), ("b", 11), ("c", 21), ("b", 12))
    assert some.take(not_of("a")) == 11
    assert taken(some) == [1, 21, 12]


def test_it_is_asked_about_the_job_that_is_next():
    some = queue(("a", 1), ("a", 2), urgent=(("a", 3),))
    assert some.take(lambda _trainer, want: want != 3) is None
    assert some.take(lambda _trainer, want: want == 3) == 3
    assert some.take(lambda _trainer, want: want == 2) is None


def test_those_who_wait_for_themselves_are_not_before_others():
    some = queue(("a", 1), ("a", 2), ("b", 11), urgent=(("a", 3),))
    assert some.waiting(not_of("a")) == 1
    assert some.waiting(not_of("b")) == 3
    assert some.waiting(not_of()) == 4


def test_a_removed_urgent_want_leaves_no_place_before_all():
    some = queue(("a", 1), ("b", 11), urgent=(("b", 12),))
    assert some.remove("b", 12)
    assert taken(some) == [1, 11]


def test_who_was_dropped_begins_anew():
    some = queue(("b", 11), ("c", 21), urgent=(("a", 1),))
    assert some.take() == 1
    some.put("a", 2, urgent=True)
    assert some.drop("a") == [2]
    some.put("a", 3, urgent=True)
    assert taken(some) == [3, 11, 21]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.sampled_from(["put", "take", "remove", "drop"]))))
def test_nothing_is_lost_or_given_twice(script):
    some, inside = queue(), {}
    for number, (trainer, urgent, act) in enumerate(script):
        if act == "put":
            some.put(trainer, number, urgent=urgent)
            inside[number] = trainer
        elif act == "take":
            want = some.take()
            assert (want is None) == (not inside)
            inside.pop(want, None)
        elif act == "drop":
            gone = some.drop(trainer)
            assert sorted(gone) == sorted(want for want, one in inside.items() if one == trainer)
            inside = {want: one for want, one in inside.items() if one != trainer}
        elif inside:
            want, owner = next(iter(inside.items()))
            assert some.remove(owner, want)
            del inside[want]
        assert len(some) == len(inside)
    assert sorted(taken(some)) == sorted(inside)

"""Who has how many workers: every case of small machines, and histories of what jobs say."""

from __future__ import annotations

from itertools import product

import pytest

from loader_server.machine.worker_shares import PERIOD_S, Shares, divide, moves_between

JOBS = "abc"


def cases(workers, jobs):
    """All that so many jobs may hold and need."""
    for held in product(range(workers + 1), repeat=jobs):
        if sum(held) <= workers:
            for needs in product(range(1, workers + 1), repeat=jobs):
                yield dict(zip(JOBS, held, strict=False)), dict(zip(JOBS, needs, strict=False))


@pytest.mark.parametrize("jobs", [1, 2, 3])
@pytest.mark.parametrize("workers", range(1, 6))
def test_every_division_of_a_small_machine_is_fair(workers, jobs):
    for held, needs in cases(workers, jobs):
        given = divide(workers, held, needs)
        said = f"{workers} workers, held {held}, needs {needs}: {given}"
        assert given.keys() == held.keys()
        assert sum(given.values()) == max(workers, jobs), said
        assert min(given.values()) >= 1, said
        short = [job for job in given if given[job] < needs[job]]
        for job, other in product(short, given):
            # Who is short has no less than anybody who has more than one, but for a worker that cannot be halved.
            assert given[other] <= given[job] + 1 or given[other] == 1, said
            assert given[other] <= max(1, needs[other]), f"{other} has what {job} needs: {said}"


@pytest.mark.parametrize("workers", range(1, 6))
def test_nobody_loses_a_worker_for_nothing(workers):
    for held, needs in cases(workers, 2):
        given = divide(workers, held, needs)
        if sum(held.values()) == workers and min(held.values()) >= 1:
            lost = {job: held[job] - given[job] for job in held if given[job] < held[job]}
            gained = {job for job in held if given[job] > held[job]}
            assert len(lost) <= 1
            for job in gained:
                assert given[job] <= needs[job], f"{job} was given what it does not need: {held}, {needs}, {given}"
            assert divide(workers, given, needs) == given, "and then all is settled"


def test_the_odd_worker_stays_where_it_is():
    needs = {"a": 3, "b": 3}
    assert divide(3, {"a": 1, "b": 2}, needs) == {"a": 1, "b": 2}
    assert divide(3, {"a": 2, "b": 1}, needs) == {"a": 2, "b": 1}


def test_what_a_job_leaves_behind_goes_to_the_others():
    assert divide(4, {"a": 1}, {"a": 1}) == {"a": 4}
    assert divide(6, {"a": 1, "b": 2}, {"a": 1, "b": 2}) == {"a": 3, "b": 3}


def test_a_job_gets_what_others_do_not_want():
    shares = Shares(8)
    shares.hear("idle", 4)
    shares.hear("idle", 2)
    shares.hear("hungry", 40)
    assert shares.look({"idle": 4, "hungry": 4}, 10.0) == {"idle": 2, "hungry": 6}, "the last report counts"


def test_two_that_want_more_than_there_is_have_equal_shares_whatever_they_had():
    shares = Shares(8)
    for job in ("a", "b"):
        shares.hear(job, 9)
    assert shares.look({"a": 7, "b": 1}, 10.0) == {"a": 4, "b": 4}


def test_nothing_moves_for_a_job_that_wants_no_more():
    shares = Shares(8)
    for job in ("a", "b"):
        shares.hear(job, 1)
    assert shares.look({"a": 7, "b": 1}, 10.0) == {"a": 7, "b": 1}


def test_a_silent_job_keeps_what_it_has_and_asks_for_no_more():
    shares = Shares(4)
    shares.hear("loud", 4)
    assert shares.look({"loud": 2, "silent": 2}, 10.0) == {"loud": 2, "silent": 2}


def test_what_was_reported_before_a_look_does_not_count_after_it():
    shares = Shares(4)
    shares.hear("a", 1)
    shares.hear("b", 4)
    assert shares.look({"a": 3, "b": 1}, 10.0) == {"a": 1, "b": 3}
    assert shares.due_s() == 10.0 + PERIOD_S
    shares.hear("a", 4)
    assert shares.look({"a": 1, "b": 3}, 15.0) == {"a": 2, "b": 2}, "b reported nothing, but has no more than its share"
    shares.hear("a", 4)
    shares.hear("b", 1)
    assert shares.look({"a": 2, "b": 2}, 20.0) == {"a": 3, "b": 1}


def test_a_job_that_has_become_silent_needs_no_more_than_it_has():
    shares = Shares(8)
    shares.hear("loud", 8)
    shares.hear("silent", 8)
    assert shares.look({"loud": 5, "silent": 3}, 10.0) == {"loud": 4, "silent": 4}
    shares.hear("loud", 8)
    assert shares.look({"loud": 5, "silent": 3}, 15.0) == {"loud": 5, "silent": 3}


@pytest.mark.parametrize(
    ("before", "after", "moves"),
    [
        ({"a": 2, "b": 1}, {"a": 2, "b": 1}, ""),
        ({"b": 3, "a": 1}, {"b": 2, "a": 2}, "a 1 to 2, b 3 to 2"),
        ({"a": 3}, {"a": 2, "b": 1}, "a 3 to 2, b 0 to 1"),
        ({"a": 1, "b": 2}, {"a": 3}, "a 1 to 3, b 2 to 0"),
    ],
)
def test_a_line_says_who_gives_workers_and_who_gets_them(before, after, moves):
    assert moves_between(before, after) == moves

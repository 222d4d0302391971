"""The table of an evaluation: each batch's states are added once, with its report, and survive with it."""

from __future__ import annotations

import numpy as np

from loader_server.coordinator.journal import Journal
from loader_server.leases.evaluation_table import EvaluationTable
from loader_server.leases.lease_book import BookAdvanced, LeaseBook, StatesSummed
from loader_server.leases.lease_table import LeaseRules, LeaseSettings
from shared.wire.message_parts import PIECE_BYTES, Failure, Lease, MetricStates
from shared.wire.messages import Outcomes

SETTINGS = LeaseSettings(stream="dev", work="evaluate/m", rules=LeaseRules(floor_s=30.0, tries=1), gone_s=10.0)


class Told:
    """A table of three batches, of which one or two are leased at a time, and what was kept."""

    def __init__(self, facts=(), batches=3):
        self.facts = list(facts)
        self.book = LeaseBook(lambda: 77, self.facts.append)
        self.table = EvaluationTable(SETTINGS, lambda _epoch: batches, self.book)
        for fact in facts:
            (self.book if isinstance(fact, BookAdvanced) else self.table).recover(fact)
        self.table.take_up(0.0)
        self.serial = 0

    def say(self, *states, who=1, done=(), failed=(), start=0, content=None, nbytes=16, asks=None, **other):
        self.serial += 1
        told = b"".join(np.array(one, "<f8").tobytes() for one in states) if content is None else content
        said = Outcomes(
            stream="dev", work="evaluate", incarnation=who, serial=other.get("serial", self.serial), book=None,
            generation=1, done=tuple(done), failed=tuple(Failure(one, "") for one in failed),
            returned=(), in_hand=None, wanted=other.get("wanted", 3), before=1,
            snapshot=False, states=MetricStates("m", nbytes, start, told, asks),
        )  # fmt: skip
        return self.table.report(said, 0.0)


def lease(number, nth=1):
    return Lease(0, number, nth)


def sums(answer):
    return list(np.frombuffer(answer.sums.content, "<f8"))


def test_states_are_added_once_a_batch_and_told_once_all_are_settled():
    told = Told(batches=4)
    assert told.say().leases == (lease(0), lease(1))
    answer = told.say([1, 10], [2, 20], done=[lease(0), lease(1)], asks=0)
    assert (answer.sums.settled, answer.sums.batches, answer.sums.content) == (False, 2, b"")
    assert answer.leases == (lease(2),)
    told.say([4, 40], done=[lease(2)], asks=0)
    answer = told.say([8, 80], done=[lease(3)], asks=0)
    assert (answer.sums.settled, answer.sums.batches, answer.sums.given_up, sums(answer)) == (True, 4, 0, [15, 150])
    assert sums(told.say(asks=8)) == [150]
    assert told.say().sums.content == b""


def test_a_batch_that_two_report_counts_once_and_what_a_killed_one_had_told_stays():
    told = Told()
    told.say(who=1)
    assert told.say([1, 10], who=1, done=[lease(0)]).leases == (lease(1),)
    told.table.leave(1)
    assert told.say(who=2).leases == (lease(1, 2),)
    assert told.say([2, 20], who=2, done=[lease(1, 2)]).leases == (lease(2),)
    assert told.say([2, 20], who=1, done=[lease(1, 1)], wanted=0).sums.batches == 2
    answer = told.say([4, 40], who=2, done=[lease(2)], asks=0)
    assert (answer.sums.batches, sums(answer)) == (3, [7, 70])


def test_a_repeated_message_adds_nothing():
    told = Told()
    told.say()
    first = told.say([1, 10], done=[lease(0)], serial=5)
    again = told.say([1, 10], done=[lease(0)], serial=5)
    assert (first.sums.batches, again.sums.batches) == (1, 1)


def test_the_sums_are_kept_with_what_is_done():
    told = Told(batches=4)
    told.say()
    told.say([1, 10], [0.5, 5], done=[lease(0), lease(1)])
    kept = [one for one in told.facts if isinstance(one, StatesSummed)]
    assert [one.batches for one in kept] == [2], "once a report"
    again = Told(told.facts, batches=4)
    assert again.table.incomplete() == []
    again.say([4, 40], done=[lease(2)])
    assert sums(again.say([8, 80], done=[lease(3)], asks=0)) == [13.5, 135]


def test_sums_that_went_missing_are_noticed():
    told = Told()
    told.say()
    told.say([1, 10], done=[lease(0)])
    without = [one for one in told.facts if not isinstance(one, StatesSummed)]
    assert Told(without).table.incomplete() == [0]


def test_states_in_pieces_are_taken_with_the_last_and_lost_with_a_restart():
    told = Told()
    told.say()
    whole = np.arange(PIECE_BYTES // 4, dtype="<f8").tobytes()
    piece, rest = whole[:PIECE_BYTES], whole[PIECE_BYTES:]
    assert not told.say(content=piece, nbytes=len(whole)).sums.lost
    answer = told.say(content=rest, start=len(piece), nbytes=len(whole), done=[lease(0)])
    assert (answer.sums.lost, answer.sums.batches) == (False, 1)

    again = Told(told.facts)
    answer = again.say(content=rest, start=len(piece), nbytes=len(whole), done=[lease(1)])
    assert (answer.sums.lost, answer.sums.batches) == (True, 1)
    assert lease(1) in answer.leases, "it is not done"
    again.say(content=piece, nbytes=len(whole))
    again.say(content=rest, start=len(piece), nbytes=len(whole), done=[lease(1)])
    again.say(content=piece, nbytes=len(whole))
    answer = again.say(content=rest, start=len(piece), nbytes=len(whole), done=[lease(2)], asks=8)
    assert sums(answer)[:2] == [3, 6]


def test_states_of_another_size_and_done_without_states_are_not_taken():
    told = Told()
    told.say()
    assert told.say(done=[lease(0)]).sums.batches == 0
    told.say([1, 10], done=[lease(0)])
    assert told.say([1, 2, 3], done=[lease(1)], nbytes=24).sums.batches == 1
    assert told.say(content=b"1234567", done=[lease(1)], nbytes=7).sums.batches == 1


def test_what_was_given_up_is_said_and_counts_if_it_is_done_late():
    told = Told()
    told.say()
    told.say([1, 10], done=[lease(0)])
    told.say(failed=[lease(1)])
    answer = told.say([4, 40], done=[lease(2)], asks=0)
    assert (answer.sums.settled, answer.sums.given_up, sums(answer)) == (True, 1, [5, 50])
    answer = told.say([2, 20], done=[lease(1)], asks=0)
    assert (answer.sums.given_up, sums(answer)) == (0, [7, 70])


def test_begun_anew_it_forgets_all():
    told = Told()
    told.say()
    told.say([1, 10], done=[lease(0)])
    told.table.begin_anew(9, 9)
    again = Told(told.facts)
    for table in (told.table, again.table):
        assert (table.summed, table.generation, table.incomplete()) == (0, 2, [])


def test_a_forgotten_one_leaves_no_fact_behind(tmp_path):
    told = Told()
    told.say()
    told.say([1, 10], done=[lease(0)])
    told.say(failed=[lease(1)])
    told.table.begin_anew(9, 9)
    told.say()
    journal = Journal(tmp_path / "journal.sqlite")
    journal.write(told.facts)
    assert list(journal.read_facts())
    journal.write(told.table.forgotten())
    assert [type(fact) for fact in journal.read_facts()] == [BookAdvanced]
    journal.close()

"""A coordinator that starts again: who is newer, and what its facts alone rebuild."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_server.coordinator.events import (
    CulpritFound,
    Forgot,
    Keep,
    RankTaken,
    Received,
    Send,
    Ticked,
)
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.message_parts import Cursor
from tests.support.coordinator import (
    attach,
    beat,
    coordinator,
    culprit,
    failing,
    forgive,
    kept,
    progress,
    refused,
    register,
    replies,
)

if TYPE_CHECKING:
    from loader_server.coordinator.state import CoordinatorState


class TestSuccession:
    @staticmethod
    def restarted(*facts) -> CoordinatorState:
        state = coordinator()
        for fact in facts:
            state.recover(fact)
        return state

    @pytest.mark.fault(48)
    def test_the_newer_one_wins_though_the_older_comes_back_first(self):
        state = coordinator()
        facts = [*kept(state, attach()), *kept(state, attach(incarnation=2))]
        assert facts[1:] == [RankTaken("train", 0, (1000,), 1), RankTaken("train", 0, (1000, 2), 2)]
        again = self.restarted(*facts)
        code, _, got, _ = refused(again, attach(serial=2))
        assert (code, got) == ("superseded", "a newer one")
        assert refused(again, progress(0, 0, 5))[0] == "superseded"
        assert isinstance(replies(again, attach(incarnation=2, serial=2))[0], m.Attached)

    @pytest.mark.fault(48)
    @pytest.mark.parametrize("older_first", [True, False])
    def test_one_that_came_while_the_coordinator_was_away_is_newer_too(self, older_first):
        state = self.restarted(*kept(coordinator(), attach()))
        if older_first:
            assert isinstance(replies(state, attach(serial=2))[0], m.Attached)
        assert isinstance(replies(state, attach(incarnation=2))[0], m.Attached)
        assert refused(state, attach(serial=3))[0] == "superseded"

    @pytest.mark.fault(48)
    def test_a_successor_that_is_silent_or_has_left_is_still_newer(self):
        state = coordinator()
        replies(state, attach())
        replies(state, attach(incarnation=2))
        replies(state, m.Detach(stream="train", rank=0, incarnation=2))
        assert refused(state, attach(serial=2))[0] == "superseded"
        assert isinstance(replies(state, attach(incarnation=3))[0], m.Attached)

    @pytest.mark.fault(60)
    @pytest.mark.parametrize("remembers", [True, False])
    def test_an_older_one_never_takes_the_rank_back_however_many_came_since(self, remembers):
        state = coordinator()
        (oldest,) = replies(state, attach(incarnation=1))
        facts = [fact for number in range(2, 40) for fact in kept(state, attach(incarnation=number))]
        again = state if remembers else self.restarted(*facts)
        code, _, got, _ = refused(again, attach(incarnation=1, serial=2, tenure=oldest.tenure))
        assert (code, got) == ("superseded", "a newer one, host:0" if remembers else "a newer one")
        (newest,) = replies(again, attach(incarnation=39, serial=2, tenure=39))
        assert newest.tenure == 39

    @pytest.mark.fault(14)
    @pytest.mark.fault(60)
    def test_a_newer_one_that_the_journal_lacks_takes_its_rank_back_from_the_older(self):
        """The disk was full when it came, and then the coordinator was restarted."""
        state = coordinator()
        facts = kept(state, attach(incarnation=1))
        (newer,) = replies(state, attach(incarnation=2))
        again = self.restarted(*facts)
        (older,) = replies(again, attach(incarnation=1, serial=2, tenure=1))
        assert isinstance(older, m.Attached)
        assert refused(again, progress(0, 0, 5, incarnation=2))[0] == "unknown", "it may show its tenure"
        assert isinstance(replies(again, attach(incarnation=2, serial=2, tenure=newer.tenure))[0], m.Attached)
        assert refused(again, attach(incarnation=1, serial=3, tenure=1))[0] == "superseded"

    @pytest.mark.fault(60)
    def test_one_of_several_ranks_is_enough(self):
        state = coordinator()
        (older,) = replies(state, attach(0, 2, replicas=2, incarnation=1))
        for number in range(2, 40):
            replies(state, attach(1, 2, incarnation=number))
        again = attach(0, 2, replicas=2, incarnation=1, serial=2, tenure=older.tenure)
        assert refused(state, again)[0] == "superseded"

    def test_who_claims_no_rank_has_no_tenure(self):
        (answer,) = replies(coordinator(), attach(stream="dev"))
        assert answer.tenure is None

    def test_the_same_one_attaches_anew_without_a_word_to_the_journal(self):
        state = coordinator()
        replies(state, attach())
        assert kept(state, attach(serial=2)) == []


ranks = st.integers(0, 3)
incarnations = st.integers(0, 5)
cursors = st.none() | st.builds(
    Cursor, st.integers(0, 3), st.integers(0, 110), st.integers(1, 8), st.sampled_from(["plan-1", "plan-0"])
)
names = st.sampled_from(["w0", "w1"])
streams = st.sampled_from(["train", "dev", "none"])
messages = st.one_of(
    st.builds(
        m.Attach, serial=st.integers(0, 2), job=st.sampled_from(["", "digits", "words"]), stream=streams, rank=ranks,
        replicas=st.integers(1, 2), world=st.integers(1, 4), incarnation=incarnations, name=st.just("host"),
        cursor=cursors, tenure=st.none() | st.integers(0, 5), work=st.sampled_from([None, "measure"]),
    ),
    st.builds(
        m.Progress, stream=streams, rank=ranks, incarnation=incarnations, epoch=st.integers(0, 3),
        number=st.integers(0, 99), read_epoch=st.just(0), read_number=st.just(0), waited_permille=st.just(0),
        members=st.integers(0, 4),
    ),
    st.builds(m.Detach, stream=streams, rank=ranks, incarnation=incarnations),
    st.builds(register, names, incarnations, st.sampled_from(["builder-1", "builder-2"])),
    st.builds(beat, names, incarnations),
    st.builds(m.Leave, worker=names, incarnation=incarnations),
    st.builds(failing, names),
    st.builds(culprit, st.sampled_from("abc"), streams, names),
    st.builds(forgive, st.sampled_from(["", "a", "b"]), st.sampled_from(["", "train"])),
    st.just(m.StatusQuery()),
    st.just(m.Ping(number=1)),
)  # fmt: skip


@pytest.mark.fault(11)
@pytest.mark.fault(25)
@settings(max_examples=200, deadline=None)
@given(script=st.lists(st.tuples(messages | st.none(), st.sampled_from([0.0, 0.5, 3.0, 11.0])), max_size=40))
def test_no_sequence_breaks_it_and_its_facts_alone_rebuild_what_it_promised(script):
    state, facts, now_s = coordinator(), {}, 0.0
    for number, (message, pause_s) in enumerate(script):
        now_s += pause_s
        event = Ticked() if message is None else Received(b"%d" % (number % 3), message)
        for one in state.handle(event, now_s):
            if isinstance(one, Send):
                assert decode(encode(one.message)) == one.message
            elif isinstance(one, Keep):
                kind = CulpritFound if isinstance(one.fact, Forgot) else type(one.fact)
                names = (getattr(one.fact, "identity", None), getattr(one.fact, "rank", None))
                facts[kind, one.fact.stream, names] = one.fact
        train = state._streams["train"]
        overlapping = [rank for trainer in train.trainers.values() for rank in trainer.ranks]
        assert len(overlapping) == len(set(overlapping))
        assert all(train.holder(rank) is trainer for trainer in train.trainers.values() for rank in trainer.ranks)
        assert sorted(train._positions.elements()) == sorted(trainer.trained for trainer in train.trainers.values())
        endpoints = [worker.address.endpoint for worker in state._workers.sorted()]
        assert len(endpoints) == len(set(endpoints)) == len(state._workers)
    again = coordinator()
    for fact in facts.values():
        again.recover(fact)
    for incarnation in range(6):
        superseded = [one._streams["train"].succession.is_superseded(incarnation) for one in (state, again)]
        assert superseded[0] == superseded[1]
    before, after = state.report(now_s), again.report(now_s)
    assert after["culprits"] == before["culprits"]
    for field in ("group", "epoch", "number", "batches"):
        assert after["streams"]["train"][field] == before["streams"]["train"][field]


@pytest.mark.fault(11)
def test_after_a_restart_the_answers_are_the_same():
    state, again = coordinator(), coordinator()
    for fact in [*kept(state, attach(0, 4)), *kept(state, progress(0, 1, 8))]:
        again.recover(fact)
    asked = replace(attach(0, 2, at=(1, 8), group=4), incarnation=9)
    assert replies(again, asked) == replies(state, asked, now_s=60.0)

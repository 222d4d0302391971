"""What a parameter server decides: rule by rule, and histories of three servers against a plain set."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.wire.message_parts import DoneSet, EpochDone, Lease, TableForm, VariablePart
from shared.wire.topics import server_messages as m
from trainer_client.training.servers.applied import AppliedBatches
from trainer_client.training.servers.server_instructions import (
    Adopt,
    Answer,
    Apply,
    ApplyHeld,
    AssignRate,
    Cut,
    Drop,
    Hold,
    Tell,
)
from trainer_client.training.servers.server_state import ServerState

NOTHING = DoneSet((EpochDone(0, 0, ()),))
PARTS = (VariablePart(0, 0, (4, 2), "float32"),)
TABLES = (TableForm("words", 2, None, 0, "uniform", -0.05, 0.05),)
STALENESS = 2


class Server:
    """A server whose variables are the batches that were applied to them, in order."""

    def __init__(self, *, is_first=True):
        self.state = ServerState(is_first=is_first)
        self.is_first = is_first
        self.variables, self.copy, self.held = [], None, set()
        #: The learning rate in force, and the one that each batch was applied at.
        self.rate, self.rates = None, []
        self.told: deque[m.Order] = deque()
        self.answers: deque[Answer] = deque()
        self.now_s = 0.0

    def say(self, message):
        """Carry out what comes of a message; its answer, if there is one."""
        orders = self.state.handle(b"me", message, self.now_s)
        self.carry_out(orders)
        return self.answers.pop() if self.answers else None

    def carry_out(self, orders):
        for order in orders:
            match order:
                case Answer():
                    self.answers.append(order)
                case Adopt():
                    self.variables, self.rate, self.rates = [], None, []
                case Hold(key):
                    self.held.add(key)
                case Apply(key) | ApplyHeld(key):
                    assert self.is_first if isinstance(order, Apply) else key in self.held
                    self.variables.append(key)
                    self.rates.append(self.rate)
                case AssignRate(rate):
                    self.rate = rate
                case Drop(key):
                    self.held.discard(key)
                case Cut(number):
                    self.copy = (number, list(self.variables))
                case Tell(message):
                    self.told.append(message)


def serve(generation=7, *, done=NOTHING, version=0, most=0, staleness=STALENESS):
    return m.ServeShare(
        serial=1, generation=generation, version=version, staleness=staleness, most=most, parts=PARTS,
        tables=TABLES, given=(0,), done=done, nbytes=0,
    )  # fmt: skip


def push(number, based_on=0, *, epoch=0, trainer=1, generation=7, nth=1, refused=None):
    return m.Push(
        serial=5, trainer=trainer, generation=generation, lease=Lease(epoch, number, nth), based_on=based_on,
        refused=refused, is_step=True, parts=(), tables=(), nbytes=0,
    )  # fmt: skip


def look(trainer=1):
    return m.Look(serial=3, trainer=trainer)


def pull(trainer=1, generation=7, at_least=0):
    return m.Pull(serial=4, trainer=trainer, generation=generation, at_least=at_least)


def save(cut=1, settled=0, generation=7):
    return m.Save(serial=6, generation=generation, cut=cut, settled=settled)


def serving(**how):
    server = Server()
    server.say(serve(**how))
    server.say(look())
    return server


def code(answer):
    return answer.message.code


# --- one rule at a time ---


def test_uninitialised_it_gives_and_takes_nothing_until_a_share_is_pushed():
    server = Server()
    assert server.say(look()).message == m.Shown(serial=3, generation=0, version=0, over="", parts=(), tables=())
    assert [code(server.say(said)) for said in (pull(), push(0), save(), pull(generation=0))] == ["moved"] * 4
    assert code(server.say(serve(version=9))) == "serving"
    assert server.say(look()).message == m.Shown(serial=3, generation=7, version=9, over="", parts=PARTS, tables=TABLES)
    assert server.say(pull()).values


def test_gradients_of_stale_values_are_refused_within_a_tolerance():
    server = serving()
    codes = [code(server.say(push(number, 0))) for number in range(5)]
    assert codes == ["applied", "applied", "applied", "stale", "stale"]
    assert code(server.say(push(3, 1))) == "applied"
    assert server.state.counts["stale"] == 2


def test_a_batch_is_applied_once_whoever_brings_it_however_often():
    server = serving()
    server.say(look(2))
    assert [code(server.say(push(0, trainer=who, nth=nth))) for who, nth in ((1, 1), (1, 1), (2, 2))] == [
        "applied", "repeated", "repeated",
    ]  # fmt: skip
    assert (len(server.variables), server.state.version) == (1, 1)


def test_what_the_checkpoint_has_is_applied_already():
    server = serving(done=DoneSet((EpochDone(1, 3, (1,)),)), version=12)
    answers = [code(server.say(push(number, 12, epoch=epoch))) for epoch, number in ((0, 5), (1, 0), (1, 1), (1, 3))]
    assert answers == ["repeated", "repeated", "applied", "applied"]


def test_another_generation_and_a_stranger_begin_anew():
    server = serving()
    assert code(server.say(push(0, generation=6))) == "moved"
    assert code(server.say(push(0, trainer=99))) == "moved"
    assert code(server.say(pull(trainer=99))) == "moved"


def test_no_more_steps_are_taken_than_there_are_to_be():
    server = serving(most=2)
    assert [code(server.say(push(number, number))) for number in range(3)] == ["applied", "applied", "over"]
    assert server.say(push(3, 2)).message.why == "2 steps are reached"
    assert server.say(look()).message.over == "2 steps are reached"
    assert serving(most=1, version=1).state.over == "1 step is reached"


def test_it_ends_once_every_trainer_has_heard_that_it_is_over_or_is_gone():
    server = serving()
    for who in (2, 3):
        server.say(look(who))
    assert code(server.say(m.Finish(serial=9, generation=7, why="all epochs"))) == "over"
    assert code(server.say(push(0))) == "over"
    server.say(m.Quit(trainer=1))
    server.now_s = 50.0
    server.say(look(2))
    server.carry_out(server.state.look(59.0))
    server.carry_out(server.state.look(61.0))
    assert not server.state.has_ended
    server.say(m.Quit(trainer=2))
    server.carry_out(server.state.look(62.0))
    assert server.state.has_ended
    orders = [(told.what, told.trainer) for told in server.told if told.what != "agree"]
    assert orders == [("forget", 1), ("forget", 3), ("forget", 2), ("end", 0)]


@pytest.mark.parametrize("share", [None, 7, 6], ids=["none", "the run's", "another"])
def test_the_order_to_end_is_obeyed_whatever_the_server_missed(share):
    other = Server(is_first=False)
    if share is not None:
        other.say(serve(share))
    other.say(m.Order(generation=7, what="end", version=9, trainer=0, lease=None, cut=0, rate=None))
    assert other.state.has_ended


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("share", [None, 7], ids=["none", "the run's"])
def test_each_server_that_hears_the_chief_ends_by_itself_once_its_trainers_are_gone(share, is_first):
    server = Server(is_first=is_first)
    if share is not None:
        server.say(serve(share))
    server.say(look())
    assert code(server.say(m.Finish(serial=9, generation=7, why="all epochs"))) == "over"
    server.carry_out(server.state.look(1.0))
    assert not server.state.has_ended
    server.say(m.Quit(trainer=1))
    server.carry_out(server.state.look(2.0))
    assert server.state.has_ended


def test_a_chief_that_others_have_followed_ends_nothing():
    server = serving(generation=8)
    assert code(server.say(m.Finish(serial=9, generation=7, why="all epochs"))) == "moved"
    server.say(m.Quit(trainer=1))
    server.carry_out(server.state.look(1.0))
    assert not server.state.has_ended


def test_a_share_that_is_given_after_the_end_begins_a_run_of_its_own():
    server = serving()
    server.say(m.Finish(serial=9, generation=7, why="all epochs"))
    server.say(serve(8))
    server.say(m.Quit(trainer=1))
    server.carry_out(server.state.look(1.0))
    assert (server.state.has_ended, server.state.over) == (False, "")


def test_what_a_trainer_left_behind_that_quits_is_dropped_once_what_it_had_applied_is():
    first, other = serving(), Server(is_first=False)
    for said in (serve(), look(), push(0), push(1)):
        other.say(said)
    first.say(push(0))
    for server in (first, other):
        server.say(m.Quit(trainer=1))
    for told in first.told:
        other.say(told)
    assert (other.variables, other.held) == ([(1, Lease(0, 0, 1))], set())


def test_who_was_silent_for_long_is_forgotten_and_begins_anew():
    server, other = serving(), Server(is_first=False)
    for said in (serve(), look(), push(0)):
        other.say(said)
    assert other.held
    server.carry_out(server.state.look(601.0))
    for told in server.told:
        other.say(told)
    assert not other.held
    assert code(server.say(push(0))) == "moved"


def test_a_share_that_is_given_again_because_the_answer_was_lost_changes_nothing():
    server = serving()
    server.say(push(0))
    assert code(server.say(serve())) == "serving"
    assert len(server.variables) == 1


def test_values_wait_for_the_orders_that_their_trainer_knows_of():
    first, other = serving(), Server(is_first=False)
    for said in (serve(), look(), push(0), push(1)):
        other.say(said)
    for number in range(2):
        first.say(push(number, number))
    assert other.say(pull(at_least=2)) is None
    assert other.say(first.told[0]) is None
    answer = other.say(first.told[1])
    assert (answer.values, answer.message.version) == (True, 2)
    assert other.say(pull(at_least=3)) is None
    assert (
        code(other.say(m.Order(generation=7, what="cut", version=9, trainer=0, lease=None, cut=1, rate=None)))
        == "moved"
    )


def test_a_refused_batch_is_dropped_with_the_next_gradients():
    other = Server(is_first=False)
    for said in (serve(), look(), push(0), push(1)):
        other.say(said)
    other.say(push(2, refused=Lease(0, 1, 1)))
    assert {lease.number for _, lease in other.held} == {0, 2}


def test_a_server_that_missed_an_order_serves_no_more():
    first, other = serving(), Server(is_first=False)
    for said in (serve(), look(), push(0), push(1)):
        other.say(said)
    for number in range(2):
        first.say(push(number, number))
    other.say(first.told[1])
    assert other.state.generation == 0
    assert not other.held


def test_a_server_that_missed_the_last_order_hears_of_it_though_nothing_happens():
    first, other = serving(), Server(is_first=False)
    for said in (serve(), look(), push(0)):
        other.say(said)
    first.say(push(0))
    first.told.clear()
    first.carry_out(first.state.look(1.9))
    assert not first.told
    for _ in range(2):
        first.carry_out(first.state.look(2.1))
    (agree,) = first.told
    other.say(agree)
    assert other.state.generation == 0
    assert not other.state.has_ended


def test_a_server_without_the_gradients_that_it_is_to_apply_serves_no_more():
    first, other = serving(), Server(is_first=False)
    for said in (serve(), look()):
        other.say(said)
    first.say(push(0))
    other.say(first.told[0])
    assert (other.state.generation, other.variables) == (0, [])


def test_a_checkpoint_lists_only_epochs_that_the_coordinator_has_not_settled():
    server = serving(staleness=99)
    for epoch in range(30):
        server.say(push(0, epoch=epoch))
    assert server.say(save(settled=29)).message.done == DoneSet((EpochDone(29, 1, ()),))


def test_orders_of_another_generation_are_not_obeyed():
    other = Server(is_first=False)
    other.say(serve(8))
    other.say(m.Order(generation=7, what="apply", version=1, trainer=1, lease=Lease(0, 0, 1), cut=0, rate=None))
    assert (other.state.generation, other.state.version) == (8, 0)


def test_a_cut_is_answered_whichever_comes_first_and_again_if_the_answer_is_lost():
    for order_first in (True, False):
        first, other = serving(), Server(is_first=False)
        for said in (serve(), look(), push(0)):
            other.say(said)
        first.say(push(0))
        there = first.say(save(4)).message
        assert (there.version, there.done) == (1, DoneSet((EpochDone(0, 1, ()),)))
        answer = None if order_first else other.say(save(4))
        assert answer is None
        for told in first.told:
            answer = other.say(told) or answer
        answer = answer or other.say(save(4))
        assert (answer.cut, answer.message.version, answer.message.done) == (4, 1, None)
        assert other.copy == (4, [(1, Lease(0, 0, 1))])
        assert other.say(save(4)).cut == first.say(save(4)).cut == 4


def set_rate(rate, *, serial=1, trainer=1, generation=7):
    return m.SetRate(serial=serial, trainer=trainer, generation=generation, rate=rate)


# --- histories ---

WHO = st.sampled_from((1, 2, 3))


class Histories(RuleBasedStateMachine):
    """A first server, two others behind queues, and workers that push in two steps and die between them."""

    def __init__(self):
        super().__init__()
        self.servers = [Server(), Server(is_first=False), Server(is_first=False)]
        self.queues = [deque(), deque()]
        self.generation = 0
        self.cut = 0
        self.base = {}
        #: What each worker has in hand: its batch, how often it was leased, and whether all others hold it.
        self.hand = {}
        self.refused = {}
        self.leased = {}
        #: What is applied by the answers that workers had.
        self.model = []
        self.saved = (NOTHING, 0, [])
        self.lost = False
        self.restore()

    def tell(self):
        told, first = self.servers[0].told, self.servers[0]
        for message in told:
            for queue in self.queues:
                queue.append(message)
        first.told.clear()

    @rule()
    def restore(self):
        """The chief gives everybody the last checkpoint."""
        done, version, batches = self.saved
        self.generation += 1
        for server in reversed(self.servers):
            assert code(server.say(serve(self.generation, done=done, version=version))) == "serving"
            server.variables = list(batches)
        self.model, self.hand, self.lost = list(batches), {}, False
        self.refused.clear()

    @rule(who=WHO, number=st.integers(0, 12))
    def take(self, who, number):
        """A worker is leased a batch and pulls; others may have had it, and may even have applied it."""
        nth = self.leased[number] = self.leased.get(number, 0) + 1
        self.hand[who] = Lease(0, number, nth)
        for server in self.servers:
            server.say(look(who))
        self.base[who] = self.servers[0].say(pull(who, self.generation)).message.version

    @precondition(lambda self: not self.lost)
    @rule(who=WHO, dies=st.booleans(), repeats=st.booleans())
    def push_step(self, who, dies, repeats):
        lease = self.hand.get(who)
        if lease is None:
            return
        said = push(
            lease.number, self.base[who], trainer=who, generation=self.generation, nth=lease.nth,
            refused=self.refused.pop(who, None),
        )  # fmt: skip
        for server in self.servers[1:]:
            assert code(server.say(said)) == "held"
        if dies:
            del self.hand[who]
            return
        became = code(self.servers[0].say(said))
        known = {(one.epoch, one.number) for _, one in self.model}
        if became == "applied":
            assert (0, lease.number) not in known
            self.model.append((who, lease))
        elif became == "repeated":
            assert (0, lease.number) in known
        else:
            assert became == "stale"
        if became != "applied":
            self.refused[who] = lease
        del self.hand[who]
        if repeats:
            assert code(self.servers[0].say(said)) in ("repeated", "stale")
        self.tell()

    @rule(which=st.integers(0, 1), many=st.integers(1, 4))
    def deliver(self, which, many):
        for _ in range(min(many, len(self.queues[which]))):
            answer = self.servers[1 + which].say(self.queues[which].popleft())
            if answer is not None:
                self.servers[1 + which].answers.append(answer)

    @rule(rate=st.floats(0, 1))
    def set_rate(self, rate):
        """The chief's callbacks set the learning rate."""
        self.servers[0].say(look(1))
        assert code(self.servers[0].say(set_rate(rate, generation=self.generation))) == "set"

    @precondition(lambda self: not self.lost)
    @rule()
    def commit(self):
        """A cut through all servers is what was applied at the first when it was asked."""
        self.cut += 1
        message = save(self.cut, generation=self.generation)
        others = self.servers[1:]
        for server in others[:1]:
            assert server.say(message) is None
        answer = self.servers[0].say(message)
        self.tell()
        for which, server in enumerate(others):
            self.deliver(which, len(self.queues[which]))
            server.answers.clear()
            assert server.rate == self.servers[0].rate
            assert server.say(message).message.version == answer.message.version
            assert server.copy == (self.cut, self.model)
        assert self.servers[0].copy == (self.cut, self.model)
        there = AppliedBatches(answer.message.done)
        assert {one.number for _, one in self.model} == {number for number in range(20) if there.has(0, number)}
        self.saved = (answer.message.done, answer.message.version, list(self.model))

    @precondition(lambda self: not self.lost)
    @rule(which=st.integers(0, 1), steps=st.lists(st.tuples(WHO, st.integers(0, 12)), max_size=3))
    def cut_off(self, which, steps):
        """The connection between two servers breaks while workers go on, and one order that was on its way is lost."""
        self.deliver(which, len(self.queues[which]) - 1)
        for who, number in steps:
            self.take(who, number)
            self.push_step(who, dies=False, repeats=False)
        if self.queues[which]:
            missed = self.queues[which].popleft()
            of_now = [one for one in self.queues[which] if one.generation == self.generation]
            self.deliver(which, len(self.queues[which]))
            self.lost = True
            if missed.what == "apply" and missed.generation == self.generation and of_now:
                assert self.servers[1 + which].state.generation == 0

    @invariant()
    def what_is_applied_is_a_beginning_of_what_the_first_decided(self):
        if self.lost:
            return
        assert self.servers[0].variables == self.model
        assert len({one.number for _, one in self.model}) == len(self.model) == self.servers[0].state.version
        for server in self.servers[1:]:
            assert server.variables == self.model[: len(server.variables)]
            assert server.rates == self.servers[0].rates[: len(server.rates)]
            assert len(server.variables) == server.state.version


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase

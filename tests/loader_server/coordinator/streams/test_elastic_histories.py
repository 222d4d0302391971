"""Random histories of an elastic world: whatever happens, nothing is lost or repeated, and in the end all train."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.coordinator import TIMEOUT_S
from tests.support.elastic_members import BEAT_S, Run


class Histories(RuleBasedStateMachine):
    """Members that come, train, commit, are held up and die; a coordinator that is killed. Ticks are of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.run = Run()

    def pick(self, dice: int) -> int:
        return sorted(self.run.members)[dice % len(self.run.members)]

    @precondition(lambda self: len(self.run.members) < 5)
    @rule()
    def one_comes(self) -> None:
        self.run.start()

    @precondition(lambda self: self.run.members)
    @rule(dice=st.integers(0, 99))
    def one_dies(self, dice) -> None:
        self.run.kill(self.pick(dice))

    @precondition(lambda self: self.run.members)
    @rule(dice=st.integers(0, 99))
    def one_speaks(self, dice) -> None:
        self.run.beat(self.pick(dice))

    @rule()
    def all_speak(self) -> None:
        self.run.go_on(0.25)

    @precondition(lambda self: self.run.members)
    @rule(dice=st.integers(0, 99))
    def one_trains(self, dice) -> None:
        self.run.train(self.pick(dice))

    @precondition(lambda self: self.run.members)
    @rule(dice=st.integers(0, 99))
    def one_leaves(self, dice) -> None:
        self.run.leave(self.pick(dice))

    @rule(timeouts=st.sampled_from((0.1, 1.0, 6.0, 70.0)))
    def time_passes(self, timeouts) -> None:
        self.run.tick(timeouts * TIMEOUT_S)

    @rule()
    def the_coordinator_dies(self) -> None:
        self.run.restart_coordinator()

    @invariant()
    def commits_only_grow_from_world_to_world(self) -> None:
        """Each chief commits after what it restored, so nothing is lost or repeated in the chain."""
        versions = [version for _, version in self.run.chain]
        assert versions == sorted(versions)
        cursors = [cursor for cursor, _ in self.run.chain]
        assert cursors == sorted(cursors)

    @invariant()
    def ranks_are_those_of_one_world(self) -> None:
        training = [self.run.members[number] for number in self.run.training()]
        assert len({one.placed.rank for one in training}) == len(training)
        assert len({one.placed.world for one in training}) <= 1

    def teardown(self) -> None:
        """When nobody dies any more, those who are there train, as many as may."""
        self.run.go_on(90)
        there = len(self.run.members)
        assert len(self.run.training()) == (min(there, 3) if there >= 2 else 0)
        assert not [one for one in self.run.refused if one.code not in ("ended", "cursor")]


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase
assert BEAT_S < TIMEOUT_S

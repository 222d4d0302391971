"""Any history of leases against a model of plain sets: nothing twice, nothing lost, also over kills and rewinding."""

from __future__ import annotations

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from loader_server.leases.lease_book import NumberDone, NumberOut
from loader_server.leases.lease_table import LeaseRules, LeaseSettings
from tests.loader_server.leases.test_lease_table import Desk

TRAINERS = (1, 2, 3)
SIZES = (5, 1, 0, 7)
TRIES = 2
MOST_WANTED = 4
DICE = st.integers(0, 2**16)
WHO = st.sampled_from(TRAINERS)


class Histories(RuleBasedStateMachine):
    """Trainers that report, die, repeat and come late; a table that is killed and rewound."""

    def __init__(self) -> None:
        super().__init__()
        limits = LeaseSettings(stream="train", work="train", rules=LeaseRules(floor_s=4.0, tries=TRIES), gone_s=3.0)
        self.desk = Desk(lambda epoch: SIZES[epoch] if epoch < len(SIZES) else 0, limits)
        #: The model: what is done and what was given up in this generation.
        self.done: set = set()
        self.dead: set = set()
        #: All leases that each trainer was ever told of in this generation, and its last message.
        self.told: dict = {who: [] for who in TRAINERS}
        self.last: dict = {}
        self.saved: list = []
        self.seen = 0

    def take_in_facts(self) -> None:
        """What was kept since: each number is done once, and given up only after so many failures."""
        fresh, self.seen = self.desk.kept[self.seen :], len(self.desk.kept)
        for fact in fresh:
            if isinstance(fact, NumberDone):
                key = (fact.epoch, fact.number)
                assert key not in self.done
                self.done.add(key)
                self.dead.discard(key)
            elif isinstance(fact, NumberOut):
                key = (fact.epoch, fact.number)
                assert key not in self.done
                if fact.dead:
                    assert fact.failures == TRIES
                    self.dead.add(key)

    def talk(self, who, **said) -> None:
        self.last[who] = said
        answer = self.desk.say(who, **said)
        for lease in answer.leases:
            assert (lease.epoch, lease.number) not in self.done | self.dead
        assert len(answer.leases) <= MOST_WANTED
        self.told[who] += [lease for lease in answer.leases if lease not in self.told[who]]
        self.take_in_facts()

    @rule(who=WHO, dice=DICE, wanted=st.integers(0, MOST_WANTED), before=st.integers(0, 4), in_hand=st.booleans())
    def report(self, who, dice, wanted, before, in_hand):
        """Of anything that it ever had, whoever has it now."""
        chance = Random(dice)
        some = chance.sample(self.told[who], min(len(self.told[who]), chance.randrange(4)))
        cut, end = sorted(chance.randint(0, len(some)) for _ in range(2))
        in_hand = in_hand or None
        self.talk(
            who,
            done=some[:cut],
            failed=some[cut:end],
            returned=some[end:],
            wanted=wanted,
            before=before,
            in_hand=in_hand,
        )

    @rule(who=WHO)
    def repeat(self, who):
        """The answer was lost."""
        if who in self.last:
            self.desk._serials[who] -= 1
            self.talk(who, **self.last[who])

    @rule(who=WHO, wanted=st.integers(0, 2))
    def report_of_the_generation_before(self, who, wanted):
        done = set(self.done)
        self.talk(who, done=self.told[who][:3], wanted=wanted, generation=self.desk.table.generation - 1)
        assert self.done == done

    @rule(who=WHO)
    def die(self, who):
        failures = self.count_failures()
        self.desk.table.leave(who)
        self.take_in_facts()
        assert self.count_failures() == failures

    def count_failures(self):
        epochs = self.desk.table.epochs.items()
        return {(at, number): one.failures for at, epoch in epochs for number, one in epoch.out.items()}

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0]), alive=st.sets(WHO))
    def wait(self, seconds, alive):
        self.desk.wait(seconds, *alive)
        self.take_in_facts()

    @rule()
    def kill(self):
        before = self.desk.restart()
        after = self.desk.table
        assert after.done_set() == before.done_set()
        assert (after.generation, after.dead) == (before.generation, before.dead)
        assert {at: (one.fresh, one.out) for at, one in after.epochs.items()} == {
            at: (one.fresh, one.out) for at, one in before.epochs.items()
        }

    @rule()
    def save(self):
        self.saved.append((self.desk.table.done_set(), set(self.done), set(self.dead)))

    @rule(dice=DICE)
    def restore(self, dice):
        if not self.saved:
            return
        done, *model = self.saved[dice % len(self.saved)]
        sizes = {one.epoch: self.desk.batches(one.epoch) for one in done.epochs}
        self.desk.table.rewind(done, sizes, 99, self.desk.table.generation)
        self.done, self.dead = (set(one) for one in model)
        self.seen, self.told = len(self.desk.kept), {who: [] for who in TRAINERS}
        # What was given up before the checkpoint and done late after it stays done: so it was, then.
        self.done |= {key for key in self.dead if key not in self.desk.table.dead}
        self.dead = set(self.desk.table.dead)

    @invariant()
    def each_number_is_in_one_place(self):
        table = self.desk.table
        held = [key for trainer in table.trainers.values() for key in trainer.leases]
        assert len(held) == len(set(held))
        for at, epoch in table.epochs.items():
            assert epoch.left == SIZES_OF(at) - epoch.fresh + sum(out.is_open for out in epoch.out.values())
            for number, one in epoch.out.items():
                assert (at, number) not in self.done | self.dead
                assert bool(one.holder) == ((at, number) in held)
                assert one.failures < TRIES
            below = {(at, number) for number in range(epoch.fresh)} - {(at, number) for number in epoch.out}
            assert below <= self.done | self.dead
        assert set(table.dead) == self.dead

    def teardown(self):
        """Whatever happened: somebody who goes on does all that is left, each once."""
        who = 50
        self.told[who] = []
        for one in TRAINERS:
            self.desk.table.leave(one)
        while leases := self.desk.say(who, wanted=2, before=len(SIZES)).leases:
            self.talk(who, done=leases, wanted=0, before=len(SIZES))
        self.take_in_facts()
        everything = {(at, number) for at, size in enumerate(SIZES) for number in range(size)}
        assert self.done | self.dead == everything
        assert self.desk.table.unsettled() == len(SIZES)


def SIZES_OF(epoch):
    return SIZES[epoch] if epoch < len(SIZES) else 0


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)

"""The coordinator's process: its real state, and a journal that outlives it.

Rules: facts are written before the messages that follow them are sent, and a crash may come between any two
instructions. A coordinator that stalled gives everybody time to be heard again before it looks who is silent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.coordinator.events import (
    CoordinatorSettings,
    Excused,
    Fact,
    Instruction,
    Keep,
    Received,
    Send,
    Ticked,
)
from loader_server.coordinator.journal import _UNDOES, _key
from loader_server.coordinator.state import CoordinatorState
from shared.bad_limit import BadLimit
from tests.support.simulation.network import Server
from tests.support.simulation.process import Process
from tests.support.simulation.scheduler import Broken

if TYPE_CHECKING:
    from tests.support.simulation.world import World

__all__ = ["Coordinator"]

#: As the real service has it: a turn that took so many ticks was a stall.
_STALL_TICKS = 4


class Coordinator(Process):
    """One start of the coordinator."""

    def __init__(self, world: World, incarnation: int, journal: dict[str, Fact]) -> None:
        super().__init__(world.scheduler, "coordinator", incarnation)
        self.world = world
        self.journal = journal
        setting = world.setting
        settings = CoordinatorSettings(
            job="job",
            builder="builder",
            group=setting.group,
            heartbeat_timeout_s=setting.timeout_s,
            max_bad=BadLimit(0.5),
        )
        self.state = CoordinatorState(settings, world.streams, first_version=1 + 1_000_000 * incarnation)
        for fact in journal.values():
            self.state.recover(fact)
        if self.state.queues.incomplete():
            raise Broken(f"Q4: the journal lacks leases of {self.state.queues.incomplete()}")
        self._tick_s = setting.timeout_s / 4
        self._turned_s = self._due_s = self.scheduler.now_s
        self._server = Server(world.network, self, world.COORDINATOR)
        self._tick()

    def receive(self, identity: bytes, message: Any) -> None:
        """A worker or trainer said something."""
        self._look_at_the_clock()
        self._carry_out(self.state.handle(Received(identity, message), self.scheduler.now_s))

    def _tick(self) -> None:
        self._look_at_the_clock()
        if self.scheduler.now_s >= self._due_s:
            self._due_s = self.scheduler.now_s + self._tick_s
            self._carry_out(self.state.handle(Ticked(), self.scheduler.now_s))
        self.after(self._tick_s, self._tick)

    def _look_at_the_clock(self) -> None:
        now_s = self.scheduler.now_s
        if now_s - self._turned_s > _STALL_TICKS * self._tick_s:
            self._due_s = now_s + _STALL_TICKS * self._tick_s
            self._carry_out(self.state.handle(Excused(), now_s))
        self._turned_s = now_s

    def _carry_out(self, instructions: list[Instruction]) -> None:
        facts = [instruction.fact for instruction in instructions if isinstance(instruction, Keep)]
        self.world.sharing.on_kept(facts)
        for fact in facts:
            self.journal.pop(_key(fact), None)
            if type(fact) not in _UNDOES:
                self.journal[_key(fact)] = fact
        if facts and self.world.coordinator_dies_after_writing():
            return
        for instruction in instructions:
            if isinstance(instruction, Send):
                self._server.send(instruction.peer, instruction.message)

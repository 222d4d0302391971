"""What fails, when, and how it heals: faults at random moments, then none any more.

Rules: each fault is one method, drawn by its weight; what it breaks is whole again after a while or when everything
heals. One worker's machine is spared the faults that would make everybody refuse a batch, unless the world is doomed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tests.support.simulation.worker import Faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.simulation.network import Wire
    from tests.support.simulation.process import Process
    from tests.support.simulation.trainer import Trainer
    from tests.support.simulation.worker import Worker
    from tests.support.simulation.world import World

__all__ = ["Adversary"]


class Adversary:
    """Breaks a world for a while."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._scheduler = world.scheduler
        self._dice = world.scheduler.random
        self._timeout_s = world.setting.timeout_s
        self._over = False
        self._drained: set[Worker] = set()
        self._weights = [self._dice.choice((1, 1, 3)) * weight for weight in self._FAULTS.values()]

    def begin(self) -> None:
        """From now on things fail."""
        self._scheduler.after(self._pause_s(), self._strike)

    def _pause_s(self) -> float:
        return self._scheduler.between(0.0, 2 * self._world.setting.pause_s)

    def _strike(self) -> None:
        if self._over:
            return
        (fault,) = self._dice.choices(list(self._FAULTS), self._weights)
        fault(self)
        self._scheduler.after(self._pause_s(), self._strike)

    def _later(self, call: Callable[..., None], *args: object) -> None:
        """It is whole again after a while: within a timeout, or long after it."""
        longest = self._dice.choice((0.2, 1.0, 3.0, 8.0))
        self._scheduler.after(self._scheduler.between(0.0, longest) * self._timeout_s, call, *args)

    # --- whom it meets ---

    def _worker(self) -> Worker | None:
        alive = [worker for worker in self._world.workers.values() if worker.alive]
        return self._dice.choice(alive) if alive else None

    def _trainer(self) -> Trainer | None:
        alive = self._world.live_trainers()
        return self._dice.choice(alive) if alive else None

    def _pick_process(self) -> Process | None:
        world = self._world
        everybody = [*world.workers.values(), *world.live_trainers()]
        if world.coordinator is not None:
            everybody.append(world.coordinator)
        alive = [process for process in everybody if process.alive]
        return self._dice.choice(alive) if alive else None

    def _wire(self) -> Wire | None:
        wires = [wire for wire in self._world.network.wires if wire.port.wire is wire]
        return self._dice.choice(wires) if wires else None

    # --- workers ---

    def _kill_worker(self) -> None:
        worker = self._worker()
        if worker is not None:
            self._world.kill(worker, silently=self._scheduler.chance(0.2))
            self._later(self._start_worker, worker.name)

    def _kill_many(self) -> None:
        for worker in list(self._world.workers.values()):
            if self._scheduler.chance(0.7):
                self._world.kill(worker, silently=self._scheduler.chance(0.2))
                self._later(self._start_worker, worker.name)

    def _start_worker(self, place: str) -> None:
        if not self._over:
            self._world.start_worker(place)

    def _drain_worker(self) -> None:
        worker = self._worker()
        if worker is not None and not worker.draining:
            self._scheduler.note(worker, "drains")
            self._drained.add(worker)
            worker.call(worker.drain)
            self._later(self._start_worker, worker.name)

    def _forget_trainers(self) -> None:
        worker = self._worker()
        if worker is not None:
            self._scheduler.note(worker, "forgets its trainers")
            worker.call(worker.forget_all)

    def _ail_worker(self) -> None:
        """It builds slowly, or does something wrong, for a while."""
        worker = self._worker()
        if worker is None:
            return
        faults = Faults()
        kind = self._dice.choice(("slow", "slow", "hogs", "failing", "machine", "busy", "wrong", "misshapen", "all"))
        if kind in ("failing", "wrong", "misshapen", "all") and self._world.is_spared(worker):
            kind = "slow"
        if kind == "slow":
            faults.slow = self._dice.choice((10.0, 100.0))
        elif kind == "hogs":
            faults.hogs = True
        elif kind == "all":
            faults.refuses_all = True
        else:
            setattr(faults, kind, self._dice.choice((0.2, 0.7)))
        self._scheduler.note(worker, "does this wrong:", kind)
        worker.faults = faults
        self._later(self._mend, worker)

    @staticmethod
    def _mend(worker: Worker) -> None:
        worker.faults = Faults()

    def _poison(self) -> None:
        number = self._dice.randrange(4)
        self._scheduler.note(f"batch {number} kills who builds it")
        self._world.poison.add(number)
        self._later(self._world.poison.discard, number)

    def _let_stranger_in(self) -> None:
        """A worker of another job takes an address over."""
        worker = self._worker()
        if worker is not None and not self._world.is_spared(worker):
            self._world.kill(worker)
            self._world.start_worker(worker.name, job="another")

    def _bogus(self) -> None:
        """Somebody registers with an endpoint that is none."""
        self._world.register_nonsense()

    def _withhold_memory(self) -> None:
        worker = self._worker()
        if worker is not None:
            self._world.short_of_memory.add(worker.name)
            self._later(self._world.short_of_memory.discard, worker.name)

    def _leave_forked_child(self) -> None:
        self._world.inherited_locks = 0.5
        self._later(self._end_forked_child)

    def _end_forked_child(self) -> None:
        self._world.inherited_locks = 0.0

    # --- anybody ---

    def _stop(self) -> None:
        process = self._pick_process()
        if process is not None:
            self._world.stop(process)
            self._later(self._continue, process)

    def _stop_worker(self) -> None:
        worker = self._worker()
        if worker is not None:
            self._world.stop(worker)
            self._later(self._continue, worker)

    def _continue(self, process: Process) -> None:
        if not self._over:
            self._world.go_on(process)

    def _hang(self) -> None:
        process = self._pick_process()
        if process is not None:
            self._world.hang(process, self._scheduler.between(0.1, 3.5) * self._timeout_s)

    # --- the network ---

    def _cut(self) -> None:
        """A connection breaks; perhaps one side does not know."""
        wire = self._wire()
        if wire is None:
            return
        half = self._dice.choice(("", "", "client", "server"))
        chance, between = self._scheduler.chance, self._scheduler.between
        client_s = between(5.0, 6.0) if half == "client" else between(0.0, 0.003)
        server_s = between(10.0, 11.0) if half == "server" else between(0.0, 0.003)
        names = (wire.port.process, wire.server.process)
        self._scheduler.note("connection of", *names, "is cut", f"and {half} does not know" if half else "")
        self._world.network.cut(
            wire,
            client_s=client_s,
            server_s=server_s,
            up_lost=chance(0.5) or half == "server",
            down_lost=chance(0.5) or half == "client",
        )

    def _part(self) -> None:
        """Two places cannot reach each other, or only one way."""
        wire = self._wire()
        if wire is None:
            return
        client, server = wire.port.process.name, wire.server.process.name
        way = self._dice.choice(("both", "both", "up", "down"))
        self._scheduler.note(client, "and", server, "cannot reach each other:", way)
        self._world.network.cut_off(client, server, up=way != "down", down=way != "up")
        self._later(self._world.network.rejoin, client, server)

    def _isolate(self) -> None:
        """One machine cannot be reached at all."""
        process = self._pick_process()
        if process is None:
            return
        self._scheduler.note(process.name, "cannot be reached at all")
        for wire in list(self._world.network.wires):
            client, server = wire.port.process.name, wire.server.process.name
            if process.name in (client, server):
                self._world.network.cut_off(client, server)
                self._later(self._world.network.rejoin, client, server)

    def _delay(self) -> None:
        """Everything takes longer, each frame in its own way."""
        self._world.network.jitter = self._dice.choice((30.0, 100.0))
        self._later(self._end_delay)

    def _end_delay(self) -> None:
        self._world.network.jitter = 3.0

    # --- the coordinator ---

    def _kill_coordinator(self) -> None:
        if self._world.coordinator is not None:
            self._world.kill(self._world.coordinator, silently=self._scheduler.chance(0.2))
            self._later(self._start_coordinator)

    def _start_coordinator(self) -> None:
        if not self._over:
            self._world.start_coordinator()

    # --- trainers ---

    def _kill_trainer(self) -> None:
        trainer = self._trainer()
        if trainer is None:
            return
        self._world.kill(trainer, silently=self._scheduler.chance(0.2))
        self._world.replace(trainer, self._other_shares())

    def _replace_trainer(self) -> None:
        """The operator believes that a trainer is dead, and it is not: it was stopped, and comes back."""
        trainer = self._trainer()
        if trainer is not None and trainer.settings.stream == "train":
            self._world.stop(trainer)
            self._later(self._continue, trainer)
            self._world.replace(trainer, self._other_shares())

    def _other_shares(self) -> list[int]:
        """Another world that still fits the group, or the same."""
        shares = list(self._world.setting.shares)
        most = self._world.group()
        if not most or self._scheduler.chance(0.6):
            return shares
        left = self._dice.randint(1, most)
        shares = []
        while left:
            shares.append(self._dice.randint(1, min(2, left)))
            left -= shares[-1]
        return shares

    _FAULTS: ClassVar[dict[Callable[[Adversary], None], int]] = {
        _kill_worker: 6,
        _kill_many: 1,
        _drain_worker: 3,
        _forget_trainers: 2,
        _ail_worker: 6,
        _poison: 1,
        _let_stranger_in: 1,
        _bogus: 1,
        _withhold_memory: 1,
        _leave_forked_child: 1,
        _stop: 2,
        _stop_worker: 5,
        _hang: 4,
        _cut: 8,
        _part: 6,
        _isolate: 1,
        _delay: 1,
        _kill_coordinator: 2,
        _kill_trainer: 2,
        _replace_trainer: 1,
    }

    # --- the end of all faults ---

    def heal(self) -> None:
        """Nothing fails any more, and what is down comes up; workers that are stopped may stay so."""
        self._over = True
        world = self._world
        self._scheduler.note("everything heals")
        self._end_delay()
        self._end_forked_child()
        world.poison.clear()
        world.short_of_memory.clear()
        world.network.rejoin_all()
        for trainer in world.live_trainers():
            world.go_on(trainer)
        self._heal_coordinator()
        for worker in list(world.workers.values()):
            self._heal_worker(worker)
        world.note_healed()

    def _heal_coordinator(self) -> None:
        if self._world.coordinator is not None:
            self._world.go_on(self._world.coordinator)
        self._world.start_coordinator()

    def _heal_worker(self, worker: Worker) -> None:
        world = self._world
        worker.faults = Faults()
        if not (world.setting.stopped_stay and worker.stopped and worker.name != "worker0"):
            world.go_on(worker)
        if worker in self._drained or worker.job != "job":
            world.kill(worker)
        world.start_worker(worker.name)

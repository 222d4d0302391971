"""One whole world: a coordinator, workers, trainers, and the network between them, from one seed.

Rules: places (`train0`, `dev1`, `worker3`, `coordinator`) outlive the processes that run there. Everything that happens
comes from the scheduler; the same seed gives the same world, to the last step.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from loader_server.coordinator.events import GroupFixed
from loader_server.leases.lease_table import LeaseRules
from shared.errors import RefusedError, StokerError
from shared.wire import messages as m
from tests.support.simulation.checks import Checks
from tests.support.simulation.consumer import Evaluating
from tests.support.simulation.coordinator import Coordinator
from tests.support.simulation.network import Network
from tests.support.simulation.scheduler import Scheduler
from tests.support.simulation.setting import Setting
from tests.support.simulation.sharing import Sharer, Sharing
from tests.support.simulation.streams import Stream
from tests.support.simulation.trainer import Trainer
from tests.support.simulation.training import Training
from tests.support.simulation.worker import Worker
from trainer_client.core.settings import CoreSettings
from trainer_client.core.upcoming import Ranks

if TYPE_CHECKING:
    from loader_server.coordinator.events import Fact
    from tests.support.simulation.consumer import Consumer
    from tests.support.simulation.memory import Memory
    from tests.support.simulation.process import Process

__all__ = ["World"]

#: libzmq pauses up to 1.2 s between two attempts to connect, and some threads have to take their turns.
_CONNECT_S = 1.5
#: Until it is attached a trainer does not know the job's heartbeat timeout, and bears this much silence.
_FIRST_TIMEOUT_S = 2.0
#: Builds that may be before one that is waited for, on the worker that has it in hand; the longer ones take half more.
_BUILDS = 8 * 1.5
#: Ways between hosts one after another, each up to four times as long as the way is: connect, hello, want, batch.
_WAYS = 6 * 4


class World:
    """All that there is."""

    COORDINATOR = "tcp://10.0.0.1:7400"
    #: A socket cannot even be made for this.
    UNREACHABLE = "tcp://10.0.0.4:1"

    def __init__(self, seed: int, *, keep_all: bool = False) -> None:
        self.scheduler = scheduler = Scheduler(seed, keep_all=keep_all)
        self.setting = setting = Setting.of(scheduler.random)
        self.network = Network(scheduler)
        self.network.far_s, self.network.doubles = setting.far_s, setting.doubles
        self.checks = Checks(self)
        self.streams = {
            "train": Stream("train", evaluation=False, sizes=setting.sizes, build_s=setting.build_s),
            "dev": Stream("dev", evaluation=True, sizes=(setting.dev_size,), build_s=setting.build_s),
            "pool": Stream(
                "pool",
                evaluation=False,
                sizes=setting.shared_sizes,
                build_s=setting.build_s,
                leases=LeaseRules(floor_s=setting.lease_s, tries=3),
            ),
        }
        #: Memory that may be opened, by the trainer's incarnation.
        self.memories: dict[int, Memory] = {}
        #: Every trainer that ever was, by incarnation.
        self.trainers: dict[int, Trainer] = {}
        self._goal = self.shared_goal = 0
        self.healed_s: float | None = None
        self.starts = 0
        self._incarnations = itertools.count(1 + scheduler.random.randrange(2**40))
        self._journal: dict[str, Fact] = {}
        self._place_hosts()
        self.coordinator: Coordinator | None = None
        self.workers: dict[str, Worker] = {}
        self.training = Training(self, "train")
        self.evaluators: dict[str, Trainer] = {}
        self.sharing = Sharing(self)
        self.sharers: dict[str, Trainer] = {}
        #: Batches that nobody can build, that kill who tries first, that one worker cannot build.
        self.refused_by_all: set[int] = set()
        self.poison: set[int] = set()
        self.refused: set[tuple[str, int]] = set()
        self.machine_failures: dict[tuple[int, int, int], int] = {}
        self.short_of_memory: set[str] = set()
        self.inherited_locks = 0.0

    def _place_hosts(self) -> None:
        dice, hosts = self.scheduler.random, [f"host{host}" for host in range(self.setting.hosts)]
        places = ["coordinator", *(f"worker{number}" for number in range(self.setting.workers))]
        places += [f"{stream}{number}" for stream in self.streams for number in range(8)]
        self.network.host_of = {place: dice.choice(hosts) for place in places}

    # --- starting ---

    def begin(self) -> None:
        """Start everything."""
        self.start_coordinator()
        for number in range(self.setting.workers):
            self.scheduler.after(self.scheduler.between(0.0, 0.2), self.start_worker, f"worker{number}")
        self.training.start(list(self.setting.shares))
        for number in range(self.setting.evaluators):
            self.start_evaluator(f"dev{number}")
        for number in range(self.setting.sharers):
            self.start_sharer(f"pool{number}")

    def start_coordinator(self) -> None:
        """Start the coordinator, on its journal, unless it runs."""
        if self.coordinator is None or not self.coordinator.alive:
            self.starts += 1
            self.coordinator = Coordinator(self, self.starts, self._journal)

    def endpoint(self, place: str) -> str:
        """Where the worker of this place listens, in any incarnation."""
        return f"tcp://10.0.0.2:{8000 + int(place.removeprefix('worker'))}"

    def start_worker(self, place: str, *, job: str = "job") -> None:
        """Start another incarnation at a place, unless the port is in use."""
        before = self.workers.get(place)
        if before is None or not before.alive:
            worker = self.workers[place] = Worker(self, place, next(self._incarnations), self.endpoint(place), job=job)
            self.scheduler.note(worker, "starts", "" if job == "job" else f"for {job}")

    def start_evaluator(self, place: str) -> None:
        """Start a reader of the evaluation stream."""
        before = self.evaluators.get(place)
        if before is None or not before.alive:
            trainer = self.evaluators[place] = self.new_trainer(place, "dev", 0, 1, 1)
            Evaluating(self, trainer)

    def start_sharer(self, place: str) -> None:
        """Start a trainer in queue mode."""
        before = self.sharers.get(place)
        if before is None or not before.alive:
            trainer = self.sharers[place] = self.new_trainer(place, "pool", 0, 1, 1)
            Sharer(self, trainer, self.sharing)

    def new_trainer(self, place: str, stream: str, rank: int, replicas: int, world: int) -> Trainer:
        """Start a trainer."""
        setting = self.setting
        core = CoreSettings(
            job="job",
            stream=stream,
            ranks=Ranks(rank=rank, replicas=replicas, world=world),
            incarnation=next(self._incarnations),
            name=place,
            boot_id=self.network.host_of[place],
            prefetch=setting.prefetch,
            prefetch_bytes=(setting.slots + 1) * max(map(self.streams[stream].nbytes, range(2))),
            shared_memory=setting.shared_memory,
            verify=setting.verify,
            workers=setting.subset,
            lost_timeout_s=1e6,
        )
        trainer = self.trainers[core.incarnation] = Trainer(self, place, core)
        self.scheduler.note(trainer, f"starts as rank {rank} to {rank + replicas} of {world}")
        return trainer

    def register_nonsense(self) -> None:
        """Somebody tells the coordinator of an endpoint where nobody is, or to which no connection can be made."""
        coordinator = self.coordinator
        if coordinator is None or not coordinator.turns:
            return
        number = next(self._incarnations)
        endpoint = self.scheduler.random.choice((f"tcp://10.0.0.3:{number % 60000 + 1}", self.UNREACHABLE))
        self.scheduler.note("somebody registers with", endpoint)
        host = self.scheduler.random.choice(("", *self.network.host_of.values()))
        bogus = m.Register(
            worker="bogus",
            incarnation=number,
            endpoint=endpoint,
            boot_id=host,
            uid=0,
            builder="builder",
            metrics="",
        )
        coordinator.receive(f"bogus/{number}".encode(), bogus)

    # --- the end of all faults ---

    def is_spared(self, worker: Worker) -> bool:
        """One worker is never at fault itself, so that there is always one which can build."""
        return worker.name == "worker0" and not self.setting.doomed

    def note_healed(self) -> None:
        """All is well from now on, and has to go on."""
        self.healed_s = self.scheduler.now_s
        for place, trainer in self.evaluators.items():
            if not trainer.alive:
                self.start_evaluator(place)
        for place, trainer in self.sharers.items():
            if not trainer.alive:
                self.start_sharer(place)
        self._goal, self.shared_goal = self.training.epochs_done + 1, self.sharing.epochs_done + 1
        for trainer in self.live_trainers():
            if trainer.replaced and (self.scheduler.chance(0.5) or not self.training.claims(trainer)):
                self.kill(trainer)  # "stop the ones of the old world"
        self._watch()

    def _watch(self) -> None:
        self.checks.look_who_waits()
        self.scheduler.after(self.setting.timeout_s / 10, self._watch)

    def is_done(self) -> bool:
        """Whether enough was trained and read since all is well."""
        assert self.healed_s is not None
        if self.training.epochs_done < self._goal:
            return False
        if self.sharers and self.sharing.epochs_done < self.shared_goal:
            return False
        readers = [reader.consumer for reader in self.evaluators.values() if reader.alive]
        return len(readers) == self.setting.evaluators and all(
            reader is not None and reader.passes > 0 for reader in readers
        )

    # --- what may be done to processes ---

    def kill(self, process: Process, *, silently: bool = False) -> None:
        """Kill -9; `silently`: with its machine, so that nobody gets notice."""
        if not process.alive:
            return
        self.scheduler.note(process, "is killed", "silently" if silently else "")
        process.die()
        self.network.kill(process, silently=silently)
        for endpoint, server in list(self.network.servers.items()):
            if server.process is process:
                del self.network.servers[endpoint]

    def stop(self, process: Process) -> None:
        """SIGSTOP; libzmq at its peers gives up in the end."""
        if process.alive and not process.stopped:
            self.scheduler.note(process, "is stopped")
            process.stop()
            for wire in self.network.wires:
                if process in (wire.server.process, wire.port.process):
                    self.network.watch(wire)

    def go_on(self, process: Process) -> None:
        """It is neither stopped nor hangs any more."""
        if process.alive and not process.turns:
            self.scheduler.note(process, "goes on")
            process.resume()

    def hang(self, process: Process, seconds: float) -> None:
        """Hold the interpreter for so long."""
        if process.turns:
            self.scheduler.note(process, f"hangs for {seconds:.2f} s")
            process.hang()
            self.scheduler.after(seconds, process.end_hanging)

    def coordinator_dies_after_writing(self) -> bool:
        """Whether the coordinator dies between its journal and what it says."""
        dies = self.healed_s is None and self.scheduler.chance(0.02)
        if dies and self.coordinator is not None:
            self.kill(self.coordinator)
            self.scheduler.after(self.scheduler.between(0.1, 2.0) * self.setting.timeout_s, self.start_coordinator)
        return dies

    # --- trainers that end ---

    def on_trainer_failed(self, trainer: Trainer, error: StokerError) -> None:
        """A consumer got an error: its process ends, and the operator starts it again."""
        self.scheduler.note(trainer, "gives up:", error)
        if trainer.error is None:
            self.checks.on_fail(trainer, error)
        self.scheduler.after(0.0, self.kill, trainer)
        self.replace(trainer, list(self.setting.shares))

    def replace(self, trainer: Trainer, shares: list[int]) -> None:
        """The operator starts others in place of a trainer; where ranks go in step, in place of all."""
        if trainer.settings.stream == "dev":
            pause_s = self.scheduler.between(0.0, 1.0) * self.setting.timeout_s
            self.scheduler.after(pause_s, self.start_evaluator, trainer.name)
        elif trainer.settings.stream == "pool":
            pause_s = self.scheduler.between(0.0, 1.0) * self.setting.timeout_s
            self.scheduler.after(pause_s, self.start_sharer, trainer.name)
        elif self.training.has(trainer):
            self._restart_training(shares)

    def _restart_training(self, shares: list[int]) -> None:
        self.scheduler.note("training is started again with", shares)
        for trainer in self.training.end():
            # Who was never attached would come as somebody new.
            if trainer.turns or not trainer.core.attachment.attached:
                self.kill(trainer)
            trainer.replaced = True
        pause_s = self.scheduler.between(0.0, 1.0) * self.setting.timeout_s
        self.scheduler.after(pause_s, self.training.start, shares)

    def group(self) -> int:
        """Of the training stream; 0: nobody attached yet, and who comes first fixes it."""
        fixed = (fact for fact in self._journal.values() if isinstance(fact, GroupFixed))
        return next((fact.group for fact in fixed if fact.stream == self.training.stream), 0)

    def live_trainers(self) -> list[Trainer]:
        """Those that run, and those that believe they still should."""
        return [trainer for trainer in self.trainers.values() if trainer.alive]

    def objection_to_failing(self, trainer: Trainer, error: BaseException) -> str:
        """Why this feed should go on; empty: it may fail."""
        if trainer.replaced:
            return ""
        if isinstance(error, RefusedError) and error.code in ("world", "cursor"):
            return "" if any(map(self._stood_in_the_way, self.trainers.values())) else "no other rank lives"
        stream = trainer.core.stream
        head = stream.upcoming.entries.get(stream.upcoming.head) if stream is not None else None
        if head is None:
            return "nobody refused"
        batch = (trainer.incarnation, head.batch.position.epoch, head.batch.number)
        able = [
            worker
            for worker in self.workers.values()
            if batch not in worker.refused and self._is_there(worker, trainer)
        ]
        return f"{able[0]} could build its head" if able else ""

    def _stood_in_the_way(self, other: Trainer) -> bool:
        """Whether it lives, or lived lately, though others have its ranks."""
        lately_s = self.scheduler.now_s - 4 * self.setting.timeout_s
        return other.replaced and (other.alive or other.since_s > lately_s)

    def _is_there(self, worker: Worker, trainer: Trainer) -> bool:
        """Whether a trainer could have asked this worker for long enough."""
        long_s = self.scheduler.now_s - 2 * self.setting.timeout_s - _CONNECT_S
        well = worker.turns and not worker.draining and worker.job == "job" and worker.since_s < long_s
        return well and self.network.are_joined_since(trainer.name, worker.name) < long_s

    # --- what is wrong with batches ---

    def is_refused(self, worker: Worker, want: m.Want) -> bool:
        """Whether this worker cannot build this batch."""
        return False

    def is_poisoned(self, worker: Worker, want: m.Want) -> bool:
        """Whether this batch kills a worker that builds it without being warned."""
        return want.attempt == 0 and want.number in self.poison and self.healed_s is None

    def may_fail_once_more(self, want: m.Want) -> bool:
        """Whether another machine may fail at this batch: five failures end a feed."""
        key = (want.trainer, want.epoch, want.number)
        failures = self.machine_failures[key] = self.machine_failures.get(key, 0) + 1
        return failures < 5

    def is_short_of_memory(self, place: str) -> bool:
        """Whether shared memory cannot be had there."""
        return place in self.short_of_memory

    def is_lock_inherited(self, worker: Worker) -> bool:
        """Whether a forked child goes on holding a worker's locks."""
        return self.scheduler.chance(self.inherited_locks)

    # --- pauses and chances ---

    def turn_pause_s(self) -> float:
        """Until a thread that was woken runs."""
        return self.setting.turn_s * (0.2 + 0.8 * self.scheduler.random.random())

    def races(self) -> bool:
        """Whether a consumer runs just now."""
        return self.scheduler.random.random() < 0.1

    def patience_s(self, consumer: Consumer) -> float:
        """How long a consumer may wait when all is well again: a heartbeat timeout, and builds of what is in hand."""
        setting = self.setting
        timeout_s = max(setting.timeout_s, 0.0 if consumer.trainer.core.attachment.attached else _FIRST_TIMEOUT_S)
        return consumer.patience_s + 1.25 * timeout_s + _BUILDS * setting.build_s + _WAYS * setting.far_s + _CONNECT_S

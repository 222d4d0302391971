"""The demo's training: the trainer as a process of its own, its events, and a worker that is killed meanwhile.

Rules: the trainer is followed by the JSON lines that it prints, and its process ends with ours, because we hold its
standard input; the audit compares what was trained on with the plan; the worker is killed by a signal that it cannot
catch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from loader_server.demo.plan_audit import Audit, Step
from shared.errors import StokerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from loader_server.demo.plan_audit import Settled
    from loader_server.demo.story import Story
    from loader_server.machine.child import Child
    from loader_server.machine.supervisor import Supervisor
    from loader_server.planning import Plan

__all__ = ["Epoch", "Trainer", "TrainerError", "Training"]

#: The seconds after which no epoch begins, so that the whole demo ends within three minutes.
_TRAINING_S = 100.0

#: The epoch in which a worker is killed; not the first one, which also compiles.
_KILL_EPOCH = 1

_LOG_LINES_SHOWN = 20
_TRAINER_END_S = 10.0


class TrainerError(StokerError):
    """The trainer's process failed; the end of its log is in the message."""


# --- the trainer's process ---


class Trainer:
    """The process of `trainer_client.demo`.

    Making it removes the checkpoints of an earlier demo; raises OSError if the log cannot be written or the process
    cannot be started.
    """

    def __init__(self, folder: Path, endpoint: str, epochs: int) -> None:
        self._log = folder / "trainer.log"
        checkpoints = folder / "checkpoints"
        shutil.rmtree(checkpoints, ignore_errors=True)
        own = ["--epochs", str(epochs), "--seconds", str(_TRAINING_S), "--checkpoints", str(checkpoints)]
        command = [sys.executable, "-m", "trainer_client.demo", endpoint, *own, "--events"]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        with self._log.open("wb") as log:
            # In a session of its own, so that we decide what Ctrl-C does to it. It ends when its standard input ends.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=environment,
            )

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the trainer's events until it ends; raise a TrainerError if it ends with an error or by a signal.

        Other lines that it prints are passed over; raise ValueError if an event is malformed.
        """
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b'{"event"'):  # libraries print too
                yield json.loads(line)
        code = self.process.wait()
        if code:
            lines = self._log.read_text("utf-8", "replace").splitlines()[-_LOG_LINES_SHOWN:]
            raise TrainerError(
                expected="the trainer to train to the end",
                got=f"its end with {f'signal {-code}' if code < 0 else f'exit code {code}'}",
                where=str(self._log),
                remedy="It printed:\n" + "\n".join(f"    {line}" for line in lines),
            )

    def close(self) -> None:
        """End the process, by force if it does not end within 10 s, and close its pipes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.terminate()  # while TensorFlow loads, this is quicker than ending its input
        # The trainer ends at the end of its input, also if we are killed before we get here.
        self.process.stdin.close()
        try:
            self.process.wait(_TRAINER_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


# --- training ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The trainer's report on an epoch."""

    loss: float
    error: float
    steps: int
    wait_s: float
    train_s: float


class Training:
    """The trainer's events: keeps the books, reports each epoch, and kills a worker in the middle of one."""

    def __init__(self, *, story: Story, plan: Plan, supervisor: Supervisor, epochs: int) -> None:
        self.epochs: list[Epoch] = []
        self.audit = Audit()
        self._kill_epoch = min(_KILL_EPOCH, epochs - 1)
        self._killing = _Killing(supervisor, story)
        self._plan = plan
        self._epochs = epochs
        self._story = story
        #: The samples of each batch of the current epoch, by the plan.
        self._planned: list[list[int]] = []
        self._bar = Progress(
            TextColumn("   {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=story.console,
            disable=not story.console.is_terminal,
            transient=True,
        )
        self._task = TaskID(0)

    def follow(self, trainer: Iterator[dict[str, Any]]) -> None:
        """Handle events until the trainer is done; raise a TrainerError if it fails.

        Print a line if it has trained for fewer epochs than it was asked for. Raise KeyError for an event of an unknown
        kind or without a field, ValueError or TypeError for a malformed one, and IndexError if there is no worker to
        kill. Errors of making the plan's batches pass.
        """
        handlers = {"connected": self._on_connected, "step": self._on_step, "epoch": self._on_epoch}
        with self._bar:
            self._task = self._bar.add_task("TensorFlow starts", total=None)
            for event in trainer:
                kind = event.pop("event")
                handlers[kind](event)
        if len(self.epochs) < self._epochs:
            self._story.say(f"{_TRAINING_S:.0f} s are over: this machine was too busy for all {self._epochs} epochs.")

    def _on_connected(self, event: dict[str, Any]) -> None:
        self._group = event["group"]
        self._open(0)
        self._story.say(f"Connected {self._story.so_far_s():.0f} s after the start; its first step compiles the model.")
        self._story.say("epoch     loss  digit error  steps/s  waiting  padding", "bold")

    def _open(self, epoch: int) -> None:
        opened = self._plan.epoch(epoch, self._group)
        self._planned = [opened.batch(number).samples.tolist() for number in range(opened.batches)]
        self._bar.reset(self._task, description=f"epoch {epoch + 1}", total=opened.batches)

    def _on_step(self, event: dict[str, Any]) -> None:
        rows, length = event["shape"]
        self.audit.add(Step(tags=tuple(event["tags"]), shape=(rows, length), filled=event["filled"]))
        self._bar.update(self._task, completed=self.audit.steps)
        if len(self.epochs) == self._kill_epoch:
            self._killing.on_step(self.audit.steps, len(self._planned), len(self.epochs))

    def _on_epoch(self, event: dict[str, Any]) -> None:
        number = event.pop("epoch")
        epoch = Epoch(**event)
        self.epochs.append(epoch)
        settled = self.audit.settle(self._planned)
        self._story.say(
            f"{number + 1:>5} {epoch.loss:>8.2f} {epoch.error:>12.1%} {epoch.steps / epoch.train_s:>8.1f} "
            f"{epoch.wait_s / epoch.train_s:>8.1%} {settled.padding:>8.1%}"
        )
        if number == self._kill_epoch:
            self._killing.report(settled)
        self._open(number + 1)


class _Killing:
    """The kill of a worker in the middle of an epoch, and the report on its outcome."""

    def __init__(self, supervisor: Supervisor, story: Story) -> None:
        self._supervisor = supervisor
        self._story = story
        self._victim: Child | None = None
        self._last_s = self._longest_s = 0.0

    def on_step(self, step: int, steps: int, epoch: int) -> None:
        """Kill a worker halfway through the epoch; from then on, measure the longest time between steps.

        Raise IndexError if there is no worker; one whose process has just died is not killed, but counts as the victim.
        """
        now_s = time.monotonic()
        if self._victim is not None:
            self._longest_s = max(self._longest_s, now_s - self._last_s)
        elif step >= max(1, steps // 2):
            self._kill(step, steps, epoch)
        self._last_s = now_s

    def _kill(self, step: int, steps: int, epoch: int) -> None:
        self._victim = self._supervisor.workers[0]
        process = self._victim.process
        if process is not None:
            process.kill()
            self._story.say(
                f"      kill -9 of {self._victim.name}, process {process.pid}, "
                f"after batch {step} of {steps} of epoch {epoch + 1} …",
                "red",
            )

    def report(self, settled: Settled) -> None:
        """Report the outcome at the end of that epoch; do nothing if no worker was killed."""
        victim = self._victim
        if victim is None:
            return
        successor = f"process {victim.process.pid} has its place" if victim.process else "it is being started again"
        order = "in the planned order" if settled.in_plan_order else "NOT in the planned order"
        self._story.say(f"      … {successor}; the longest step after the kill took {self._longest_s:.2f} s.", "green")
        self._story.say(
            f"      {settled.batches} batches trained on {order}: lost {settled.lost}, repeated {settled.repeated}.",
            "green",
        )

"""`loader-server demo`: the main job from nothing to a trained model, told as a story, one act after the other.

Synthesises a corpus, indexes it, shows the plan, starts coordinator and workers as `loader-server run` does, starts
`trainer_client.demo` as a process of its own, kills a worker in mid-epoch, and checks what was trained on against the
plan. Rules: the story goes to standard output, one fact a line, and its last line is one JSON object; whatever happens,
no process outlives this one. The trainer is followed by the events that it prints.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
import time
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from loader_server.commands.index import index_streams
from loader_server.commands.plan_report import facts
from loader_server.commands.progress import progress_bar
from loader_server.demo.corpus import facts_of, make_corpus
from loader_server.demo.story import Story
from loader_server.demo.training import Trainer, Training
from loader_server.job_file import JobFile
from loader_server.machine.supervisor import Supervisor, SupervisorSettings
from loader_server.stream import Stream
from shared.errors import SettingsError
from shared.extras import how_to_get
from shared.logs import start_logging

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from loader_server.machine.nursery import Nursery

__all__ = ["run"]

_SAMPLES = 1500

_JOB = """\
# The job of `loader-server demo`: change it, and serve it with `loader-server run`.

[job]
name = "digits"
seed = 7
listen = "tcp://127.0.0.1:7400"

[streams.train]
source = "manifest"
paths = ["train.csv"]
transforms = ["logmel", "characters"]
length = "audio"               # the key that is bucketed
budget = "40 s"                # of audio a batch, padding included
shapes = "auto"                # or a number, or a list of lengths
curriculum_epochs = 1          # in the first epoch short recordings come first

[streams.train.logmel]
rate = 8000
bands = 40

[streams.train.characters]
alphabet = "0123456789"

[streams.dev]
paths = ["dev.csv"]
like = "train"                 # everything else as there
order = "sorted"
"""


def run(options: argparse.Namespace, nursery: Nursery) -> int:
    """Play all acts, and return 0 once every process has ended.

    Raise SettingsError if the trainer's packages are missing or the folder has a corpus of another size, DataError if
    it holds something else, TrainerError if the trainer fails, or what keeps the job from being indexed or served.
    Raise IndexError if not one epoch was trained, and OSError or an error of soundfile if no corpus can be written.
    Other errors of `Training.follow` pass through.
    """
    _check_trainer()
    # The demo prints its story; the processes' own logs appear only if they are asked for.
    log_level = "error" if options.log_level == "info" else options.log_level
    start_logging(level=log_level)
    story = Story()
    _corpus(options, story)
    job = JobFile(options.keep / "job.toml")
    _index(job, story)
    stream = _plan(job, story)
    settings = SupervisorSettings(workers=options.workers or min(4, max(2, os.cpu_count() or 1)), log_level=log_level)
    try:
        with _loaders(settings, nursery, job, story) as supervisor:
            outcome = _train(options, supervisor, stream, story)
    finally:
        stream.close()
    _summary(options.keep, outcome, story)
    return 0


def _check_trainer() -> None:
    """Raise a SettingsError if TensorFlow or Keras is not installed."""
    for package in ("tensorflow", "keras"):
        if find_spec(package) is None:
            raise SettingsError(
                expected=f"{package}, for the trainer's process",
                got="no such package",
                where=sys.executable,
                remedy=how_to_get("loader,trainer-cpu"),
            )


# --- what is there before training ---


def _corpus(options: argparse.Namespace, story: Story) -> None:
    """Make the corpus, unless an earlier demo made it.

    Raise SettingsError if that corpus has another size, DataError if it cannot be read, or the folder holds something
    else. Raise OSError or an error of soundfile if a corpus cannot be written.
    """
    began_s = time.monotonic()
    corpus = facts_of(options.keep)
    if corpus is None:
        with progress_bar("making recordings") as progress:
            corpus = make_corpus(options.keep, samples=options.samples or _SAMPLES, job=_JOB, progress=progress)
        origin = f"made in {time.monotonic() - began_s:.0f} s"
    elif options.samples in (None, corpus.train + corpus.dev):
        origin = "of an earlier demo"
    else:
        raise SettingsError(
            expected=f"a corpus of {options.samples} recordings",
            got=f"one of {corpus.train + corpus.dev}, made by an earlier demo",
            where=str(options.keep),
            remedy="Remove that folder, name another one with --keep, or leave --samples out.",
        )
    recordings = f"{corpus.train + corpus.dev:,} recordings of dialled digits"
    story.act(1, "Corpus", f"{recordings}, {origin}, in {_shown(options.keep)}")
    story.say(f"{corpus.seconds / 60:.0f} minutes of noisy FLAC; {corpus.dev:,} recordings are held out to judge by.")


def _index(job: JobFile, story: Story) -> None:
    missing = [name for name in job.recipes if not job.is_indexed(name)]
    began_s = time.monotonic()
    reports = index_streams(job, missing)
    rows = sum(report.rows for report in reports.values())
    origin = f"{rows:,} recordings measured in {time.monotonic() - began_s:.1f} s" if missing else "of an earlier demo"
    story.act(2, "Index", f"{origin}, in {_shown(job.state)}")


def _plan(job: JobFile, story: Story) -> Stream:
    stream = Stream(job, "train")
    of_plan = facts(stream.plan, group=job.settings.group or 1)
    padding = f"{of_plan['padding']['all']:.1%} is padding."
    story.act(3, "Plan", f"an epoch is {of_plan['batches']} batches in {of_plan['shapes']} shapes; {padding}")
    shapes = (f"{bucket['rows']} x {bucket['lengths']['audio'] / 100:.1f}" for bucket in of_plan["buckets"])
    story.say(f"Shapes, rows x seconds: {', '.join(shapes)}.")
    story.say("In the first epoch short recordings come first; from then on all are shuffled.")
    return stream


@contextmanager
def _loaders(settings: SupervisorSettings, nursery: Nursery, job: JobFile, story: Story) -> Iterator[Supervisor]:
    """Run coordinator and workers while the block lasts, and yield their supervisor.

    Raise StartError if they cannot serve, and the other errors of `Supervisor.start`. Errors of the block pass through,
    after all processes were ended.
    """
    supervisor = Supervisor(settings, nursery)
    keeper = threading.Thread(target=supervisor.run, name="supervisor")
    try:
        supervisor.start([job], listen="tcp://127.0.0.1:*")
        keeper.start()
        endpoint = supervisor.jobs[job.settings.name].endpoint
        story.act(4, "Run", f"a coordinator and {settings.workers} workers serve the job at {endpoint}.")
        yield supervisor
    finally:
        supervisor.stop()
        # Its thread may never have begun, and has to be over before its sockets are closed here.
        if keeper.ident is not None:
            keeper.join()
        supervisor.close()


def _train(options: argparse.Namespace, supervisor: Supervisor, stream: Stream, story: Story) -> Training:
    training = Training(story=story, plan=stream.plan, supervisor=supervisor, epochs=options.epochs)
    (job,) = supervisor.jobs.values()
    with closing(Trainer(options.keep, job.endpoint, options.epochs)) as trainer:
        story.act(5, "Train", f"a process of its own, {trainer.process.pid}, trains a small CTC model with Keras.")
        training.follow(trainer.events())
    return training


# --- afterwards ---


def _summary(folder: Path, outcome: Training, story: Story) -> None:
    """Tell the results and the next steps; print the results once more as one JSON object, the last line.

    Raise IndexError if not one epoch was trained.
    """
    epochs, audit = outcome.epochs, outcome.audit
    first, last = epochs[0], epochs[-1]
    steps, train_s = sum(epoch.steps for epoch in epochs), sum(epoch.train_s for epoch in epochs)
    waited = sum(epoch.wait_s for epoch in epochs) / train_s
    story.act(6, "Summary", f"{steps} steps in {len(epochs)} epochs; all took {story.so_far_s():.0f} s.")
    story.say(f"Loss {first.loss:.2f} -> {last.loss:.2f}, digit error {first.error:.1%} -> {last.error:.1%}.")
    story.say(f"{steps / train_s:.1f} steps/s; the trainer waited for data {waited:.1%} of its time.")
    story.say(f"Padding: {audit.padding:.1%} of all cells, in {len(audit.shapes)} shapes.")
    story.say(f"Samples lost: {audit.lost}; repeated: {audit.repeated}; and one worker was killed.")
    _next_steps(folder, story, len(epochs))
    results = {
        "steps": steps,
        "loss_first": round(first.loss, 4),
        "loss_last": round(last.loss, 4),
        "error_last": round(last.error, 4),
        "data_wait_ratio": round(waited, 4),
        "padding_ratio": round(audit.padding, 4),
        "shapes": len(audit.shapes),
        "lost": audit.lost,
        "repeated": audit.repeated,
    }
    print(json.dumps(results), flush=True)


def _next_steps(folder: Path, story: Story, epochs: int) -> None:
    loader, python = _commands()
    job, checkpoints = _shown(folder / "job.toml"), _shown(folder / "checkpoints")
    story.act(7, "Next", f"corpus, job file and model stay in {_shown(folder)}; try")
    story.say(f"{loader} plan {job}")
    story.say(f"{loader} run {job}")
    story.say("and in other terminals, while that runs:")
    story.say(f"{loader} status")
    story.say(f"{python} -m trainer_client.demo --checkpoints {checkpoints} --epochs {epochs + 2}")
    story.console.print()


def _commands() -> tuple[str, str]:
    """Return how this command and its Python were called, for lines that people copy."""
    called = Path(sys.argv[0])
    python = shlex.quote(_relative(Path(sys.executable)))
    if called.name != "loader-server":
        return f"{python} -m loader_server", python
    return shlex.quote(_relative(called) if called.parent.name else called.name), python


def _shown(path: Path) -> str:
    return shlex.quote(_relative(path))


def _relative(path: Path) -> str:
    """Return the path relative to the current folder if it is below that, otherwise the absolute one."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - a virtual environment's python is a link not to be followed
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)

"""`loader-server trace`: what batches went through, as a trace for Perfetto, as eight lines, or as a table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from loader_server.commands.ask import opened
from loader_server.commands.stamp_gathering import StampGathering, StampQuestion
from loader_server.tracing.chrome_trace import chrome_trace
from loader_server.tracing.life_lines import life_facts, life_lines, slowest, slowest_lines
from loader_server.tracing.lives import lives_of
from shared.errors import DataError, SettingsError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from loader_server.tracing.lives import Life

__all__ = ["run"]

#: How far back the slowest batches are looked for unless `--seconds` is given; stamps are kept as long.
_KEPT_S = 60.0
#: Limit of batches that workers are asked for one by one.
_MOST_QUESTIONS = 30
#: The length of a trace in seconds unless `--seconds` says otherwise.
_USUAL_S = 30.0


def run(options: argparse.Namespace) -> int:
    """Print a trace, the life of one batch, or the slowest batches; return the exit code, 0.

    Raises LostError if the coordinator does not answer in time, RefusedError if it refuses, DataError if no process has
    stamps of the batch, SettingsError if an option, a key or the endpoint cannot be used, and MachineError if there is
    no room for a connection.
    """
    _refuse_misfits(options)
    with opened(options.endpoint, keys=options.keys, timeout_s=options.timeout_seconds) as dealer:
        gathering = StampGathering(dealer, options.endpoint, options.timeout_seconds)
        gathering.find_processes()
        if options.batch is not None:
            _print_lives(_lives_of_batch(gathering, options), as_json=options.json)
        elif options.slowest is not None:
            lives = _slowest(gathering, options)
            _print_table(lives, options)
        else:
            print(json.dumps(_trace(gathering, options)))
    return 0


def _refuse_misfits(options: argparse.Namespace) -> None:
    if options.batch is not None and options.slowest is not None:
        raise SettingsError(
            expected="one of --batch and --slowest",
            got="both",
            where="loader-server trace",
            remedy="Leave one of them out.",
        )


def _trainers(gathering: StampGathering, stream: str) -> list[int]:
    return [
        incarnation
        for incarnation, stamps in gathering.processes.items()
        if stamps.is_trainer and stream in ("", stamps.process.stream)
    ]


def _trace(gathering: StampGathering, options: argparse.Namespace) -> dict[str, object]:
    last_s = _USUAL_S if options.seconds is None else options.seconds
    gathering.ask(StampQuestion(last_s=last_s), gathering.processes)
    processes = list(gathering.processes.values())
    lives = [life for life in lives_of(processes) if options.stream in ("", life.stream)]
    return chrome_trace(processes, lives)


def _lives_of_batch(gathering: StampGathering, options: argparse.Namespace) -> list[Life]:
    """Return the last life of the batch at each trainer that had it, of the last epoch unless one was named.

    A life that ended with its taking goes before one that has only begun: the same batch in the next lap, say. Raise
    DataError if no trainer has stamps of the batch, and RefusedError if the coordinator refuses.
    """
    trainers = _trainers(gathering, options.stream)
    streams = {gathering.processes[trainer].process.stream for trainer in trainers}
    gathering.ask_all(
        (_question(options, stream), tuple(t for t in trainers if gathering.processes[t].process.stream == stream))
        for stream in sorted(streams)
    )
    found = lives_of(list(gathering.processes.values()))
    if not found:
        raise _no_stamps(gathering, options, streams)
    # Only workers that were asked for it, by any trainer.
    gathering.ask_all(_of_workers(found))
    lives = lives_of(list(gathering.processes.values()))
    epoch = max(life.epoch for life in lives)
    newest = sorted((life for life in lives if life.epoch == epoch), key=lambda life: life.taken_ns or 0)
    return list({life.trainer.process.incarnation: life for life in newest}.values())


def _question(options: argparse.Namespace, stream: str) -> StampQuestion:
    return StampQuestion(stream=stream, epoch=options.epoch, number=options.batch)


def _of_workers(lives: Iterable[Life]) -> list[tuple[StampQuestion, tuple[int, ...]]]:
    """Return what to ask of which workers about these lives."""
    asked: dict[StampQuestion, set[int]] = {}
    for life in lives:
        question = StampQuestion(stream=life.stream, epoch=life.epoch, number=life.number)
        asked.setdefault(question, set()).update(ask.worker for ask in life.asks)
    return [(question, tuple(sorted(workers))) for question, workers in asked.items()]


def _slowest(gathering: StampGathering, options: argparse.Namespace) -> list[Life]:
    last_s = _KEPT_S if options.seconds is None else options.seconds
    gathering.ask(StampQuestion(last_s=last_s), _trainers(gathering, options.stream))
    worst = slowest(lives_of(list(gathering.processes.values())), options.slowest)
    questions = _of_workers(worst)
    if len(questions) > _MOST_QUESTIONS:  # one a batch would take longer than all stamps of their workers
        workers = {worker for _, asked in questions for worker in asked}
        questions = [(StampQuestion(last_s=last_s), tuple(sorted(workers)))]
    gathering.ask_all(questions)
    return slowest(lives_of(list(gathering.processes.values())), options.slowest)


def _print_lives(lives: list[Life], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"batches": [life_facts(life) for life in lives]}))
        return
    for place, life in enumerate(lives):
        print(*([""] if place else []), *life_lines(life), sep="\n")


def _print_table(lives: list[Life], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps({"batches": [life_facts(life) for life in lives]}))
    elif lives:
        print(*slowest_lines(lives), sep="\n")
    else:
        print("no batch that is kept was waited for")


def _no_stamps(gathering: StampGathering, options: argparse.Namespace, streams: set[str]) -> DataError:
    asked = [stamps for stamps in gathering.processes.values() if stamps.is_trainer and stamps.now_ns]
    kept_s = max(((stamps.now_ns - stamps.oldest_ns) / 1e9 for stamps in asked if stamps.oldest_ns), default=0.0)
    problems = [f"{stamps.name}: {stamps.problem}" for stamps in gathering.processes.values() if stamps.problem]
    of_epoch = f" of epoch {options.epoch}" if options.epoch is not None else ""
    named = " or ".join(sorted(streams)) or options.stream or "any stream"
    return DataError(
        expected=f"stamps of batch {options.batch}{of_epoch} in {named}",
        got="; ".join([f"none at {len(asked)} trainers, whose stamps go back {kept_s:.0f} s", *problems]),
        where="loader-server trace",
        remedy="Ask within a minute of the batch; check its number, --epoch and --stream. What a trainer that has "
        "left knew is lost.",
    )

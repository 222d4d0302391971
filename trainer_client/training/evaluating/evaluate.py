"""`trainer-client evaluate`: a model's loss and metrics on evaluation streams, once or for each new checkpoint.

Rules: a checkpoint is read whole before it is evaluated, so training may write others meanwhile; it is evaluated on all
streams. Values are those of all samples, even if other processes evaluate some of them; if batches were given up they
are those of a share, which the line reports, and so does the exit code. Losing the loaders is an error, never an end.
TensorFlow is imported only once the loaders have let us in, so that nobody waits for it after mistyping their address.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from shared.errors import DataError, EndedError, SettingsError
from shared.quick_import import quick_import
from shared.stores.own_files import refuse_closed
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder
from trainer_client.training.evaluating.evaluation_sums import Judged, digest_of_arrays, sums_of
from trainer_client.training.runs.model_module import JobOrder
from trainer_client.training.runs.printed_lines import finished_line, judged_json, judged_line, starting_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import tensorflow as tf

    from trainer_client.feed import Feed
    from trainer_client.training.checkpoints.checkpoint_folder import Arrays
    from trainer_client.training.checkpoints.saved_tables import SavedTables
    from trainer_client.training.evaluating.evaluation_sums import EvaluationSums
    from trainer_client.training.evaluating.evaluator import Evaluator
    from trainer_client.training.runs.model_module import ModelModule

__all__ = ["EvaluateOrder", "evaluate", "models_own", "no_checkpoint"]

#: How often to look for a new checkpoint in a folder, because nothing announces one.
_LOOK_EVERY_S = 1.0
#: How often to ask meanwhile whether the loaders are there, as nothing is read that would show it.
_ASK_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOrder(JobOrder):
    """The settings of the command line."""

    streams: tuple[str, ...]
    checkpoints: Path
    #: For how long at most to go on with each new checkpoint, until training ends; None: evaluate once.
    follow_s: float | None
    #: The folder for summaries; None: write none.
    summaries: Path | None
    as_json: bool


def evaluate(order: EvaluateOrder) -> int:
    """Evaluate, and print a line for each stream and checkpoint; return the exit code.

    It is 0, or that of DataError if batches were given up. Raise DataError if there is no checkpoint, if all are
    damaged, or if a checkpoint does not fit the model; LostError if the loaders are gone; SettingsError for a stream
    for training, or for a folder, module or metrics that are unfit; ValueError for a loss or metric that Keras does not
    know by that name; and EndedError if the job ends while a single evaluation goes on. Errors of `connect`, of the
    feed, of the user's module, and of reading and writing files are passed on.
    """
    began_s = time.monotonic()
    if order.summaries is not None:
        refuse_closed(order.summaries, where="--summaries")
    with ExitStack() as stack:
        # As an evaluator, so that a stream for training refuses us before we take anybody's place.
        feeds = {
            stream: stack.enter_context(order.connect(stream, work="evaluate", rank=0)) for stream in order.streams
        }
        evaluator, attach_saved_tables = _evaluator(order.module)
        data = {stream: _dataset(order, feed) for stream, feed in feeds.items()}
        order.module.refuse_unknown_parameters()
        _print_for_people(
            order, starting_line(f"evaluating {', '.join(data)} with the checkpoints in {order.checkpoints}")
        )
        samples = checkpoints = shares = 0
        version = order.module.version(("model", "loss", "eval_metrics"))
        # The end of the job ends following as well: it is that of the training that we follow.
        with suppress(EndedError) if order.follow_s is not None else nullcontext():
            for arrays, record in _versions(order, feeds.values(), began_s):
                own, tables = models_own(arrays, record), attach_saved_tables(arrays, record)
                judged = Judged(
                    label=order.module.full_name, version=f"{version} {digest_of_arrays(own)}{tables.digest()}",
                    epoch=record["epoch"], step=record.get("step", 0),
                )  # fmt: skip
                for stream, dataset in data.items():
                    sums = sums_of(feeds[stream]._session, judged)
                    values = evaluator.evaluate(dataset, own, sums)
                    samples += int(values["rows"])
                    shares += bool(sums.given_up)
                    _report(order, stream, judged, values, sums)
                    _share(feeds[stream], judged, values, sums)
                checkpoints += 1
    why = f"{shares} of the evaluations are those of a share, as batches were given up" if shares else ""
    totals = [f"{checkpoints} checkpoints", f"{samples} samples"]
    _print_for_people(order, finished_line(totals, time.monotonic() - began_s, why))
    return DataError.exit_code if shares else 0


def _evaluator(module: ModelModule) -> tuple[Evaluator, Callable[[Arrays, dict[str, Any]], SavedTables]]:
    """Return an evaluator of the module's model, and a function that gives the model the tables of a checkpoint.

    Errors of the module are passed on, and ValueError for the name of a loss or metric that Keras does not know; the
    function raises DataError if the checkpoint has other tables.
    """
    with quick_import():
        from trainer_client.training.checkpoints.saved_tables import attach_saved_tables
        from trainer_client.training.evaluating.evaluator import Evaluator
    model = module.make("model")
    evaluator = Evaluator(model, module.find("loss"), module.make_if_there("eval_metrics") or ())
    return evaluator, partial(attach_saved_tables, model)


def _dataset(order: EvaluateOrder, feed: Feed) -> tf.data.Dataset:
    session = feed._session
    if not session.spec.evaluation:
        raise SettingsError(
            expected="a stream with evaluation = true", got="one for training", where=f"--stream {session.spec.stream}",
            remedy="Name a stream that is like the one for training, or write evaluation = true in it.",
        )  # fmt: skip
    if session.spec.producers:
        return feed.pipeline(order.module.require("dataset_pipeline"))
    return feed.dataset(**order.module.feed_keys())


# --- checkpoints ---


def _versions(order: EvaluateOrder, feeds: Iterable[Feed], began_s: float) -> Iterator[tuple[Arrays, dict[str, Any]]]:
    """Yield the newest checkpoint and, when following, each new one; raise DataError if there was none.

    Following ends with `follow_s`, or once the folder is marked as finished and its newest checkpoint was yielded.
    Checkpoints are passed over while one is evaluated, but for the newest. Raise DataError too if all are damaged,
    OSError if the folder cannot be read, and, while waiting, LostError if no coordinator answers, the error of its
    refusal, the job's end, or the error of a feed that fails or is closed.
    """
    asked_s, newest = began_s, ""
    folder = CheckpointFolder(order.checkpoints, 1)
    while True:
        # In this order: a checkpoint that was written before the mark is found by a look after it.
        finished, there = folder.is_finished(), folder.newest()
        # Those that were written while one was evaluated are passed over, but for the newest.
        is_new = there != newest
        if is_new:
            newest = there
            checkpoint = folder.read_last()
            if checkpoint is not None:
                yield checkpoint
        left_s = began_s + (order.follow_s or 0.0) - time.monotonic()
        # While one was evaluated another run may have gone on in the folder and removed the mark, so we look again.
        if left_s <= 0 or (finished and not is_new):
            break
        if time.monotonic() - asked_s > _ASK_EVERY_S:
            for feed in feeds:
                feed._session.ask_whether_served()
            asked_s = time.monotonic()
        threading.Event().wait(min(_LOOK_EVERY_S, left_s))
    if not newest:
        raise no_checkpoint(folder, is_followed=order.follow_s is not None)


def no_checkpoint(folder: CheckpointFolder, *, is_followed: bool = False) -> DataError:
    """Return the DataError for a folder without a checkpoint; `is_followed` if one was waited for."""
    remedy = (
        "Train with FeedCheckpoint into this folder, and allow more time with --max-time, if that was all that lacked."
        if is_followed
        else "Train with FeedCheckpoint into this folder, or wait for it with evaluate --follow."
    )
    return DataError(expected="a checkpoint", got="none", where=str(folder), remedy=remedy)


def models_own(arrays: Arrays, record: dict[str, Any]) -> list[Any]:
    """Return the model's values, without the optimizer's, which follow them.

    All values are the model's if the record does not say how many are.
    """
    return [arrays[str(at)] for at in range(record.get("model_variables", len(arrays)))]


# --- reports ---


def _print_for_people(order: EvaluateOrder, line: str) -> None:
    # Scripts that read JSON objects get nothing else.
    if not order.as_json:
        print(line, flush=True)


def _share(feed: Feed, judged: Judged, values: dict[str, float], sums: EvaluationSums) -> None:
    """Report the values, with their number of rows, to the coordinator, for `loader-server status`.

    Raise SettingsError for a number that is out of the protocol's bounds. Errors of `share` pass through.
    """
    means = {name: value for name, value in values.items() if name != "rows"}
    feed._session.results.share(
        means, rows=int(values["rows"]), epoch=judged.epoch, step=judged.step,
        evaluation=sums.name or f"{judged.label} {judged.version[-8:]}",
    )  # fmt: skip


def _report(order: EvaluateOrder, stream: str, judged: Judged, values: dict[str, float], sums: EvaluationSums) -> None:
    step, epoch = judged.step, judged.epoch
    if order.summaries is not None:
        # Imported late, as it brings TensorFlow.
        from trainer_client.training.runs.summaries import write_summaries

        write_summaries(order.summaries, step, {f"{stream}/{name}": value for name, value in values.items()})
    if order.as_json:
        print(judged_json(stream, step, epoch, values, given_up=sums.given_up, evaluation=sums.name), flush=True)
        return
    print(judged_line(stream, step, epoch, values, given_up=sums.given_up), flush=True)

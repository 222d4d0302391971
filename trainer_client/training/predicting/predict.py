"""`trainer-client predict`: a model's outputs for each sample of a stream, shared by any number of trainers.

Rules: the stream is in queue mode, and trainers lease its batches. A batch is reported done once its part is on disk,
so a killed trainer costs only the batch in hand. Trainers read on, epoch after epoch, until no part is missing, because
leases may have gone to another prediction, or been done in one that was abandoned. A trainer that finds no part missing
makes the output from the parts, one trainer at a time, so the output is there when any of them ends well. All predict
with the checkpoint that the first of them found.
"""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.errors import DataError, SettingsError
from shared.hashing import digest64
from shared.quick_import import quick_import
from shared.stores.own_files import refuse_closed
from trainer_client.network.trainer_log import process_log
from trainer_client.tf.element_structure import ElementStructure
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder
from trainer_client.training.evaluating.evaluate import models_own, no_checkpoint
from trainer_client.training.predicting.prediction_files import check_format, write_rows
from trainer_client.training.predicting.prediction_parts import MASKED, SAMPLE, TAG, PredictionParts
from trainer_client.training.runs.model_module import JobOrder
from trainer_client.training.runs.printed_lines import finished_line, starting_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from trainer_client.batch import Batch
    from trainer_client.feed import Feed
    from trainer_client.training.checkpoints.checkpoint_folder import Arrays
    from trainer_client.training.predicting.prediction_parts import Finished

__all__ = ["PredictOrder", "predict"]

#: The columns of our own that outputs come with.
_OWN = (SAMPLE, TAG, MASKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOrder(JobOrder):
    """The settings of the command line."""

    stream: str
    checkpoints: Path
    #: The file for the outputs; None: they go to the module's `prediction_processor`.
    output: Path | None
    as_json: bool


def predict(order: PredictOrder) -> None:
    """Predict, together with other trainers, until every sample is done, and print the totals.

    Raise SettingsError if the output's folder, the stream or the module is unfit, and a MissingLibraryError if Parquet
    cannot be written. Raise DataError if there is no whole checkpoint, if the output is of something else, or if the
    model's outputs or the samples do not fit. Errors of `connect`, of the feed, of the user's module and of writing are
    passed on.
    """
    began_s = time.monotonic()
    if order.output is not None:
        check_format(order.output)
        refuse_closed(order.output.parent, where="--output")
    with order.connect(order.stream, work="predict", rank=0) as feed:
        run = _Prediction(order, feed, _sink(order))
        finished = run.predict()
    if order.as_json:
        print(json.dumps({"stream": order.stream, "predicted_here": run.predicted, **finished}), flush=True)
        return
    place = f" in {order.output}" if order.output is not None else ""
    totals = [f"{finished['samples']} samples{place}", f"{run.predicted} of them predicted here"]
    totals += [f"{finished[MASKED]} others could not be used"] if finished[MASKED] else []
    print(finished_line(totals, time.monotonic() - began_s), flush=True)


class _Prediction:
    """One trainer's part in a prediction, which is begun or joined here.

    Raise SettingsError if the stream or the module is unfit, and DataError if there is no whole checkpoint, or if the
    output is of something else. Errors of the feed, of the user's functions and of writing are passed on.
    """

    def __init__(self, order: PredictOrder, feed: Feed, sink: PredictionParts | _Processor) -> None:
        #: How many usable samples this trainer predicted.
        self.predicted = 0
        self._session = feed._session
        self._feed = feed
        #: The keys of strings, which come out beside the outputs.
        self._strings = [field.key for field in feed._session.spec.fields if field.is_string]
        self._sink = sink
        _refuse_stream(order, feed)
        module = order.module
        structure = ElementStructure(**module.feed_keys())
        model = module.make("model")
        module.refuse_unknown_parameters()
        batches = 0
        if order.output is not None:
            batches = self._session.receiver.ask_batches(0, self._session.cursor.at.group)
        # Locked, so that of trainers that start at once the first begins, and the others find its checkpoint.
        with sink.lock():
            folder = CheckpointFolder(order.checkpoints, 1)
            name, arrays, record = sink.begun_checkpoint(folder) or _newest(folder)
            step, values = record.get("step", 0), models_own(arrays, record)
            with quick_import():
                from trainer_client.training.checkpoints.saved_tables import attach_saved_tables
                from trainer_client.training.predicting.predictor import Predictor
            tables = attach_saved_tables(model, arrays, record)
            checkpoint = {"file": name, "step": step, "digest": f"{_digest(values):016x}{tables.digest()}"}
            sink.begin({**_described(order, feed), "checkpoint": checkpoint}, batches)
        self._predictor = Predictor(model, structure, values)
        if not order.as_json:
            line = starting_line(f"predicting {order.stream} with {order.checkpoints / name}, at step {step}")
            print(line, flush=True)

    def predict(self) -> Finished:
        """Predict batches until the sink is complete, and return its counts of usable and other samples.

        Raise DataError if the checkpoint, an output or the samples do not fit, if another prediction was begun in place
        of ours, or if a part is missing or cannot be read, and SettingsError if batches lack a key of the inputs.
        Errors of the feed, of the model, of the sink's function and of writing are passed on.
        """
        # One pass need not do: a batch that another trainer leased may be missing still, and comes in a later epoch.
        while not self._sink.is_complete():
            for batch in self._feed:
                # Its part may be there already, by a trainer whose lease expired.
                if not self._sink.has(batch.number):
                    self._predict(batch)
        return self._sink.finish(write_rows)

    def _predict(self, batch: Batch) -> None:
        """Predict one batch and hand its outputs to the sink, without the rows that hold no sample.

        Raise DataError if the checkpoint does not fit the model, if an output has the name of one of our own columns or
        lacks rows, or if a sample came before in another batch or twice in this one. Raise SettingsError if the batch
        lacks a key of the inputs. Errors of asking workers for the samples' names, of the model and of the sink are
        passed on.
        """
        # A row without a sample has no tag; a sample that could not be used has one, and the weight 0.
        there = np.flatnonzero(batch["tag"] >= 0)
        samples = batch["tag"][there]
        outputs = self._predictor.predict(batch, len(batch["tag"]))
        columns: dict[str, NDArray[Any]] = {
            SAMPLE: samples.astype(np.int64),
            TAG: np.array(self._session.receiver.ask_names(samples.tolist()), np.str_),
            MASKED: batch["weight"][there] == 0,
            **{key: np.asarray(batch[key])[there] for key in self._strings},
        }
        own = list(columns)
        columns |= {name: output[there] for name, output in outputs.items()}
        if len(columns) != len(own) + len(outputs):
            raise DataError(
                expected=f"outputs with names other than {', '.join(own)}", got=", ".join(outputs),
                where="the model", remedy="Give the model's outputs other names.",
            )  # fmt: skip
        self.predicted += int(np.count_nonzero(~columns[MASKED]))
        self._sink.write(batch.number, columns)


def _refuse_stream(order: PredictOrder, feed: Feed) -> None:
    """Raise SettingsError for a stream that no file of outputs can be made of.

    It is one for training, a pipeline, one with several samples in a row (packing), or one whose strings have the name
    of a column that each file has.
    """
    session = feed._session
    keys = {field.key for field in session.spec.fields}
    got = ""
    if not session.spec.evaluation:
        got = "one for training"
    elif session.spec.producers:
        got = "a pipeline, whose batches do not say which samples they hold"
    elif any(f"{key}_segment" in keys and f"{key}_position" in keys for key in keys):
        got = "one with several samples in a row (packing)"
    if taken := sorted(field.key for field in session.spec.fields if field.is_string and field.key in _OWN):
        raise SettingsError(
            expected=f"strings with names other than {', '.join(_OWN)}, which outputs come with", got=", ".join(taken),
            where=f"--stream {order.stream}", remedy='Give them another key, as in strings = { name = "…" }.',
        )  # fmt: skip
    if got:
        raise SettingsError(
            expected="a stream with evaluation = true, and one sample in each row", got=got,
            where=f"--stream {order.stream}", remedy="Name a stream that is like it, with these settings changed.",
        )  # fmt: skip


# --- what is predicted ---


def _described(order: PredictOrder, feed: Feed) -> dict[str, Any]:
    spec, group = feed._session.spec, feed._session.cursor.at.group
    return {
        "model": order.module.full_name,
        "parameters": dict(order.module.parameters),
        "source text": order.module.digest(),
        "job": spec.job,
        "stream": spec.stream,
        "plan": f"{spec.plan_digest}, groups of {group}",
    }


def _digest(values: list[NDArray[Any]]) -> int:
    shapes = json.dumps([(value.shape, value.dtype.str) for value in values]).encode()
    return digest64(shapes + b"".join(value.tobytes() for value in values))


# --- where outputs go ---


def _sink(order: PredictOrder) -> PredictionParts | _Processor:
    """Return where outputs go: to parts, from which the file is made, or to the user's function.

    Without a file and a function, log a warning: outputs go nowhere. Raise SettingsError if the module cannot be
    imported, or if its `prediction_processor` is no function, or is named and not there.
    """
    if order.output is not None:
        return PredictionParts(order.output)
    processor = order.module.find_function("prediction_processor")
    if processor is None:
        process_log().warning(
            "outputs go nowhere: name a file with --output, or write a prediction_processor in the model's module",
            module=order.module.name,
        )
    return _Processor(processor)


class _Processor:
    """The sink without `--output`: outputs go to the user's function, batch by batch.

    Nothing is kept here, so only the coordinator knows which batches are done.
    """

    def __init__(self, processor: Callable[[dict[str, NDArray[Any]]], object] | None) -> None:
        self._processor = processor
        self._finished: Finished = {"samples": 0, MASKED: 0}
        self._asked = 0

    def lock(self) -> nullcontext[None]:
        """Return a context that locks nothing: this sink shares nothing with other trainers."""
        return nullcontext()

    def begun_checkpoint(self, _folder: CheckpointFolder) -> tuple[str, Arrays, dict[str, Any]] | None:
        """Return None: this sink knows of no prediction that was begun before."""
        return None

    def begin(self, of: dict[str, Any], batches: int) -> None:
        """Do nothing: this sink keeps no record."""

    def is_complete(self) -> bool:
        """Return False when first asked and True from then on: it takes one epoch, or what others left of it."""
        self._asked += 1
        return self._asked > 1

    def has(self, _number: int) -> bool:
        """Return False: every batch that is leased has to be predicted."""
        return False

    def write(self, _number: int, columns: dict[str, NDArray[Any]]) -> None:
        """Count the samples of a batch, and hand the usable ones, if any, to the processor, if there is one.

        The column that marks unusable samples is taken out of `columns`. An error of the processor is passed on.
        """
        # If this trainer dies before the batch is reported done, another hands it over again.
        usable = ~columns.pop(MASKED)  # users get the outputs of usable samples only, so the column says nothing
        self._finished["samples"] += int(np.count_nonzero(usable))
        self._finished[MASKED] += int(np.count_nonzero(~usable))
        if self._processor is not None and usable.any():
            self._processor({name: column[usable] for name, column in columns.items()})

    def finish(self, _write_rows: object) -> Finished:
        """Return how many usable and how many other samples this trainer alone has had; nothing is written."""
        return self._finished


def _newest(folder: CheckpointFolder) -> tuple[str, Arrays, dict[str, Any]]:
    """Return file name, arrays and record of the newest intact checkpoint.

    Raise DataError if there is no checkpoint, or if all are damaged, and OSError if the folder cannot be read.
    """
    checkpoint = folder.read_newest_whole()
    if checkpoint is None:
        raise no_checkpoint(folder)
    return checkpoint

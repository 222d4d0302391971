"""Parts of a prediction in progress: a folder beside the output, with a file for each batch.

Rules, so that any number of trainers may write here, and be killed at any moment:
- A part is there whole or not at all: it is written under another name, synced and renamed. A batch that two trainers
  predicted has one part.
- The folder alone says which batches are done. Leases only divide the work, so a coordinator that forgot them, or gave
  some to another prediction, costs time and no sample.
- The record says what the outputs were made from: a prediction of anything else into the same output is refused.
- The trainer that finishes removes parts that others are still writing. For them that is no error, and they remove what
  they write later.
- A sample is in one batch only; a second batch with it is refused at once, not after everything was predicted.
- Beginning and finishing hold a lock, which the kernel releases when its holder dies.

It must not know TensorFlow, feeds, or the format of the output.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shared.errors import DataError
from shared.stores.own_files import draft_of, open_own, replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import IO

    from numpy.typing import NDArray

    from trainer_client.training.checkpoints.checkpoint_folder import Arrays, CheckpointFolder

__all__ = ["MASKED", "SAMPLE", "TAG", "Finished", "PredictionParts", "came_again", "text_of"]

#: The columns that each part has beside the outputs: the sample's number and its name in the source, and whether it
#: could not be used.
SAMPLE, TAG, MASKED = "sample", "tag", "masked"

#: What closes each text in a part, because numpy drops zeros at the end of one.
_CLOSE = b"\x01"

_FORMAT = 1
_RECORD = "prediction.json"

#: How much memory the rows of one block may take, while they are put in order.
_BLOCK_BYTES = 2**26

Finished = dict[str, int]


class PredictionParts:
    """The parts from which `output` is made."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.folder = output.with_name(output.name + ".parts")
        #: Id of the prediction that was begun or joined. Its parts have it in their names, so older ones do not count.
        self._id = ""
        #: For each sample, 1 + the number of the batch in which it came here; 0: it has not come.
        self._batch_of = np.zeros(0, np.int32)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock in the block, so that nobody else begins or ends this prediction meanwhile.

        Make the folder if it is not there, and wait for another holder. Raise MachineError if something else is in the
        place of the lock's file, and OSError if the system refuses to make the folder or to open the file.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = open_own(self.folder / "lock", os.O_RDWR | os.O_CREAT)
        with open(lock, "rb") as file:  # noqa: PTH123 - of a descriptor
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    # --- what is predicted ---

    def begun(self) -> dict[str, Any]:
        """Return what the outputs are made from, as given to `begin`.

        It is empty if nothing was begun, or if the prediction is finished and its output is gone.
        """
        record = self._read()
        return {} if record.get("finished") and not self.output.exists() else record.get("of", {})

    def begin(self, of: Mapping[str, Any], batches: int) -> None:
        """Join the prediction that is made from `of`, or begin it.

        Raise DataError if there is one of something else, or an output that no prediction here was writing. A new
        prediction removes the parts of earlier ones. The caller holds the lock; OSError of writing the record is passed
        on.
        """
        there = self.begun()
        for name, value in of.items():
            if there and there.get(name) != value:
                raise self._is_of_something_else(name, value, there.get(name))
        if there:
            self._id = self._read()["id"]
            return
        if self.output.exists():
            raise DataError(
                expected="a name that is free", got="a file that no prediction here was writing",
                where=f"--output {self.output}", remedy="Name another output, or remove the file.",
            )  # fmt: skip
        self._remove_parts()
        self._id = secrets.token_hex(4)
        self._write({"format": _FORMAT, "id": self._id, "of": dict(of), "batches": batches})

    def begun_checkpoint(self, folder: CheckpointFolder) -> tuple[str, Arrays, dict[str, Any]] | None:
        """Return file name, arrays and record of the checkpoint that the prediction in progress began with, or None.

        It is None if nothing was begun, or the output is written. Raise DataError if the checkpoint is gone or damaged:
        all outputs have to be of one.
        """
        begun = self.begun()
        if not begun or self.finished() is not None:
            return None
        name = begun["checkpoint"]["file"]
        return name, *folder.read(name, otherwise=f"remove {self.folder} to begin anew")

    def finished(self) -> Finished | None:
        """Return the output's counts of usable and other samples, or None until it is written.

        Raise DataError if another prediction was begun in place of ours.
        """
        return cast("Finished | None", (self._own() if self._id else self._read()).get("finished"))

    def _own(self) -> dict[str, Any]:
        record = self._read()
        if record.get("id") != self._id:
            raise DataError(
                expected="the prediction that was begun", got="another, begun in its place", where=str(self.folder),
                remedy="Leave the output and its parts in place until all trainers have ended.",
            )  # fmt: skip
        return record

    def _read(self) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads((self.folder / _RECORD).read_text("utf-8"))
        except FileNotFoundError:
            return {}
        return record

    def _write(self, record: Mapping[str, Any]) -> None:
        with replacing(self.folder / _RECORD) as file:
            file.write(json.dumps(record, indent=1).encode())

    def _is_of_something_else(self, name: str, expected: Any, got: Any) -> DataError:
        return DataError(
            expected=f"outputs of {name} {_as_text(expected)}",
            got=f"some of {_as_text(got)} ({self.folder / _RECORD})", where=f"--output {self.output}",
            remedy=f"Name another output; or remove {self.output.name} and {self.folder.name} to begin anew.",
        )  # fmt: skip

    # --- parts ---

    def has(self, number: int) -> bool:
        """Return whether this batch is predicted: its part is there, or the output is written.

        Raise DataError, if there is no part, if another prediction was begun in place of ours.
        """
        return self._part(number).exists() or self.finished() is not None

    def is_complete(self) -> bool:
        """Return whether every batch is predicted, by this trainer or another.

        Raise DataError if another prediction was begun in place of ours.
        """
        return self.finished() is not None or not self.missing()

    def missing(self) -> list[int]:
        """Return the numbers of the batches that have no part yet, rising.

        Raise DataError if another prediction was begun in place of ours.
        """
        there = {path.stem for path in self.folder.glob("*.npy")}
        return [number for number in range(self._own()["batches"]) if self._part(number).stem not in there]

    def write(self, number: int, columns: Mapping[str, NDArray[Any]]) -> None:
        """Write the part of one batch; each column has a value for each of its samples, also of `str` objects.

        Raise DataError if a sample came in another batch, or twice in this one. If the prediction is over meanwhile,
        nothing is left; otherwise raise OSError if the part cannot be written.
        """
        self._refuse_repeated(number, columns[SAMPLE])
        stored = {name: _closed(column) for name, column in columns.items()}
        dtype = [(name, column.dtype, column.shape[1:]) for name, column in stored.items()]
        rows = np.empty(len(columns[SAMPLE]), dtype)
        for name, column in stored.items():
            rows[name] = column
        part = self._part(number)
        try:
            with replacing(part) as file:
                np.save(file, rows, allow_pickle=False)
        except FileNotFoundError:  # the trainer that finished has removed our draft
            if not self._is_over():
                raise
        # Our rename may have come after the parts were removed: nobody else would remove this one.
        if self._is_over():
            part.unlink(missing_ok=True)

    def _is_over(self) -> bool:
        """Return whether this prediction is over: finished, or another was begun in its place.

        Nobody reads its parts any more then.
        """
        record = self._read()
        return record.get("id") != self._id or "finished" in record

    def _refuse_repeated(self, number: int, samples: NDArray[np.int64]) -> None:
        """Raise DataError for a sample that came in another batch, or twice in this one; else note all as of this one.

        The same batch may come again, if its lease expired.
        """
        more = int(samples.max(initial=-1)) + 1 - len(self._batch_of)
        if more > 0:
            # At least doubled, so that rising sample numbers do not copy the array for each batch.
            self._batch_of = np.pad(self._batch_of, (0, max(more, len(self._batch_of))))
        before, ordered = self._batch_of[samples], np.sort(samples)
        elsewhere = samples[(before != 0) & (before != number + 1)]
        for sample in (*elsewhere[:1], *ordered[1:][np.diff(ordered) == 0][:1]):
            raise came_again(int(sample), f"batch {number}")
        self._batch_of[samples] = number + 1

    def _part(self, number: int) -> Path:
        return self.folder / f"{number:08d}-{self._id}.npy"

    # --- the end ---

    def rows(self) -> Iterator[NDArray[np.void]]:
        """Yield the rows of all parts in the order of their samples, a block in memory at a time.

        Raise DataError for a part that is missing or cannot be read, or if another prediction was begun in place of
        ours.
        """
        paths = [self._part(number) for number in range(self._own()["batches"])]
        samples, widest = [], 1
        for path in paths:
            part = _load(path)
            samples.append(np.array(part[SAMPLE], np.int64))
            widest = max(widest, part.dtype.itemsize)
        # Only the sample numbers are sorted in memory; rows are gathered from the mapped files, block by block.
        order = np.argsort(np.concatenate([*samples, np.empty(0, np.int64)]), kind="stable")
        block = max(1, _BLOCK_BYTES // widest)
        ends = np.cumsum([len(some) for some in samples])
        for start in range(0, len(order), block):
            yield from _gather(paths, ends, order[start : start + block])

    def finish(self, write_rows: Callable[[IO[bytes], str, Iterator[NDArray[np.void]]], Finished]) -> Finished:
        """Write the output by `write_rows` and remove the parts, unless another trainer has; return the counts.

        The function gets the output's file, its suffix and all rows. A trainer that is making the output is waited for.
        Raise DataError if another prediction was begun in place of ours, and errors of `lock`, `rows` and the function:
        then there is no output. OSError of writing is passed on.
        """
        with self.lock():
            finished = self.finished()
            if finished is not None:
                return finished
            with replacing(self.output, draft_of(self.folder / "output")) as file:
                finished = write_rows(file, self.output.suffix, self.rows())
            # The output comes before the record: a trainer that is killed in between leaves a prediction that is not
            # finished, which the next one finishes again from the same parts.
            self._write({**self._own(), "finished": finished})
            self._remove_parts()
        return finished

    def _remove_parts(self) -> None:
        for path in [*self.folder.glob("*.npy"), *self.folder.glob("*.tmp*")]:
            path.unlink(missing_ok=True)


def came_again(sample: int, where: str) -> DataError:
    """Return the DataError for a sample that a stream's epoch has twice; `where` is where it came again."""
    return DataError(
        expected="each sample once", got=f"sample {sample} again", where=where,
        remedy="Predict on a stream whose samples come once in each epoch: one that is neither mixed nor packed.",
    )  # fmt: skip


def _closed(column: NDArray[Any]) -> NDArray[Any]:
    """Return texts and bytes of a column as bytes that a byte closes, and any other column as it is."""
    if column.dtype == object:
        return np.array([text.encode() + _CLOSE for text in column.ravel()], np.bytes_).reshape(column.shape)
    return np.char.add(column, _CLOSE) if column.dtype.kind == "S" else column


def text_of(closed: bytes) -> str:
    """Return a text of a part, with replacements for bytes that are not UTF-8; one that nothing closes is as it is."""
    return closed.removesuffix(_CLOSE).decode("utf-8", "replace")


def _load(path: Path) -> NDArray[np.void]:
    try:
        part: NDArray[np.void] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            expected="a part of a prediction", got=str(error), where=str(path),
            remedy="Remove it and run the command again: this batch is predicted again.",
        ) from error  # fmt: skip
    return part


def _gather(paths: Sequence[Path], ends: NDArray[np.int64], places: NDArray[np.int64]) -> Iterator[NDArray[np.void]]:
    """Yield the rows at these places, which count over all parts; each part is opened once.

    Raise DataError for a part that cannot be read.
    """
    part_of = np.searchsorted(ends, places, side="right")
    found: dict[int, NDArray[np.void]] = {}
    by_part = np.argsort(part_of, kind="stable")
    for some in np.split(by_part, np.flatnonzero(np.diff(part_of[by_part])) + 1):
        at = int(part_of[some[0]])
        part = _load(paths[at])
        begin = int(ends[at]) - len(part)
        found.update(zip(some.tolist(), part[places[some] - begin], strict=True))
    for place in range(len(places)):
        yield found[place]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

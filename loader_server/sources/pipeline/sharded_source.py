"""Base class of sources of batches that `tf.data` makes in shards.

Batch n is element n div S of shard n mod S, where S is the setting `producers`; so what a batch holds depends on the
job alone, not on the number of workers. Elements come in order only: if a shard loses its worker, another worker makes
the shard again from its beginning, and the elements have to equal those made first. The number of batches in an epoch,
and the size of the largest, must be known before the epoch begins. So indexing runs each shard of epoch 0 once, and the
index keeps the number of elements, and the size and digest of each.

Rules: TensorFlow is imported only where shards are run: in workers, and in separate processes while indexing.
Everything else uses the index.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from loader_server.installed import version_of
from loader_server.sources.batch_columns import shown_axes
from loader_server.sources.pipeline.element_check import ElementCheck, FirstDigests
from loader_server.sources.pipeline.shard_run import PipelineOrder, ShardRun, import_tensorflow
from loader_server.sources.source import Found, Indexed, Inventory
from loader_server.sources.whole_source import WholeSource
from shared.errors import DataError
from shared.hashing import fingerprint
from shared.logs import Log
from shared.pipelines.element_values import ElementValue, digest_of, fields_of_element, flat_values
from shared.settings.parsers import byte_count, choice, setting, whole
from shared.wire.batch_layout import BucketShape, Field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Flat = Mapping[str, NDArray[np.generic]]

__all__ = ["ShardReader", "ShardSettings", "ShardedSource"]

#: Factor by which values may be larger in later epochs than in epoch 0: rows may be shuffled before they are padded.
_ROOM = 2
#: Runs of one shard that are kept open: for the current epoch, and for the next one, which is asked for ahead.
_EPOCHS_OPEN = 2

#: Limit for the elements that a reader keeps.
_KEPT_BYTES = 128 * 2**20
#: Elements that are kept whatever their size: the one being handed out, and the one before.
_LEAST_KEPT = 2
_LOG_EVERY_S = 10.0
#: Making fewer than this again is not logged: it happens when several trainers ask side by side.
_WORTH_TELLING = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
    """Settings of a stream whose batches come from shards."""

    #: A setting, and not the number of workers, so that a batch is the same with any fleet.
    producers: int = setting(
        whole(1, 4096), "how many shards the data is made in; they are divided among workers", default=1
    )
    elements: int = setting(
        whole(0), "the most elements of a shard in any epoch; 0: as many as were counted in the first", default=0
    )
    largest: int = setting(
        byte_count, "the most bytes of a value; left out, twice the largest of the first epoch", default=0
    )
    replay: str = setting(
        choice("exact", "approximate"),
        "whether a shard that is made again has to be the same, or the job stops",
        default="exact",
    )


class ShardedSource(WholeSource):
    """Base of sources whose batches are the elements of shards.

    Index columns: for each element of epoch 0 its shard, ordinal and digest, and the length of each value when flat.
    """

    piece_rows: ClassVar[int] = 1
    settings: ShardSettings

    _values: tuple[ElementValue, ...] = ()

    def __init__(self, settings: ShardSettings, base: Any) -> None:
        super().__init__(settings, base)
        self._lock = threading.Lock()
        #: By shard and epoch, those of a shard in the order in which they were made.
        self._readers: dict[tuple[int, int], ShardReader] = {}

    @property
    def producers(self) -> int:
        """Return the number of shards, from the settings."""
        return self.settings.producers

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the fields in which an element crosses; none before there is an index, because only a run tells."""
        # Flat, with the shape beside it: a batch's layout has one axis that varies, and an element may have several.
        return fields_of_element(self._values)

    @property
    def where(self) -> str:
        """Return the data set's name in messages; raise NotImplementedError here: each kind of source overrides it."""
        raise NotImplementedError

    @property
    def made_of(self) -> str:
        """Return a fingerprint of everything that decides the elements, apart from files.

        Each kind of source overrides this, which raises NotImplementedError here.
        """
        raise NotImplementedError

    @property
    def order(self) -> PipelineOrder:
        """Return what all runs have in common; raise NotImplementedError here: each kind of source overrides it."""
        raise NotImplementedError

    def _found_paths(self) -> list[str]:
        """Return the files whose change makes another index; none unless a source knows some."""
        return []

    # --- while an index is made ---

    def survey(self) -> Inventory:
        """Return one piece for each shard; raise a DataError if a file that is watched is missing.

        Raise a ReadError if a store cannot be asked; errors of `made_of` and of `_found_paths` pass, and a
        SettingsError if a store's library is missing.
        """
        return Inventory(
            total=self.producers,
            rows_unknown=True,
            pieces=lambda _: iter(range(self.producers)),
            origin=self.files.origin(self._found_paths()),
            about={"made_of": self.made_of},
        )

    def probe(self, piece: int) -> Found:
        """Run a shard of epoch 0, and note the size and digest of each element; nothing if it has none.

        Raise a DataError if the shard has more than `elements`, or the user's code fails; raise a SettingsError if
        TensorFlow is missing or the pipeline cannot be run in shards. Errors of `order` pass, and Stoker's own that the
        user's code raises.
        """
        # The length of an epoch has to be known before it begins, and slots need room for the largest element. Making
        # epoch 0 once here, in another process than the workers', also shows what is not deterministic.
        run = ShardRun(self.order, 0, piece)
        flattened = [value for value in run.values if value.flattened]
        columns: dict[str, list[int]] = {name: [] for name in ("shard", "ordinal", "digest")}
        columns |= {f"steps_{place}": [] for place in range(len(flattened))}
        while (element := run.next_element()) is not None:
            flat = flat_values(run.values, element)
            columns["shard"].append(piece)
            columns["ordinal"].append(len(columns["ordinal"]))
            columns["digest"].append(digest_of(flat))
            for place, value in enumerate(flattened):
                columns[f"steps_{place}"].append(len(flat[f"{value.key}:values"]))
            self._refuse_more(piece, len(columns["ordinal"]))
        ordinals, values = columns["ordinal"], json.dumps([asdict(value) for value in run.values])
        return Found(
            # Unique row numbers that rise from shard to shard, although no shard knows how long those before it are.
            rows=[piece << 40 | ordinal for ordinal in ordinals],
            numbers=columns,
            # Written once a shard: a column needs an entry for each row, but the empty ones cost next to nothing.
            strings={"values": ["" if ordinal else values for ordinal in ordinals]},
        )

    def _refuse_more(self, shard: int, found: int) -> None:
        """Raise a DataError if a shard has more elements than the setting allows."""
        if self.settings.elements and found > self.settings.elements:
            raise DataError(
                expected=f"at most {self.settings.elements} elements in a shard (elements)",
                got="more",
                where=f"{self.where}, shard {shard} of epoch 0",
                remedy="Raise elements, or leave it out.",
            )

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index.

        Raise a DataError if what `made_of` covers, a file's size or a remote one's version has changed since it was
        made, or a file is gone; raise what `made_of` raises, a ReadError if a store cannot be asked, or a SettingsError
        if its library is missing.
        """
        self.files.refuse_changed(indexed.origin, indexed.place)
        if indexed.about["made_of"] != self.made_of:
            raise DataError(
                expected="the code, seed and base that the index was made with",
                got="others",
                where=f"{self.where}, index {indexed.place}",
                remedy="The pipeline has changed, so its batches may have: run loader-server index.",
            )
        self.indexed = indexed
        self._values = tuple(
            ElementValue(value["key"], value["dtype"], tuple(value["shape"]))
            for value in json.loads(indexed.strings["values"][0])
        )
        self.elements = self.settings.elements or int(indexed.numbers["ordinal"].max()) + 1
        self.largest = BucketShape(rows=1, lengths=self._most_steps())
        self._check = ElementCheck(
            where=self.where,
            most_steps=self.largest.lengths,
            exact=self.settings.replay == "exact",
            shards=indexed.numbers["shard"],
            digests=indexed.numbers["digest"],
            first=FirstDigests(indexed.place / "made_first", fingerprint(indexed.fingerprint, str(self.versions))),
        )

    def _most_steps(self) -> dict[str, int]:
        """Return the most entries that each value may have once flat, by the key of its field.

        That is how many fit into the setting `largest`; if that is 0 or less than one entry, twice the most of epoch 0,
        and at least 1.
        """
        steps = {}
        for place, value in enumerate(value for value in self._values if value.flattened):
            step_bytes = int(np.prod(value.fixed)) * np.dtype(value.dtype).itemsize
            most = _ROOM * int(self.indexed.numbers[f"steps_{place}"].max())
            steps[f"{value.key}:values"] = max(self.settings.largest // max(step_bytes, 1) or most, 1)
        return steps

    def begin_making(self) -> None:
        """Import TensorFlow and the user's function, which takes seconds; raise a SettingsError if that fails.

        Raise what `order` raises, such as a DataError if what the pipeline reads cannot be opened.
        """
        import_tensorflow()
        _ = self.order

    def make_batch(self, epoch: int, number: int, begin: Callable[[int], None]) -> Mapping[str, NDArray[Any]] | None:
        """Return a batch's element in the form in which it crosses, or None if its shard has ended.

        `begin` is called with the number of each batch made on the way there. Any thread may call this. Raise a
        DataError if the user's code fails, or an element is too large, holds other values than while indexing, or
        differs from its first making; or if the shard has too many elements. Raise a SettingsError if the pipeline
        cannot be run; errors of `begin` and `order` pass, and Stoker's own that the user's code raises.
        """
        ordinal, shard = divmod(number, self.producers)
        if ordinal >= self.elements:
            return None
        return self._reader(epoch, shard).element(ordinal, lambda at: begin(at * self.producers + shard))

    def _reader(self, epoch: int, shard: int) -> ShardReader:
        """Return the reader of a shard; a reader for a new epoch replaces the oldest of the same shard beyond two."""
        with self._lock:
            key = (shard, epoch)
            if key not in self._readers:
                others = [other for other in self._readers if other[0] == shard]
                for old in others[: len(others) + 1 - _EPOCHS_OPEN]:
                    del self._readers[old]
                self._readers[key] = self._new_reader(epoch, shard)
            return self._readers[key]

    def _new_reader(self, epoch: int, shard: int) -> ShardReader:
        """Return a reader whose shard starts when the first element is asked for, and whose elements are checked."""
        return ShardReader(
            lambda: self._started(epoch, shard),
            lambda ordinal, flat: self._check.check(epoch, shard, ordinal, flat),
            elements=self.elements,
            where=f"{self.where}, shard {shard} of epoch {epoch}",
        )

    def _started(self, epoch: int, shard: int) -> ShardRun:
        """Start a run and return it.

        Raise a DataError if its elements hold other values than during indexing, or the user's code fails; a
        SettingsError if TensorFlow is missing or the pipeline cannot be run in shards. Errors of `order` pass.
        """
        run = ShardRun(self.order, epoch, shard)
        if run.values != self._values:
            raise DataError(
                expected=f"elements of {_shown(self._values)}, as while indexing",
                got=_shown(run.values),
                where=f"{self.where}, shard {shard} of epoch {epoch}",
                remedy="Run loader-server index; and let keys, dtypes and ranks not depend on epoch or shard.",
            )
        return run

    @property
    def lengths(self) -> dict[str, NDArray[np.int64]]:
        """Return no lengths: batches are not planned."""
        return {}

    def place(self, sample: int) -> tuple[str, int]:
        """Return the data set's name, and the number of the batch."""
        return self.where, sample

    def name(self, sample: int) -> str:
        """Return the element and shard that a batch is."""
        ordinal, shard = divmod(sample, self.producers)
        return f"{self.where}, element {ordinal} of shard {shard}"

    @property
    def versions(self) -> dict[str, str]:
        """Return TensorFlow's version, because another one may shuffle differently; nothing if it is not installed."""
        for name in ("tensorflow", "tensorflow-cpu"):
            try:
                return {"tensorflow": version_of(name)}
            except PackageNotFoundError:
                continue
        return {}

    def close(self) -> None:
        """End all runs; a shard whose batch is asked for later begins anew."""
        self._readers.clear()
        super().close()


def _shown(values: tuple[ElementValue, ...]) -> str:
    """Return keys, dtypes and shapes as text for messages."""
    return "; ".join(f'"{value.key}" {value.dtype} [{shown_axes(value.shape)}]' for value in values)


class ShardReader:
    """Elements of a shard of one epoch by ordinal; `elements` is the most that the shard may have.

    They are made in order, and kept within a limit in bytes, because several trainers read side by side. For one that
    is no longer kept, the shard is run again from its beginning, which costs everything before it, and is logged. Every
    element that is made is handed to `check`. Any thread may ask; one at a time makes.
    """

    def __init__(
        self, start: Callable[[], ShardRun], check: Callable[[int, Flat], None], *, elements: int, where: str
    ) -> None:
        self._start = start
        self._check = check
        self._elements = elements
        self._where = where
        self._lock = threading.Lock()
        self._run: ShardRun | None = None
        self._ended = False
        #: The last elements made, and the ordinal of the next one to make.
        #: Kept because several trainers read side by side: the one behind would have the shard made from its beginning.
        self._kept: deque[Flat] = deque()
        self._kept_bytes = 0
        self._next = 0

    def element(self, ordinal: int, begin: Callable[[int], None]) -> Flat | None:
        """Return the element in the form in which it crosses the network, or None if the shard ends before it.

        `begin` is called with the ordinal of each element made on the way. Raise a DataError if the user's code fails,
        an element does not pass the check, or the shard has too many; errors of `start` and `begin` pass.
        """
        with self._lock:
            if self._run is None or ordinal < self._next - len(self._kept):
                self._begin_anew(ordinal)
            progress_s = time.monotonic() + _LOG_EVERY_S
            while ordinal >= self._next and not self._ended:
                begin(self._next)
                self._make_next()
                if time.monotonic() > progress_s:
                    progress_s += _LOG_EVERY_S
                    Log("worker").info("on the way in a shard", shard=self._where, at=self._next, to=ordinal)
            # A negative index: elements are counted back from the next one to make.
            return self._kept[ordinal - self._next] if ordinal < self._next else None

    def _begin_anew(self, ordinal: int) -> None:
        """Start the shard from its beginning, and log it if it costs much; errors of `start` pass."""
        if ordinal >= _WORTH_TELLING:
            Log("worker").info("a shard is made from its beginning", shard=self._where, to=ordinal)
        self._run = self._start()
        self._kept.clear()
        self._kept_bytes = self._next = 0
        self._ended = False

    def _make_next(self) -> None:
        """Make the next element, or note that there is none; after an error the shard begins anew.

        Raise a DataError if the user's code fails, the element does not pass the check, or the shard has too many.
        """
        run, self._run = self._run, None  # given back below, unless anything raises
        assert run is not None
        element = run.next_element()
        if element is None:
            self._ended = True
        else:
            flat = flat_values(run.values, element)
            self._check(self._next, flat)
            # At the last element that was planned for, look for another: one more is an error, never dropped silently.
            if self._next + 1 == self._elements and run.next_element() is not None:
                raise self._too_many()
            self._keep(flat)
            self._next += 1
        self._run = run

    def _keep(self, flat: Flat) -> None:
        """Keep an element, and drop the oldest elements beyond the limit in bytes, but never the last two."""
        self._kept.append(flat)
        self._kept_bytes += _nbytes(flat)
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > _LEAST_KEPT:
            self._kept_bytes -= _nbytes(self._kept.popleft())

    def _too_many(self) -> DataError:
        """Return the error for a shard with more elements than planned."""
        return DataError(
            expected=f"at most {self._elements} elements, as many as the longest shard had while indexing",
            got="more",
            where=self._where,
            remedy="If the number differs from epoch to epoch, write the most that there may be: elements = …",
        )


def _nbytes(flat: Flat) -> int:
    return sum(array.nbytes for array in flat.values())

"""The interface of a format: what a source of samples is, what it gives to the index, and what it gets back.

A source is one class that owns everything about its format. It has two lives. While an index is made, `survey` lists
the data in pieces, and `probe` looks at one piece, in any process, and returns plain columns and bad rows. Later `open`
gets the columns back, and samples are read by number, from 0 to `samples - 1`.

Rules: making a source opens nothing; reading is input and output only and any thread may do it, decoding is CPU only
and one thread does it, so that threads can read ahead. Instances are never pickled: another process gets the settings
and makes its own. This module knows no format, and no format knows another.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from loader_server.sources.blame import undecoded
from loader_server.sources.files.opening import Files
from loader_server.sources.files.presence import IndexedFiles
from loader_server.sources.remote.urls import is_url
from loader_server.sources.sample_limits import LARGEST_SAMPLE
from shared.errors import StokerError, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.batch_columns import Columns
    from loader_server.sources.pipeline.base_samples import BaseSamples
    from shared.wire.batch_layout import Field

__all__ = [
    "SEGMENT_SAMPLES",
    "BadRow",
    "Chunk",
    "Found",
    "Indexed",
    "Inventory",
    "OfJob",
    "Source",
    "decoded",
]

#: Samples in a segment, unless the format overrides `segments`.
SEGMENT_SAMPLES = 4096
_MOST_DETAIL = 500


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is not indexed: its file and line, a one-word reason, and the detail.

    The detail may quote the row, so it is cut to 500 characters. `remedy` is set only if it says more than "mend the
    row".
    """

    where: str
    line: int
    reason: str
    detail: str
    remedy: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", shortened(self.detail, _MOST_DETAIL))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What there is to index, before any row is probed.

    `pieces` yields the rows in order, in pieces of at most the given number of rows; a piece can be pickled. `origin`
    describes the files that the index is made from, so that a later change is noticed. `about` holds further facts;
    they are written as JSON and enter the index's fingerprint.
    """

    total: int
    #: Whether `total` counts pieces, because the number of rows is not known before they are looked at.
    rows_unknown: bool = False
    pieces: Callable[[int], Iterator[Any]]
    origin: list[dict[str, Any]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a piece holds: one entry for each good row in each column, and the bad rows.

    `rows` has the number of each good row among all rows, and the keys of `bad` are the numbers of the bad ones.
    Numbers rise and do not depend on how rows are cut into pieces. Every piece has the same columns.
    """

    rows: Sequence[int]
    numbers: Mapping[str, Sequence[int] | NDArray[np.int64]]
    strings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    bad: Mapping[int, BadRow] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """What the index knows about a source's samples: the columns of `probe`, and the facts of `survey`.

    `strings` are read like lists; `place` is the index's folder, for messages.
    """

    samples: int
    numbers: Mapping[str, NDArray[np.int64]]
    strings: Mapping[str, Any]
    origin: list[dict[str, Any]] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    place: Path = Path()


@dataclass(frozen=True, slots=True, kw_only=True)
class OfJob:
    """What a source may need to know about its job: its stream, the seed, the job file, and the job's state folder."""

    stream: str = ""
    seed: int = 0
    path: Path | None = None
    state: Path | None = None
    #: The most bytes that a sample may have once decoded.
    largest_sample: int = LARGEST_SAMPLE
    #: Whether recordings are cut, so that none is decoded whole.
    cuts: bool = False
    #: The keys whose strings come with batches, so that the index has them.
    strings: tuple[str, ...] = ()
    #: Opens another stream of the job by its name. A function of a module, so that it can be pickled.
    open_base: Callable[[OfJob, str], BaseSamples] | None = None

    @property
    def largest_indexed(self) -> int:
        """Return the decoded bytes allowed for an indexed recording; 0, no limit, if recordings are cut first."""
        return 0 if self.cuts else self.largest_sample

    @property
    def table(self) -> str:
        """Return the job file's path and the stream's table in it, as messages name them."""
        return f"{self.path}, [streams.{self.stream}]"

    @property
    def graph(self) -> Path:
        """Return the path of the file that holds the graph sent by a trainer for this stream."""
        return (self.state or Path()) / "graphs" / f"{self.stream}.graph"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of a long sample: steps `start` to before `stop` of the values named by `keys`."""

    sample: int
    start: int
    stop: int
    keys: tuple[str, ...]


class Source:
    """Random access to samples by number.

    A format defines `Settings`, `fields`, `survey`, `probe` and `decode`; `read` if samples are stored as bytes, and
    `name` if samples have names; and it overrides any other method that it can do better.
    """

    #: Its settings: a frozen dataclass whose fields are declared with `shared.settings.parsers.setting`.
    Settings: ClassVar[type[Any]]
    #: Rows that a process probes at a time: some tens of milliseconds of work.
    piece_rows: ClassVar[int] = 256
    #: The same, if each row is also read, decoded and transformed to measure its length.
    measured_rows: ClassVar[int] = 16
    #: Whether samples can be read while indexing, as undeclared transforms require.
    measurable: ClassVar[bool] = True
    #: Whether pieces are probed only in other processes, because probing leaves things in a process that must not be
    #: there when it forks.
    apart: ClassVar[bool] = False
    #: Columns that differ between copies of one data set, and so are not part of the fingerprint.
    local_columns: ClassVar[frozenset[str]] = frozenset()
    #: Columns of content digests, compared while files are read. They do not enter the fingerprint, which covers what
    #: was found in the files.
    content_columns: ClassVar[frozenset[str]] = frozenset()

    #: What `open` was given.
    indexed: Indexed

    def __init__(self, settings: Any, base: Path) -> None:
        #: The settings from the job file; relative paths in them start from `base`.
        self.settings = settings
        self.base = base
        #: Facts about the job; empty ones if there is none.
        self.of_job = OfJob()
        #: Opens its files.
        self.files = Files(base)

    # --- while an index is made ---

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the numeric values of a raw sample; once the source is open, they may tell more (`per_second`).

        Raise NotImplementedError here: each format overrides it.
        """
        raise NotImplementedError

    def stamp(self) -> str:
        """Return a text that changes whenever the data do, at the cost of a stat of each file (`self.files.stamp`).

        If it is the same as when an index was made, indexing again is skipped, and after a kill -9 only the rest is
        probed. So it has to cover everything that `survey` and `probe` look at, including missing and new files. Return
        "" if changes cannot be noticed.
        """
        return ""

    def survey(self) -> Inventory:
        """Return the inventory of the data set; raise a DataError if the data set as a whole cannot be used.

        Each format overrides this, which raises NotImplementedError here.
        """
        raise NotImplementedError

    def probe(self, piece: Any) -> Found:
        """Return what one piece holds, looking at nothing else; raise an OSError if the disk fails.

        A row that cannot be used is a bad row of the result. Each format overrides this, which raises
        NotImplementedError here.
        """
        raise NotImplementedError

    def conclude(self, numbers: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:  # subclasses use it
        """Return further facts that need the columns of all samples, kept in `indexed.about`; none by default."""
        return {}

    def decoded_bytes(self, numbers: Mapping[str, Sequence[int] | NDArray[np.int64]]) -> NDArray[np.int64] | None:
        """Return the decoded size of each sample with these columns, or None if no column is called `length_<key>`.

        Each counts, multiplied by the bytes of a step of its key's field, or by 1 without one, and by a width if there
        is one. Their sum is the size. Errors of `fields` pass.
        """
        lengths = {name.removeprefix("length_"): numbers[name] for name in numbers if name.startswith("length_")}
        if not lengths:
            return None
        for key in (wide.key for wide in self.fields if wide.is_wide):
            lengths[key] = np.asarray(lengths[key], np.int64) * np.asarray(lengths.pop(f"{key}_width"), np.int64)
        a_step = {field.key: field.step_bytes for field in self.fields if field.padded}
        return functools.reduce(
            np.add, (np.asarray(steps, np.int64) * a_step.get(key, 1) for key, steps in lengths.items())
        )

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index's columns; raise a DataError if the data have changed since.

        A process that measures lengths calls this for piece after piece. The default compares nothing.
        """
        self.indexed = indexed

    def look_for_changes(self, time_s: float) -> None:
        """Raise an error for local files that changed since they were indexed, looking at as many as fit into `time_s`.

        Called before a job is served. For sources whose `open` does not look at all files, or compares sizes alone. The
        default does nothing.
        """

    def indexed_files(self) -> IndexedFiles:
        """Return the files that samples are read from, as indexed: the origin's, unless those only list the files.

        Origin entries without a path and a size do not count, and a remote file is given with an empty path.
        """
        files = [facts for facts in self.indexed.origin if "path" in facts and "bytes" in facts]

        def file_at(number: int) -> tuple[str, int]:
            path = files[number]["path"]
            return "" if is_url(path) else self.files.where(path), files[number]["bytes"]

        return IndexedFiles(len(files), file_at)

    @property
    def samples(self) -> int:
        """Return how many samples the index has; the source must be open."""
        return self.indexed.samples

    def checked(self, sample: int) -> int:
        """Return the sample's number; raise an IndexError if it is out of range.

        Without this check a column would take -1 for its last entry.
        """
        if not 0 <= sample < self.samples:
            raise IndexError(f"expected a sample from 0 to {self.samples - 1}, got {sample}")
        return sample

    def all_checked(self, samples: Sequence[int]) -> NDArray[np.int64]:
        """Return several sample numbers as an array; raise an IndexError if any is out of range."""
        known = np.array(samples, np.int64)
        if len(known) and not 0 <= known.min() <= known.max() < self.samples:
            raise IndexError(f"expected samples from 0 to {self.samples - 1}, got {known.min()} to {known.max()}")
        return known

    @property
    def lengths(self) -> dict[str, NDArray[np.int64]]:
        """Return the lengths of all samples by key, from the columns `length_<key>`; empty without such columns."""
        columns = self.indexed.numbers
        return {name.removeprefix("length_"): columns[name] for name in columns if name.startswith("length_")}

    def texts(self, key: str) -> Iterator[Sequence[str]] | None:  # sources of texts override it
        """Return an iterator over the texts of all samples under a key, block by block.

        Return None if they can only be had by decoding samples that hold more than texts; the default always returns
        None.
        """
        return None

    def indexed_samples(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each sample the one of the index that it is part of: itself, unless recordings are cut.

        The numbers have to be in range, which is not checked.
        """
        return samples

    @property
    def uncut(self) -> Source:
        """Return the source of whole recordings, if this one cuts them; otherwise this one."""
        return self

    @property
    def segments(self) -> NDArray[np.int64]:
        """Return where each segment begins, followed by the number of samples.

        Windows keep the samples of a segment together, because they are best read together.
        """
        return np.append(np.arange(0, self.samples, SEGMENT_SAMPLES, dtype=np.int64), self.samples)

    def begins(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which samples from `start` to before `stop` begin a recording: all, unless recordings are cut."""
        return np.ones(stop - start, np.bool_)

    @property
    def columns(self) -> Mapping[str, Any]:
        """Return the string columns that a stream's filter may use, by the names that users know.

        They are read like lists.
        """
        return self.indexed.strings

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the first sample of each part that a mixture may weigh: of each file, if there are several.

        (0,) by default.
        """
        return (0,)

    def read(self, samples: Sequence[int]) -> Iterable[bytes]:
        """Yield the bytes of these samples in this order, each read when it is asked for.

        Several threads may call this at once. Raise an OSError if the disk fails (the caller tries again), or a
        ReadError if the bytes are not the indexed ones. The default yields empty bytes for each sample.
        """
        return (b"" for _ in samples)

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Announce samples that will be read soon, so that remote files are fetched ahead; does nothing by default.

        A source whose files may be remote names byte ranges (`files.expect`) or whole files (`files.expect_local`).
        """

    def looks_ahead(self) -> bool:
        """Return whether this process was chosen to fetch this data set's remote files ahead, and can take more.

        If so, the caller calls `expect`. Errors of `Files.looks_ahead`, such as a ReadError, pass.
        """
        return self.files.looks_ahead()

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return the raw sample; raise a SampleError if complete bytes cannot be decoded.

        Each format overrides this, which raises NotImplementedError here.
        """
        raise NotImplementedError

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns | None:
        """Return what `decode` gives for all these samples as columns, or None if that is no faster than one by one.

        The default returns None. If any of the samples cannot be decoded, it may raise anything; the caller then
        decodes sample by sample.
        """
        return None

    def read_chunks(self, chunks: Sequence[Chunk]) -> Iterable[bytes]:
        """Yield the bytes needed to decode each chunk: the whole sample's, unless the format can read less.

        Raise what `read` raises.
        """
        return self.read([chunk.sample for chunk in chunks])

    def decode_chunk(self, chunk: Chunk, raw: bytes) -> dict[str, Any]:
        """Return the sample as `decode` does, with the values of the chunk's keys cut to its stretch.

        Raise what `decode` raises.
        """
        made = self.decode(chunk.sample, raw)
        return made | {key: made[key][chunk.start : chunk.stop] for key in chunk.keys}

    @property
    def gathers(self) -> bool:
        """Return whether `gather` writes whole batches at once, without reading or decoding samples one by one.

        False by default.
        """
        return False

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Write the fields in `out` for these samples, one row each, with lengths (`<key>_length`) and zero padding.

        The bytes have to be those that decoding each sample would give. `out` has as many rows as there are samples.
        Sources whose `gathers` is set override this, which raises NotImplementedError here.
        """
        raise NotImplementedError

    #: Whether `read` brings samples into memory, together with their neighbours, for `gather` to use.
    reads_ahead: bool = False
    #: Whether `read` now finds every sample in memory, so that it waits for no disk.
    reads_at_once: bool = False

    def unread(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:  # sources with `reads_ahead` override it
        """Return the samples to `read` before gathering: one for each piece of data that is not in memory.

        The default returns none.
        """
        return np.empty(0, np.int64)

    def name(self, sample: int) -> str:
        """Return the name by which people know the sample; by default file and line as in `place`."""
        where, line = self.place(sample)
        return f"{where}, line {line}"

    def place(self, sample: int) -> tuple[str, int]:
        """Return the file and line to look at to mend the sample; by default the index's folder and its number."""
        return str(self.indexed.place), sample

    def identity(self, sample: int) -> str:
        """Return a text that identifies a sample, whatever its number, and changes once the sample is mended.

        For a file, use its path, size and time of change. People read the text too, and it is compared as it is. The
        default is the sample's number with the index's fingerprint.
        """
        return f"sample {sample} of {self.indexed.fingerprint}"

    @property
    def modules(self) -> tuple[str, ...]:
        """Return the modules whose code shapes a sample's bytes; by default the one that defines the source's class.

        Those outside this package count as user code, like transforms.
        """
        return (type(self).__module__,)

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the versions of the libraries that shape a sample's bytes, by name; none by default.

        All workers of a job need the same ones.
        """
        return {}

    def close(self) -> None:
        """Close the open files, if any; each opens again when it is next read."""
        self.files.close()


def decoded(source: Source, sample: int, raw: bytes) -> dict[str, Any]:
    """Return the raw sample; raise a SampleError if the sample cannot be used, or a ReadError if the machine failed.

    Stoker's own errors pass through, and a MemoryError, because only trials show whether it is the sample's fault.
    """
    try:
        return source.decode(sample, raw)
    except (StokerError, MemoryError):
        raise
    except BaseException as error:  # a decoder may raise anything; a panic in Rust is a BaseException
        raise undecoded(error, source.name(sample)) from error

"""The door for formats: what a source of samples is, what it gives to the index, and what it gets back.

A source is one class that owns everything about its format. It has two lives. While an index is made, `survey` says
what there is, in pieces, and `probe` looks at one piece, in any process, and returns plain columns and bad rows. Later
`open` gets the columns back, and samples go by number, from 0 to `samples - 1`.

Rules: making a source opens nothing; reading is input and output only and any thread may do it, decoding is CPU only
and one thread does it, so that threads can read ahead. Instances are never pickled: another process gets settings, and
makes its own. This module knows no format, and no format knows another.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from loader_server.sources.files.opening import Files
from loader_server.sources.files.patience import read_patiently
from loader_server.sources.files.presence import IndexedFiles
from loader_server.sources.largest import LARGEST_SAMPLE
from loader_server.sources.remote.urls import is_url
from shared.shortened import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.batch_columns import Columns
    from loader_server.sources.pipeline.base_samples import BaseSamples
    from shared.wire.layout import Field

__all__ = [
    "SEGMENT_SAMPLES",
    "BadRow",
    "Chunk",
    "Found",
    "Gathers",
    "Indexed",
    "Inventory",
    "OfJob",
    "Source",
    "gather_rows",
    "texts_of_column",
    "texts_read",
]

#: Samples of a segment, unless the format suggests something else.
SEGMENT_SAMPLES = 4096
#: Texts that are looked at together.
_TEXTS = 4096
_MOST_DETAIL = 500


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is not indexed: its file and line, and why, in one word and in full.

    The detail may quote the row, so it is cut where nobody reads on. The remedy is there if it says more than that the
    row is to be mended.
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
    """What there is before anything is looked at.

    `pieces` yields the rows in order, in pieces of at most the given number of rows, which can be pickled; `origin`
    says what the index is made from, to tell later whether it has changed; `about` are further facts, which can be
    written as JSON and are part of the index's fingerprint.
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

    `rows` has the number of each good row among all rows, and `bad` that of each bad one; numbers rise, and do not
    depend on how rows are cut into pieces. Every piece has the same columns.
    """

    rows: Sequence[int]
    numbers: Mapping[str, Sequence[int] | NDArray[np.int64]]
    strings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    bad: Mapping[int, BadRow] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """What the index knows about a source's samples: the columns that `probe` found, and what `survey` said.

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
    """What a source may have to know about its job: its stream, the seed, the job file, and the job's state folder."""

    stream: str = ""
    seed: int = 0
    path: Path | None = None
    state: Path | None = None
    #: The most bytes that a sample may have once decoded.
    largest_sample: int = LARGEST_SAMPLE
    #: Whether recordings are cut, so that none is decoded whole.
    cuts: bool = False
    #: Opens another stream of the job by its name. A function of a module, so that it can be pickled.
    open_base: Callable[[OfJob, str], BaseSamples] | None = None

    @property
    def largest_indexed(self) -> int:
        """The most bytes that what an index lists may have once decoded; 0 where that is cut before it is decoded."""
        return 0 if self.cuts else self.largest_sample

    @property
    def table(self) -> str:
        """What messages call the stream's table."""
        return f"{self.path}, [streams.{self.stream}]"

    @property
    def graph(self) -> Path:
        """The file of the graph that a trainer sent for the stream."""
        return (self.state or Path()) / "graphs" / f"{self.stream}.graph"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of a long sample: the steps from `start` to before `stop` of the values that `keys` names."""

    sample: int
    start: int
    stop: int
    keys: tuple[str, ...]


class Source:
    """Random access to samples by number. A format defines `Settings`, `fields`, `survey`, `probe` and `decode`; `read`
    and `name` if there is something to read and to name; and any of the others that it can do better.
    """

    #: Its settings: a frozen dataclass whose fields are declared with `shared.settings.values.setting`.
    Settings: ClassVar[type[Any]]
    #: How many rows a process probes in one go: some tens of milliseconds of work.
    piece_rows: ClassVar[int] = 256
    #: The same if each row is read, decoded and put through transforms whose lengths are measured.
    measured_rows: ClassVar[int] = 16
    #: Whether samples can be read while indexing, as undeclared transforms require.
    measurable: ClassVar[bool] = True
    #: Whether pieces are probed only in other processes, because probing leaves behind what must not be there at a
    #: fork.
    apart: ClassVar[bool] = False
    #: Columns that differ between copies of one data set, and so are not part of the fingerprint.
    local_columns: ClassVar[frozenset[str]] = frozenset()
    #: Columns of digests of what files hold, which are compared while files are read; they are not part of the
    #: fingerprint, which names what was found in them.
    content_columns: ClassVar[frozenset[str]] = frozenset()

    #: What `open` got.
    indexed: Indexed

    def __init__(self, settings: Any, base: Path) -> None:
        #: The settings from the job file; relative paths in them start from `base`.
        self.settings = settings
        self.base = base
        #: About the job, if there is one.
        self.of_job = OfJob()
        #: Opens its files.
        self.files = Files(base)

    # --- while an index is made ---

    @property
    def fields(self) -> tuple[Field, ...]:
        """The numeric values of a raw sample; they may tell more (`per_second`) once the source is open."""
        raise NotImplementedError

    def stamp(self) -> str:
        """A text that changes whenever the data do, at the cost of a look at each file (`self.files.stamp`).

        If it is the same as when an index was made, indexing again is skipped, and after a kill -9 only the rest is
        probed. So it has to cover everything that `survey` and `probe` look at, including missing and new files; empty
        if nobody can tell.
        """
        return ""

    def survey(self) -> Inventory:
        """What there is; a DataError if the data set as a whole cannot be used."""
        raise NotImplementedError

    def probe(self, piece: Any) -> Found:
        """Look at the rows of one piece, and at nothing else; an OSError if the disk fails."""
        raise NotImplementedError

    def conclude(self, numbers: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:  # for those who need it
        """Further facts that only the columns of all samples tell; later they are in `indexed.about`."""
        return {}

    def decoded_bytes(self, numbers: Mapping[str, Sequence[int] | NDArray[np.int64]]) -> NDArray[np.int64] | None:
        """Return how many bytes samples with these columns have once decoded, as far as columns tell; None if not at
        all. Columns called `length_<key>` count, with the dtype and shape of their field, or a byte a step without one.
        """
        lengths = {name.removeprefix("length_"): numbers[name] for name in numbers if name.startswith("length_")}
        if not lengths:
            return None
        a_step = {field.key: field.step_bytes for field in self.fields if field.padded}
        each = (np.asarray(steps, np.int64) * a_step.get(key, 1) for key, steps in lengths.items())
        return functools.reduce(np.add, each)

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index's columns; a DataError if the data have changed since. A process that measures lengths opens
        piece after piece in this way.
        """
        self.indexed = indexed

    def look_for_changes(self, time_s: float) -> None:
        """Look at local files before a job is served, as many as can be looked at in this time, and refuse those that
        have changed since they were indexed: for sources whose `open` does not look at all files, or at sizes alone.
        """

    def indexed_files(self) -> IndexedFiles:
        """Return the files that samples are read from, as indexed: those of the origin, unless that only lists them."""
        files = [facts for facts in self.indexed.origin if "path" in facts and "bytes" in facts]

        def file_at(number: int) -> tuple[str, int]:
            path = files[number]["path"]
            return "" if is_url(path) else self.files.where(path), files[number]["bytes"]

        return IndexedFiles(len(files), file_at)

    @property
    def samples(self) -> int:
        """How many there are."""
        return self.indexed.samples

    def checked(self, sample: int) -> int:
        """The number, if there is such a sample: a column would take -1 for its last entry."""
        if not 0 <= sample < self.samples:
            raise IndexError(f"expected a sample from 0 to {self.samples - 1}, got {sample}")
        return sample

    def all_checked(self, samples: Sequence[int]) -> NDArray[np.int64]:
        """The same of several numbers."""
        known = np.array(samples, np.int64)
        if len(known) and not 0 <= known.min() <= known.max() < self.samples:
            raise IndexError(f"expected samples from 0 to {self.samples - 1}, got {known.min()} to {known.max()}")
        return known

    @property
    def lengths(self) -> dict[str, NDArray[np.int64]]:
        """The lengths of all samples, by the key of a raw sample: the columns called `length_<key>`."""
        columns = self.indexed.numbers
        return {name.removeprefix("length_"): columns[name] for name in columns if name.startswith("length_")}

    def texts(self, key: str) -> Iterator[Sequence[str]] | None:  # for those who have some
        """Return the texts of all samples under a key, block by block; None if they can only be had by decoding samples
        that hold more than texts.
        """
        return None

    @property
    def uncut(self) -> Source:
        """The source of whole recordings, if this one cuts them."""
        return self

    @property
    def segments(self) -> NDArray[np.int64]:
        """Where each segment begins, and the number of samples: samples that windows keep together, because they are
        best read together.
        """
        return np.append(np.arange(0, self.samples, SEGMENT_SAMPLES, dtype=np.int64), self.samples)

    def begins(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Which of the samples from `start` to before `stop` begin a recording: all, unless recordings are cut."""
        return np.ones(stop - start, np.bool_)

    @property
    def columns(self) -> Mapping[str, Any]:
        """Strings of all samples that a stream's filter may ask for, by names that people know; read like lists."""
        return self.indexed.strings

    @property
    def parts(self) -> tuple[int, ...]:
        """The first sample of each part that a mixture may weigh: its files, if it has several."""
        return (0,)

    def read(self, samples: Sequence[int]) -> Iterable[bytes]:
        """The bytes of these samples, in this order, each read when it is asked for; several threads may call this at
        once.

        An OSError if the disk fails (the caller tries again), a ReadError if the bytes are not the indexed ones.
        """
        return (b"" for _ in samples)

    def expect(self, samples: NDArray[np.int64]) -> None:
        """These will be read soon: a source of files that may be remote says which bytes they are (`files.expect`), or
        which files are needed whole (`files.expect_local`).
        """

    def looks_ahead(self) -> bool:
        """Whether this process should say now what else will be read soon."""
        return self.files.looks_ahead()

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """The raw sample; a SampleError if complete bytes cannot be decoded."""
        raise NotImplementedError

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns | None:
        """What `decode` gives of all these samples, as columns; None where that is no faster than one by one.

        Where one of them cannot be decoded, it may raise anything: then each is decoded on its own.
        """
        return None

    def read_chunks(self, chunks: Sequence[Chunk]) -> Iterable[bytes]:
        """The bytes that decoding each of these takes: whole samples, as `read` gives them, unless a format can read
        less.
        """
        return self.read([chunk.sample for chunk in chunks])

    def decode_chunk(self, chunk: Chunk, raw: bytes) -> dict[str, Any]:
        """The same as `decode` gives, with only the stretch of the chunk's keys."""
        made = self.decode(chunk.sample, raw)
        return made | {key: made[key][chunk.start : chunk.stop] for key in chunk.keys}

    @property
    def gathers(self) -> bool:
        """Whether `gather` writes whole batches at once, without reading or decoding samples one by one."""
        return False

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Write those fields of these samples that `out` has, one a row, their lengths (`<key>_length`), and zeros
        behind them: the bytes that decoding each would give. `out` has as many rows as there are samples.
        """
        raise NotImplementedError

    #: Whether `gather` uses what `read` brought into memory, a sample together with its neighbours.
    reads_ahead: bool = False

    def unread(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:  # for those who read ahead
        """The samples among these to `read` before gathering: one for each piece of data that is not in memory."""
        return np.empty(0, np.int64)

    def name(self, sample: int) -> str:
        """What people call the sample."""
        where, line = self.place(sample)
        return f"{where}, line {line}"

    def place(self, sample: int) -> tuple[str, int]:
        """The file and line to look at for mending the sample."""
        return str(self.indexed.place), sample

    def identity(self, sample: int) -> str:
        """A text that stays the same as long as the sample does, whatever its number, and changes once the sample is
        mended; for a file its path, size and time of change. People read it too, and it is compared as it is.
        """
        return f"sample {sample} of {self.indexed.fingerprint}"

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules whose code shapes a sample's bytes; those outside this package count as user code, like
        transforms.
        """
        return (type(self).__module__,)

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of the libraries that shape a sample's bytes, by name: all workers of a job need the same."""
        return {}

    def close(self) -> None:
        """Give back what is open, if anything is."""
        self.files.close()


def texts_of_column(column: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the strings of an index's column, block by block."""
    for start in range(0, len(column), _TEXTS):
        yield [column[row] for row in range(start, min(start + _TEXTS, len(column)))]


def texts_read(source: Source, key: str) -> Iterator[Sequence[str]]:
    """Yield the texts of a source that decodes many samples at once, block by block."""
    for start in range(0, source.samples, _TEXTS):
        samples = range(start, min(start + _TEXTS, source.samples))
        columns = source.decode_all(samples, read_patiently(source.read, samples, bool))
        assert columns is not None, "a source of texts decodes many at once"
        texts = columns[key]
        assert isinstance(texts, list), "a column of texts is a list"
        yield texts


class Gathers(Protocol):
    """What writes whole batches at once."""

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """As `Source.gather`."""


def gather_rows(
    source: Gathers, samples: NDArray[np.int64], rows: NDArray[np.int64], out: Mapping[str, NDArray[Any]]
) -> None:
    """Gather these samples into some of the rows."""
    own = {key: np.empty((len(rows), *array.shape[1:]), array.dtype) for key, array in out.items()}
    source.gather(samples, own)
    for key, array in own.items():
        out[key][rows] = array

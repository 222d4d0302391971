"""The door for formats: what a source of samples is, and what it gives to the index and gets back from it.

A source is one class that owns all that is known of its format. It lives twice. While an index is made, `survey` says
what there is, in pieces, and `probe` looks at one piece, in whatever process: plain columns and bad rows come out.
Later `open` gets the columns back, and samples go by number, from 0 to `samples - 1`.

Rules: making a source opens nothing; reading is input and output only and any thread may do it, decoding is CPU only
and one thread does it, so that threads can read ahead. Instances are never pickled: another process gets settings, and
makes its own. This module knows no format, and none knows another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from loader_server.sources.files.opening import Files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.transforms.columns import Columns
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
]

#: Samples of a segment, where the format suggests nothing else.
SEGMENT_SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is not indexed: in which file and line it stands, and why, in one word and in full."""

    where: str
    line: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What there is before anything is looked at.

    `pieces` yields the rows in order, so many at most at a time, as something that can be pickled; `origin` says what
    the index is made from, for telling later whether it still is that; `about` are further facts, which may be written
    as JSON, and the index's fingerprint hangs on them.
    """

    total: int
    #: Whether `total` counts pieces, as nobody knows the rows before they are looked at.
    rows_unknown: bool = False
    pieces: Callable[[int], Iterator[Any]]
    origin: list[dict[str, Any]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a piece holds: one entry a good row in each column, and the bad rows.

    `rows` has the number of each good row, and `bad` that of each bad one: its own among all rows, however these are
    cut into pieces, and rising. Every piece has the same columns.
    """

    rows: Sequence[int]
    numbers: Mapping[str, Sequence[int] | NDArray[np.int64]]
    strings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    bad: Mapping[int, BadRow] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """What the index knows of a source's samples: the columns that `probe` found, and what `survey` said.

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
    """What a source may have to know of its job: which stream it is for, the seed, the file, for other streams, and the
    folder of what the job keeps.
    """

    stream: str = ""
    seed: int = 0
    path: Path | None = None
    state: Path | None = None

    @property
    def table(self) -> str:
        """What messages call the stream's table."""
        return f"{self.path}, [streams.{self.stream}]"

    @property
    def graph(self) -> Path:
        """Where a graph lies that a trainer sent for the stream."""
        return (self.state or Path()) / "graphs" / f"{self.stream}.graph"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of a long sample: of the values that `keys` names, the steps from `start` to before `stop`."""

    sample: int
    start: int
    stop: int
    keys: tuple[str, ...]


class Source:
    """Random access to samples by number. A format defines `Settings`, `fields`, `survey`, `probe` and `decode`, `read`
    and `name` where there is something to read and to name, and of the others what it knows better.
    """

    #: Its settings: a frozen dataclass whose fields are declared with `shared.settings.values.setting`.
    Settings: ClassVar[type[Any]]
    #: How many rows a process looks at in one go: some tens of milliseconds of work.
    piece_rows: ClassVar[int] = 256
    #: The same where each row is read, decoded and put through transforms, whose lengths are measured.
    measured_rows: ClassVar[int] = 16
    #: Whether samples can be read while indexing, as transforms that declare nothing need it.
    measurable: ClassVar[bool] = True
    #: Whether pieces are looked at in other processes only, as it leaves behind what must not be there after a fork.
    apart: ClassVar[bool] = False
    #: Columns that differ between copies of one data set, so that no fingerprint hangs on them.
    local_columns: ClassVar[frozenset[str]] = frozenset()

    #: What `open` got.
    indexed: Indexed

    def __init__(self, settings: Any, base: Path) -> None:  # noqa: ANN401 - each source has its own
        #: As the job file says; relative paths in it start from `base`.
        self.settings = settings
        self.base = base
        #: What the job says, where there is one.
        self.of_job = OfJob()
        #: Opens its files.
        self.files = Files(base)

    # --- while an index is made ---

    @property
    def fields(self) -> tuple[Field, ...]:
        """The numeric values of a raw sample; they may say more (`per_second`) once the source is open."""
        raise NotImplementedError

    def stamp(self) -> str:
        """A text that is another one whenever the data are, at the cost of a look at each file (`self.files.stamp`).

        Where it is what it was when an index was made, indexing again is left out, and after a kill -9 only the rest is
        looked at. So it has to tell of all that `survey` and `probe` look at, missing files and new ones as well; empty
        where nobody can tell.
        """
        return ""

    def survey(self) -> Inventory:
        """What there is; DataError where the data set as a whole cannot be used."""
        raise NotImplementedError

    def probe(self, piece: Any) -> Found:  # noqa: ANN401 - what `survey` gave
        """Look at the rows of one piece, and at nothing else; OSError where the disk fails."""
        raise NotImplementedError

    def conclude(self, numbers: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:  # noqa: ARG002 - for those who need it
        """Further facts that only the columns of all samples tell: they are in `indexed.about` later."""
        return {}

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index's columns; DataError where the data set is another one by now. A process that measures opens
        piece after piece so.
        """
        self.indexed = indexed

    @property
    def samples(self) -> int:
        """How many there are."""
        return self.indexed.samples

    def checked(self, sample: int) -> int:
        """The number, if a sample has it: a column would take -1 for its last entry."""
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
        """The lengths of all samples, by the key of a raw sample: columns that are called `length_<key>`."""
        columns = self.indexed.numbers
        return {name.removeprefix("length_"): columns[name] for name in columns if name.startswith("length_")}

    @property
    def segments(self) -> NDArray[np.int64]:
        """Where each segment begins, and the number of samples: samples that windows keep together, because they are
        best read together.
        """
        return np.append(np.arange(0, self.samples, SEGMENT_SAMPLES, dtype=np.int64), self.samples)

    def begins(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Which of the samples from `start` to before `stop` begin a recording: all, where none is cut."""
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
        """The bytes of these samples, in this order, each by the time it is asked for; several threads may be at it.

        OSError where the disk fails (who asks tries again), ReadError where the bytes are not the indexed ones.
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
        """The raw sample; SampleError where whole bytes cannot be decoded."""
        raise NotImplementedError

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns | None:  # noqa: ARG002 - for who can
        """What `decode` gives of all these samples, as columns; None where that is no faster than one by one.

        Where one of them cannot be decoded, it may raise anything: then each is decoded on its own.
        """
        return None

    def read_chunks(self, chunks: Sequence[Chunk]) -> Iterable[bytes]:
        """The bytes that decoding each of these takes, as `read` gives them; a format that need not read all of a
        sample for a stretch of it does better.
        """
        return self.read([chunk.sample for chunk in chunks])

    def decode_chunk(self, chunk: Chunk, raw: bytes) -> dict[str, Any]:
        """What `decode` gives of the sample, but of the chunk's keys the stretch alone."""
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

    #: Whether `gather` works on what `read` brought into memory, sample with neighbours.
    reads_ahead: bool = False

    def unread(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:  # noqa: ARG002 - for those who read ahead
        """Of these samples those to `read` before they are gathered: one for each piece that is not in memory."""
        return np.empty(0, np.int64)

    def name(self, sample: int) -> str:
        """What people call the sample."""
        where, line = self.place(sample)
        return f"{where}, line {line}"

    def place(self, sample: int) -> tuple[str, int]:
        """The file and line that somebody has to look at who wants to mend the sample."""
        return str(self.indexed.place), sample

    def identity(self, sample: int) -> str:
        """What stays the same for as long as the sample does, whatever its number, and is another text once somebody
        mended it; for a file its path, size and time of change. For people too, and compared as it is.
        """
        return f"sample {sample} of {self.indexed.fingerprint}"

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules whose code shapes a sample's bytes; those outside of this package count as the transforms' do."""
        return (type(self).__module__,)

    @property
    def versions(self) -> Mapping[str, str]:
        """Of the libraries that shape a decoded sample's bytes, by name: all workers of a job have to have the same."""
        return {}

    def close(self) -> None:
        """Give back what is open, if anything is."""
        self.files.close()


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

"""The lhotse source: cut manifests (.jsonl, .jsonl.gz) of recordings in files, read without Lhotse.

Rules: a sample is a cut, its supervisions' texts joined by blanks in their order of time, or each supervision is one.
Only the sample's stretch is read and decoded. The index has everything that manifests say: they are not read again, and
one that has changed is refused. Lengths come from files, not from what a manifest says about them.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.audio.decoding import audio_versions
from loader_server.sources.audio.recorded_source import RecordedSource
from loader_server.sources.audio.recordings import Recordings, audio_field, common_rate
from loader_server.sources.audio.stretches import AudioStretch, Headers, channel_setting, stretch_columns
from loader_server.sources.files.lists import list_facts, refuse_absent_list, refuse_other_list
from loader_server.sources.remote.urls import is_url, joined
from loader_server.sources.source import BadRow, Found, Indexed, Inventory, texts_of_column
from loader_server.sources.speech.lhotse_cuts import WHOLE_CUT, CutSample, UnusableCut, cut_sample, samples_in
from shared.errors import DataError
from shared.hashing import fingerprint
from shared.settings.values import choice, setting, text, texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files
    from shared.wire.layout import Field

__all__ = ["CutPiece", "LhotseSettings", "LhotseSource"]

_MANIFEST = "cut manifest"


@dataclass(frozen=True, slots=True, kw_only=True)
class LhotseSettings:
    """Further settings of a stream with source = "lhotse"."""

    paths: tuple[str, ...] = setting(texts, "cut manifests, .jsonl or .jsonl.gz, relative to the job file, or URLs")
    sample: str = setting(
        choice("cut", "supervision"), "a cut with the texts of its supervisions, or each supervision", default="cut"
    )
    root: str = setting(text, "where relative paths in the manifests start from, relative to the job file", default=".")
    channel: int = channel_setting("cuts with several")


@dataclass(frozen=True, slots=True)
class CutPiece:
    """Consecutive rows: `start` counts from the first of all; each has its manifest's number, its line number, the
    line, and the number of a supervision, or WHOLE_CUT.
    """

    start: int
    rows: tuple[tuple[int, int, bytes, int], ...]


class LhotseSource(RecordedSource):
    """Cuts. Columns: each sample's manifest (counted from 0), its line, the characters of its text, and those of
    `stretch_columns`. Strings: key, path, text, speaker and language.
    """

    Settings = LhotseSettings
    local_columns = frozenset(("mtime_ns",))
    content_columns = frozenset(("content",))
    settings: LhotseSettings

    @property
    def fields(self) -> tuple[Field, ...]:
        """Audio, with time if all files have one rate."""
        return (audio_field(self.indexed.about["rate"] if hasattr(self, "indexed") else 0),)

    # --- while an index is made ---

    def stamp(self) -> str:
        """The stamp of the manifests, and of every file that they name."""
        return self.files.stamp(self._named_files())

    def _named_files(self) -> Iterator[str]:
        yield from self.settings.paths
        before = ""
        for _, _, line, supervision in self._rows():
            try:
                path = cut_sample(line, supervision, self.settings.channel).path
            except UnusableCut:
                continue
            if path != before:
                yield self._below(path)
            before = path

    def survey(self) -> Inventory:
        """Count the lines, or their supervisions."""
        if not self.settings.paths:
            raise DataError(
                expected="at least one manifest",
                got="none",
                where=str(self.base),
                remedy='Write paths = ["cuts.jsonl.gz"].',
            )
        self.files.refuse_twice(self.settings.paths)
        origin = [list_facts(path, self.files, _MANIFEST) for path in self.settings.paths]
        return Inventory(total=sum(1 for _ in self._rows()), pieces=self._pieces, origin=origin)

    def _pieces(self, rows: int) -> Iterator[CutPiece]:
        start, left = 0, self._rows()
        while some := tuple(islice(left, rows)):
            yield CutPiece(start, some)
            start += len(some)

    def _rows(self) -> Iterator[tuple[int, int, bytes, int]]:
        for number, path in enumerate(self.settings.paths):
            for place, line in _lines(path, self.files):
                if self.settings.sample == "cut":
                    yield number, place, line, WHOLE_CUT
                else:
                    yield from ((number, place, line, supervision) for supervision in range(samples_in(line)))

    def probe(self, piece: CutPiece) -> Found:
        """The headers of the files that these cuts are from."""
        good, bad = dict[int, tuple[int, int, CutSample, AudioStretch]](), dict[int, BadRow]()
        headers = Headers(self.files, largest=self.of_job.largest_indexed)
        for number, (manifest, place, line, supervision) in enumerate(piece.rows, piece.start):
            where = (self.files.where(self.settings.paths[manifest]), place)
            try:
                said = cut_sample(line, supervision, self.settings.channel)
            except UnusableCut as error:
                bad[number] = BadRow(*where, *error.args)
                continue
            found = self._audio(said, headers, where)
            if isinstance(found, BadRow):
                bad[number] = found
            else:
                good[number] = manifest, place, said, found
        manifests, places, saids, founds = (
            (list(one) for one in zip(*good.values(), strict=True)) if good else ([],) * 4
        )
        strings = {
            name: [getattr(one, name) for one in saids] for name in ("key", "path", "text", "speaker", "language")
        }
        numbers = {"manifest": manifests, "line": places, "length_text": list(map(len, strings["text"]))}
        return Found(rows=list(good), numbers=numbers | stretch_columns(founds, plain=False), strings=strings, bad=bad)

    def _audio(self, said: CutSample, headers: Headers, where: tuple[str, int]) -> AudioStretch | BadRow:
        found = headers.find(self._from_base(said.path), said.stretch, where)
        if isinstance(found, BadRow) or found.header.rate == said.rate:
            return found
        detail = f"expected {said.rate} Hz, as the recording's manifest says, got {found.header.rate}: {said.path}"
        return BadRow(*where, "other_rate", detail)

    def conclude(self, numbers: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
        """The one rate of all files, or 0."""
        return {"rate": common_rate(numbers["rate"])}

    def _below(self, path: str) -> str:
        return joined(self.settings.root, path)

    def _from_base(self, path: str) -> str:
        below = self._below(path)
        return below if is_url(below) else str(self.base / below)

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index, if the manifests are still those that it was made from."""
        for facts in indexed.origin:
            refuse_other_list(facts, self.files, _MANIFEST, indexed.place)
        self.indexed = indexed
        self._strings = indexed.strings
        self._recordings = Recordings(indexed.numbers, self._path, self._line, self.files, self.of_job.largest_sample)
        self.files.note_remote(indexed.samples, self._path)

    @property
    def lengths(self) -> dict[str, NDArray[np.int64]]:
        """Audio in frames, with its rate in hertz; the text in characters."""
        numbers = self.indexed.numbers
        return {"audio": numbers["frames"], "audio_rate": numbers["rate"], "text": numbers["length_text"]}

    def texts(self, key: str) -> Iterator[Sequence[str]] | None:
        """The texts, which the index has."""
        return texts_of_column(self._strings[key]) if key == "text" else None

    @property
    def parts(self) -> tuple[int, ...]:
        """Where each manifest starts that has samples."""
        return tuple(np.flatnonzero(np.diff(self.indexed.numbers["manifest"], prepend=-1)).tolist())

    def read(self, samples: Sequence[int]) -> Iterable[bytes]:
        """The bytes of each stretch, of a file that must be the one that was indexed."""
        return map(self._recordings.read, map(self.checked, samples))

    def _path(self, sample: int) -> str:
        return self._from_base(self._strings["path"][sample])

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Begin to fetch their files, if they are remote."""
        if self.files.are_remote:
            self._recordings.expect(samples.tolist())

    def said_of(self, sample: int) -> dict[str, Any]:
        """Text, speaker and language as strings."""
        return {name: self._strings[name][sample] for name in ("text", "speaker", "language")}

    def name(self, sample: int) -> str:
        """The cut's id, or the supervision's."""
        key: str = self._strings["key"][self.checked(sample)]
        return key

    def place(self, sample: int) -> tuple[str, int]:
        """The manifest, and the line in it."""
        numbers = self.indexed.numbers
        return self.files.where(self.settings.paths[numbers["manifest"][sample]]), int(numbers["line"][sample])

    def _line(self, sample: int) -> str:
        return "{}, line {}".format(*self.place(sample))

    def identity(self, sample: int) -> str:
        """The id, the file as it was indexed, the part of it, and a digest of what is said in it."""
        said = fingerprint(*(self._strings[name][sample] for name in ("text", "speaker", "language")))
        own = self._recordings.identity(sample)
        return f"{self.name(sample)}, {self._strings['path'][sample]}, {own}, row {said[:8]}"

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of the decoding libraries."""
        return audio_versions()


def _lines(path: str, files: Files) -> Iterator[tuple[int, bytes]]:
    """The lines of a manifest that are not empty, with their numbers; a DataError if it cannot be read."""
    _refuse_other_names(path, files)
    refuse_absent_list(path, files, _MANIFEST)
    with files.open(path) as raw:
        try:
            lines = gzip.GzipFile(fileobj=raw) if path.endswith(".gz") else raw
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, line
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(
                expected="a whole gzip file",
                got=f"{type(error).__name__}: {error}",
                where=files.where(path),
                remedy="It is cut short or damaged: write or copy it anew.",
            ) from None


def _refuse_other_names(path: str, files: Files) -> None:
    if not path.endswith((".jsonl", ".jsonl.gz")):
        raise DataError(
            expected="a cut manifest that ends in .jsonl or .jsonl.gz",
            got=f'"{PurePosixPath(path).name}"',
            where=files.where(path),
            remedy='Write it with cuts.to_file("cuts.jsonl.gz").',
        )

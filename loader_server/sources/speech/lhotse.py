"""The lhotse source: cut manifests (.jsonl, .jsonl.gz) of recordings in files, read without Lhotse.

Rules: a sample is a cut, its supervisions' texts joined by blanks in order of time, or each supervision is a sample.
Only the sample's stretch is read and decoded. The index has everything that manifests say, so they are not read again,
and one that has changed is refused. Lengths come from files, not from what a manifest says about them.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.audio.recorded_source import ListedSource
from loader_server.sources.audio.recordings import audio_field, common_rate
from loader_server.sources.audio.stretches import AudioStretch, Headers, channel_setting, stretch_columns
from loader_server.sources.files.same_files import list_facts, refuse_absent_list
from loader_server.sources.source import BadRow, Found, Inventory
from loader_server.sources.speech.lhotse_cuts import WHOLE_CUT, CutSample, UnusableCut, cut_sample, samples_in
from shared.errors import DataError
from shared.settings.parsers import choice, setting, text, texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files
    from shared.wire.batch_layout import Field

__all__ = ["CutPiece", "LhotseSettings", "LhotseSource"]

_MANIFEST = "cut manifest"


@dataclass(frozen=True, slots=True, kw_only=True)
class LhotseSettings:
    """Settings of a stream with source = "lhotse", besides those of every stream."""

    paths: tuple[str, ...] = setting(texts, "cut manifests, .jsonl or .jsonl.gz, relative to the job file, or URLs")
    sample: str = setting(
        choice("cut", "supervision"), "a cut with the texts of its supervisions, or each supervision", default="cut"
    )
    root: str = setting(text, "where relative paths in the manifests start from, relative to the job file", default=".")
    channel: int = channel_setting("cuts with several")


@dataclass(frozen=True, slots=True)
class CutPiece:
    """Consecutive rows: `start` is the first one's number over all manifests.

    Each row has its manifest's number, its line number, the line, and a supervision's number or WHOLE_CUT.
    """

    start: int
    rows: tuple[tuple[int, int, bytes, int], ...]


class LhotseSource(ListedSource):
    """Cuts of Lhotse manifests, or their supervisions.

    The index has these columns: manifest (counted from 0), line, length of the text, and those of `stretch_columns`;
    and these strings: key, path, text, speaker and language.
    """

    Settings = LhotseSettings
    list_kind = _MANIFEST
    beside_audio = ("text", "speaker", "language")
    settings: LhotseSettings

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the field of audio, with time if all files have one rate."""
        return (audio_field(self.indexed.about["rate"] if hasattr(self, "indexed") else 0),)

    # --- while an index is made ---

    def stamp(self) -> str:
        """Return a stamp of the manifests, and of every file that they name.

        Raise a DataError if a manifest is missing, has another suffix or is a damaged gzip file; a ReadError if a store
        cannot be asked or read, or an OSError if the disk fails. SettingsError of `stamp` passes through.
        """
        return self.files.stamp(self._named_files())

    def _named_files(self) -> Iterator[str]:
        """Yield the manifests, and the files of usable cuts; a repeated neighbour is given once.

        Raise a DataError if a manifest is missing, has another suffix, or is a damaged gzip file; a ReadError if a
        store cannot be asked or read, or an OSError if the disk fails. SettingsError of `_rows` passes through.
        """
        yield from self.settings.paths
        before = ""
        for _, _, line, supervision in self._rows():
            try:
                path = cut_sample(line, supervision, self.settings.channel).path
            except UnusableCut:
                continue
            # Cuts of a recording follow each other, so neighbours are compared, and no set of all names is kept.
            if path != before:
                yield self._below_root(path)
            before = path

    def survey(self) -> Inventory:
        """Count the cuts, or their supervisions.

        Raise a DataError if there are no manifests, or if one is named twice, is missing, has another suffix, is no
        text, or is a damaged gzip file; a ReadError if a store cannot be asked or read, or an OSError if the disk
        fails. SettingsError of `list_facts` passes through.
        """
        if not self.settings.paths:
            raise DataError(
                expected="at least one manifest",
                got="none",
                where=str(self.base),
                remedy='Write paths = ["cuts.jsonl.gz"].',
            )
        self.files.refuse_twice(self.settings.paths)
        # Before the lines are counted, so that a manifest that is written meanwhile is noticed as a change.
        origin = [list_facts(path, self.files, _MANIFEST) for path in self.settings.paths]
        return Inventory(total=sum(1 for _ in self._rows()), pieces=self._pieces, origin=origin)

    def _pieces(self, rows: int) -> Iterator[CutPiece]:
        """Yield all rows in pieces of at most `rows` rows; raise a DataError if a manifest cannot be read.

        Raise an OSError if the disk fails. SettingsError of `_rows` passes through.
        """
        start, left = 0, self._rows()
        while some := tuple(islice(left, rows)):
            yield CutPiece(start, some)
            start += len(some)

    def _rows(self) -> Iterator[tuple[int, int, bytes, int]]:
        """Yield manifest, line number, line and supervision of each row.

        Raise a DataError if a manifest cannot be read, or an OSError if the disk fails. SettingsError of `_lines`
        passes through.
        """
        for number, path in enumerate(self.settings.paths):
            for place, line in _lines(path, self.files):
                if self.settings.sample == "cut":
                    yield number, place, line, WHOLE_CUT
                else:
                    yield from ((number, place, line, supervision) for supervision in range(samples_in(line)))

    def probe(self, piece: CutPiece) -> Found:
        """Read the headers of the recordings that these cuts are from.

        Return the good rows' columns and the bad rows; raise a ReadError if a remote file cannot be fetched.
        SettingsError and MachineError of `_audio` pass through.
        """
        good, bad = dict[int, tuple[int, int, CutSample, AudioStretch]](), dict[int, BadRow]()
        headers = Headers(self.files, largest=self.of_job.largest_indexed)
        for number, (manifest, place, line, supervision) in enumerate(piece.rows, piece.start):
            where = (self.files.where(self.settings.paths[manifest]), place)
            try:
                cut = cut_sample(line, supervision, self.settings.channel)
            except UnusableCut as error:
                bad[number] = BadRow(*where, *error.args)
                continue
            audio = self._audio(cut, headers, where)
            if isinstance(audio, BadRow):
                bad[number] = audio
            else:
                good[number] = manifest, place, cut, audio
        cuts = [cut for _, _, cut, _ in good.values()]
        strings = {name: list(map(attrgetter(name), cuts)) for name in ("key", "path", *self.beside_audio)}
        return Found(
            rows=list(good),
            numbers={
                "manifest": [manifest for manifest, _, _, _ in good.values()],
                "line": [place for _, place, _, _ in good.values()],
                "length_text": list(map(len, strings["text"])),
                **stretch_columns([audio for _, _, _, audio in good.values()], plain=False),
            },
            strings=strings,
            bad=bad,
        )

    def _audio(self, cut: CutSample, headers: Headers, where: tuple[str, int]) -> AudioStretch | BadRow:
        """Return the stretch of a cut's recording, or a BadRow if its file or its rate does not fit.

        Raise a ReadError if a remote file cannot be fetched. SettingsError and MachineError of `find` pass through.
        """
        audio = headers.find(self._from_base(cut.path), cut.stretch, where)
        # Another rate means another file than the manifest was made of: its seconds may be of another recording.
        if isinstance(audio, BadRow) or audio.header.rate == cut.rate:
            return audio
        return BadRow(
            *where,
            "other_rate",
            f"expected {cut.rate} Hz, as the recording's manifest says, got {audio.header.rate}: {cut.path}",
        )

    def conclude(self, numbers: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
        """Return the common rate of all files, or 0 if they differ."""
        return {"rate": common_rate(numbers["rate"])}

    # --- once there is an index ---

    @property
    def lengths(self) -> dict[str, NDArray[np.int64]]:
        """Return a number a sample by key: `audio` in frames, `audio_rate` in Hz, and `text` in characters."""
        numbers = self.indexed.numbers
        return {"audio": numbers["frames"], "audio_rate": numbers["rate"], "text": numbers["length_text"]}

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the first sample of each manifest that has samples."""
        return tuple(np.flatnonzero(np.diff(self.indexed.numbers["manifest"], prepend=-1)).tolist())

    def place(self, sample: int) -> tuple[str, int]:
        """Return the manifest, and the sample's line in it."""
        numbers = self.indexed.numbers
        return self.files.where(self.settings.paths[numbers["manifest"][sample]]), int(numbers["line"][sample])


def _lines(path: str, files: Files) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a manifest that are not empty, with their numbers (from 1).

    Raise a DataError if it is missing, has another suffix, or is a damaged gzip file; a ReadError if a store cannot be
    asked or read, or an OSError if the disk fails. SettingsError of `refuse_absent_list` passes through.
    """
    if not path.endswith((".jsonl", ".jsonl.gz")):
        raise DataError(
            expected="a cut manifest that ends in .jsonl or .jsonl.gz",
            got=f'"{PurePosixPath(path).name}"',
            where=files.where(path),
            remedy='Write it with cuts.to_file("cuts.jsonl.gz").',
        )
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

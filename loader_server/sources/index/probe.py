"""Probing rows: what the index has to know of each file, from its header alone, or by decoding where lengths are
measured.

Rules: a chunk of rows is probed without looking at any other, so that processes can share the work and the result
does not hang on how many they are; a file that cannot be used makes its row bad, with the reason. Decoding here is
decoding everywhere.
"""

from __future__ import annotations

import io
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import soundfile

from loader_server.sources.plain_wav import plain_wav
from loader_server.sources.rows import BadRow, Row
from shared.errors import DataError, SampleError
from shared.wire.layout import Field

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loader_server.transforms.chain import Chain

__all__ = ["RAW_FIELDS", "Chunk", "Probed", "decoded_audio", "probed"]

#: The numeric values of a raw sample: audio in frames at whatever rate its file has.
RAW_FIELDS = (Field(key="audio", dtype="float32", shape=(None,)),)

#: What soundfile raises for bytes that are no audio.
_UNREADABLE = (soundfile.SoundFileError, ValueError)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of a survey; `start` counts from its first row, and `folders` belong to the manifests."""

    start: int
    rows: tuple[Row | BadRow, ...]
    manifests: tuple[str, ...]
    folders: tuple[str, ...]
    others: tuple[str, ...]
    has_text: bool


@dataclass(frozen=True, slots=True)
class Probed:
    """What was found: the good rows, one number a row in each column, and the bad rows."""

    good: list[Row] = field(default_factory=list)
    numbers: dict[str, list[int]] = field(default_factory=dict)
    measured: dict[str, list[int]] = field(default_factory=dict)
    fields: list[Field] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    rows: int = 0


def probed(chunk: Chunk, chain: Chain | None) -> Probed:
    """Probe the rows of a chunk in order; `chain` is given where lengths have to be measured."""
    found = Probed(rows=len(chunk.rows), numbers={name: [] for name in ("bytes", "mtime_ns", "frames", "rate")})
    for place, row in enumerate(chunk.rows):
        if isinstance(row, BadRow):
            found.bad.append(row)
            continue
        try:
            _probe(row, chunk, chain, chunk.start + place, found)
        except SampleError as error:
            found.bad.append(_bad(row, chunk, error.reason, f"expected {error.expected}, got {error.got}"))
        except OSError as error:
            reason = "missing_file" if isinstance(error, FileNotFoundError) else "unreadable"
            found.bad.append(_bad(row, chunk, reason, f"{error.strerror}: {_place(row, chunk)}"))
    return found


def decoded_audio(raw: bytes, where: str) -> tuple[NDArray[np.float32], int]:
    """The audio of a file's bytes, its channels averaged, and its rate."""
    plain = plain_wav(raw)
    if plain is not None:
        return plain
    try:
        audio, rate = soundfile.read(io.BytesIO(raw), dtype="float32", always_2d=True)
    except _UNREADABLE as error:
        raise _undecodable(where, str(error)) from None
    mono = audio[:, 0] if audio.shape[1] == 1 else audio.mean(axis=1, dtype=np.float32)
    return mono, int(rate)


def _undecodable(where: str, got: str) -> SampleError:
    return SampleError(
        reason="undecodable",
        expected="WAV, FLAC, OGG or MP3",
        got=got,
        where=where,
        remedy="Mend or remove the file, then run loader-server index.",
    )


def _probe(row: Row, chunk: Chunk, chain: Chain | None, number: int, found: Probed) -> None:
    path = _place(row, chunk)
    # soundfile reads headers from a descriptor in half the time that it takes from a Python file.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # so that a pipe is refused and not waited for
    try:
        status = os.fstat(handle)
        frames, rate = _header(handle, status, path)
    finally:
        os.close(handle)
    if chain is not None:
        _measure(row, chunk, chain, number, found)
    found.good.append(row)
    values = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "frames": frames, "rate": rate}
    for name, value in values.items():
        found.numbers[name].append(value)


def _header(handle: int, status: os.stat_result, path: str) -> tuple[int, int]:
    if not stat.S_ISREG(status.st_mode):
        raise _unusable("not_a_file", "a file", "something else", path)
    if status.st_size == 0:
        raise _unusable("empty_file", "audio", "an empty file", path)
    try:
        with soundfile.SoundFile(handle, closefd=False) as sound:
            frames, rate = int(sound.frames), int(sound.samplerate)
    except _UNREADABLE as error:
        raise _undecodable(path, str(error)) from None
    if frames == 0:
        raise _unusable("empty_audio", "audio", "a file of zero samples", path)
    return frames, rate


def _unusable(reason: str, expected: str, got: str, path: str) -> SampleError:
    return SampleError(reason=reason, expected=expected, got=f"{got}: {path}", where=path, remedy="Remove the row.")


def _measure(row: Row, chunk: Chunk, chain: Chain, number: int, found: Probed) -> None:
    path = _place(row, chunk)
    with open(path, "rb") as file:  # noqa: PTH123
        audio, rate = decoded_audio(file.read(), path)
    sample: dict[str, Any] = {"audio": audio, "audio_rate": rate, **dict(zip(chunk.others, row.others, strict=True))}
    if chunk.has_text:
        sample["text"] = row.text
    fields, lengths = chain.measure(sample, number, path)
    if not found.fields:
        found.fields.extend(fields)
    refuse_other_fields(tuple(found.fields), fields, path)
    for key, length in lengths.items():
        found.measured.setdefault(key, []).append(length)


def refuse_other_fields(first: tuple[Field, ...], now: tuple[Field, ...], where: str) -> None:
    """A measured transform must make the same of every sample."""
    for one, other in zip(sorted(first, key=_key), sorted(now, key=_key), strict=False):
        if one != other:
            raise DataError(
                expected=f"{_shown(one)}, as the samples before",
                got=_shown(other),
                where=where,
                remedy="A dtype or shape may not change between samples: mend the transform.",
            )
    if len(first) != len(now):
        raise DataError(
            expected=f"the keys {', '.join(sorted(map(_key, first)))}, as the samples before",
            got=", ".join(sorted(map(_key, now))),
            where=where,
            remedy="Every sample must have the same keys: mend the transform.",
        )


def _key(field_: Field) -> str:
    return field_.key


def _shown(field_: Field) -> str:
    return f'"{field_.key}" as {field_.dtype} [{", ".join("any" if a is None else str(a) for a in field_.shape)}]'


def _place(row: Row, chunk: Chunk) -> str:
    return os.path.join(chunk.folders[row.manifest], row.path)  # noqa: PTH118 - a Path a row costs more than the rest


def _bad(row: Row, chunk: Chunk, reason: str, detail: str) -> BadRow:
    return BadRow(chunk.manifests[row.manifest], row.line, reason, detail)

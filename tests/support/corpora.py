"""Small corpora of tones with manifests, the same on every machine, made in milliseconds.

Tests write the same recordings thousands of times: what a file holds is made once a process, and written without
waiting for the disk, as soundfile does whenever it closes one.
"""

from __future__ import annotations

import csv
import functools
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import soundfile

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DIGITS", "Utterance", "make_corpus", "tone", "utterances"]

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

#: The column names of each style of manifest: audio, text.
_STYLES = {
    "csv": ("audio", "text"),
    "deepspeech": ("wav_filename", "transcript"),
    "jsonl": ("audio", "text"),
    "nemo": ("audio_filepath", "text"),
}


@dataclass(frozen=True, slots=True)
class Utterance:
    """One recording: a tone a digit."""

    path: str
    text: str
    audio: np.ndarray


def tone(digit: int, frames: int, rate: int) -> np.ndarray:
    """A digit's tone, faded in and out."""
    time = np.arange(frames, dtype=np.float64) / rate
    fade = np.minimum(1.0, np.minimum(np.arange(frames), np.arange(frames)[::-1]) / (0.01 * rate))
    return (0.3 * fade * np.sin(2 * np.pi * (300.0 + 150.0 * digit) * time)).astype(np.float32)


def utterances(samples: int, *, rate: int = 8000, suffix: str = "wav", longest_s: float = 0.4) -> list[Utterance]:
    """Utterances of 1 to 4 digits whose lengths differ; `longest_s` is the longest one's."""
    return [_utterance(number, rate, suffix, longest_s) for number in range(samples)]


@functools.cache
def _utterance(number: int, rate: int, suffix: str, longest_s: float) -> Utterance:
    digits = [(number * 7 + place * 3) % 10 for place in range(1 + number * 5 % 4)]
    frames = int(longest_s * rate * (8 + (number * 13) % 9) / 16 / 4)
    audio = np.concatenate([tone(digit, frames, rate) for digit in digits])
    audio.flags.writeable = False  # other tests get it as well
    text = " ".join(DIGITS[digit] for digit in digits)
    return Utterance(f"clips/{number:05d}.{suffix}", text, audio)


@functools.cache
def _recording(number: int, rate: int, suffix: str, longest_s: float) -> bytes:
    """The file that soundfile makes of it."""
    file = io.BytesIO()
    soundfile.write(file, _utterance(number, rate, suffix, longest_s).audio, rate, format=suffix)
    return file.getvalue()


def make_corpus(
    folder: Path, *, samples: int = 8, rate: int = 8000, style: str = "csv", suffix: str = "wav", longest_s: float = 0.4
) -> Path:
    """Write a corpus below a folder; returns its manifest. Style: csv, deepspeech, jsonl or nemo."""
    (folder / "clips").mkdir(parents=True, exist_ok=True)
    made = utterances(samples, rate=rate, suffix=suffix, longest_s=longest_s)
    for number, utterance in enumerate(made):
        (folder / utterance.path).write_bytes(_recording(number, rate, suffix, longest_s))
    manifest = folder / f"{style}.{'jsonl' if style in ('jsonl', 'nemo') else 'csv'}"
    _write_manifest(manifest, style, made, rate)
    return manifest


def _write_manifest(manifest: Path, style: str, made: list[Utterance], rate: int) -> None:
    audio, text = _STYLES[style]
    rows = [{audio: utterance.path, text: utterance.text} for utterance in made]
    for row, utterance in zip(rows, made, strict=True):
        if style == "deepspeech":
            row["wav_filesize"] = str((manifest.parent / utterance.path).stat().st_size)
        if style == "nemo":
            row["duration"] = len(utterance.audio) / rate
    with manifest.open("w", encoding="utf-8", newline="") as file:
        if style in ("jsonl", "nemo"):
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            writer = csv.DictWriter(file, list(rows[0]) if rows else [audio, text])
            writer.writeheader()
            writer.writerows(rows)

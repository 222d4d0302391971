"""The demo's corpus: touch-tone digit strings with noise, pauses and changing loudness and tempo, as FLAC files.

Rules: every number comes from shared.hashing, so a corpus of (samples, seed) has the same waveforms on every machine,
and a sample depends only on its number and the seed; a folder appears under its name only when it is complete, so that
being killed at any moment leaves no partial corpus. Lengths are like those of speech: half a second to fifteen, most of
them short, with a long tail. Must not know jobs, indexes or plans.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import soundfile

from shared.errors import DataError
from shared.hashing import hashed, key_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["RATE", "CorpusFacts", "Utterance", "facts_of", "make_corpus", "utterance"]

RATE = 8000

#: The file that marks a folder as a demo's corpus; written last.
_STAMP = "demo.json"

_SHORTEST_S = 0.5
_LONGEST_S = 15.0

#: The median of durations, and their spread (sigma of a log-normal): 2.9 s on average.
_MEDIAN_S = 2.2
_SPREAD = 0.75

#: One sample in ten is held out.
_DEV_SHARE = 10

#: The keypad's frequencies: a digit is one tone of the rows and one of the columns.
_ROWS_HZ = np.array([941, 697, 697, 697, 770, 770, 770, 852, 852, 852], np.float64)
_COLUMNS_HZ = np.array([1336, 1209, 1336, 1477, 1209, 1336, 1477, 1209, 1336, 1477], np.float64)

#: The most digits that fit into the longest utterance, at the quickest tempo.
_MOST_DIGITS = 160

#: Tones fade in and out over this time, so that they do not click.
_FADE_S = 0.005

#: Encoding releases the interpreter, so threads help, up to the number of cores.
_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFacts:
    """The facts of a corpus: recordings to train on and to evaluate with, and their duration."""

    train: int
    dev: int
    seconds: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Utterance:
    """One recording and its transcript."""

    digits: str
    audio: NDArray[np.float32]


def make_corpus(
    folder: Path, *, samples: int, seed: int = 0, job: str = "", progress: Callable[[int, int], None]
) -> CorpusFacts:
    """Make the folder with clips, `train.csv`, `dev.csv` and `job.toml`, completely or not at all.

    Return the corpus's facts. Raise a DataError if the folder holds anything already, or something else is in its
    place. Errors of writing and of `progress` pass through, and leave no corpus. `job` is what the job file gets,
    `progress` is called with done and total. Begun folders that other demos of this name left are removed.
    """
    _refuse_foreign(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f".{folder.name}.*.part"):
        shutil.rmtree(left, ignore_errors=True)
    made = folder.parent / f".{folder.name}.{os.getpid()}.part"
    try:
        (made / "clips").mkdir(parents=True)
        facts = _fill(made, samples, seed, progress)
        (made / "job.toml").write_text(job, "utf-8")
        (made / _STAMP).write_text(json.dumps(asdict(facts)) + "\n", "utf-8")
        # The folder gets its name only now: a demo that is killed before leaves a hidden folder, which the next one
        # removes.
        made.replace(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return facts


def facts_of(folder: Path) -> CorpusFacts | None:
    """Return the facts of a corpus that an earlier demo made there; None if there is none.

    Raise a DataError if they cannot be read, or are malformed.
    """
    try:
        return CorpusFacts(**json.loads((folder / _STAMP).read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            expected="the description of a demo corpus",
            got=str(error),
            where=str(folder / _STAMP),
            remedy=f"Remove {folder}, or name another folder with --keep.",
        ) from None


def utterance(number: int, seed: int = 0) -> Utterance:
    """Return recording `number` of a corpus, as it is before encoding.

    The same number and seed give the same digits and float32 samples, of 0.1 to 0.9 at the peak.
    """
    chances = _Chances(key_of("demo corpus", seed, number))
    target_s = float(np.clip(_MEDIAN_S * np.exp(_SPREAD * chances.normal()), _SHORTEST_S, _LONGEST_S))
    digits, tones_s, gaps_s = _spoken(chances, target_s)
    lead_s = chances.between(0.03, 0.2)
    # Whole tones only, and a pause in front: the last digit decides when the recording ends.
    length = int(np.clip(lead_s + (tones_s + gaps_s).sum(), _SHORTEST_S, _LONGEST_S) * RATE)
    starts = lead_s + np.concatenate([[0.0], np.cumsum((tones_s + gaps_s)[:-1])])
    audio = _tones(digits, starts, tones_s, length) * _loudness(chances, length)
    audio += _noise(chances, length)
    peak = float(np.abs(audio).max())
    return Utterance(
        digits="".join(map(str, digits)), audio=(audio * (chances.between(0.1, 0.9) / peak)).astype(np.float32)
    )


class _Chances:
    """A stream of uniform and normal numbers from one key, each drawn once."""

    def __init__(self, key: int) -> None:
        self._key = key
        self._drawn = 0

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Return the next `count` numbers in [0, 1) of this key's sequence, and go on behind them."""
        words = hashed(np.arange(self._drawn, self._drawn + count, dtype=np.uint64), self._key)
        self._drawn += count
        numbers: NDArray[np.float64] = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return numbers

    def between(self, low: float, high: float) -> float:
        """Return one number from `low` to below `high`."""
        return low + (high - low) * float(self.uniform(1)[0])

    def normal(self) -> float:
        """Return one number from the standard normal distribution (Box and Muller)."""
        radius, angle = self.uniform(2)
        return float(np.sqrt(-2.0 * np.log1p(-radius)) * np.cos(2.0 * np.pi * angle))


def _spoken(chances: _Chances, target_s: float) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return digits, the seconds of each one's tone, and of the pause after it, of about `target_s` in all.

    At least one digit comes back.
    """
    digits = (10 * chances.uniform(_MOST_DIGITS)).astype(np.int64)
    tempo = chances.between(0.7, 1.6)
    tones_s = tempo * (0.09 + 0.10 * chances.uniform(_MOST_DIGITS))
    gaps_s = tempo * (0.05 + 0.10 * chances.uniform(_MOST_DIGITS))
    pauses = chances.uniform(_MOST_DIGITS) < 0.08
    gaps_s[pauses] += 0.3 + 0.7 * chances.uniform(_MOST_DIGITS)[pauses]
    room_s = min(target_s, _LONGEST_S - 0.2)
    count = max(1, int(np.searchsorted(np.cumsum(tones_s + gaps_s), room_s)))
    return digits[:count], tones_s[:count], gaps_s[:count]


def _tones(
    digits: NDArray[np.int64], starts_s: NDArray[np.float64], tones_s: NDArray[np.float64], length: int
) -> NDArray[np.float64]:
    """Return the signal without noise: at each moment the tone that began last, while it sounds, else silence."""
    time = np.arange(length) / RATE
    last = np.maximum(np.searchsorted(starts_s, time, side="right") - 1, 0)
    since_s = time - starts_s[last]
    fade = np.clip(np.minimum(since_s, tones_s[last] - since_s) / _FADE_S, 0.0, 1.0)
    angle = 2.0 * np.pi * since_s
    digit = digits[last]
    signal: NDArray[np.float64] = fade * (np.sin(angle * _ROWS_HZ[digit]) + 0.8 * np.sin(angle * _COLUMNS_HZ[digit]))
    return signal


def _loudness(chances: _Chances, length: int) -> NDArray[np.float64]:
    """Return factors from 0.5 to below 1.5 that rise and fall slowly, with a new target every half second."""
    every = RATE // 2
    aims = 0.5 + chances.uniform(length // every + 2)
    loudness: NDArray[np.float64] = np.interp(np.arange(length) / every, np.arange(len(aims)), aims)
    return loudness


def _noise(chances: _Chances, length: int) -> NDArray[np.float64]:
    """Return hiss, from almost none to about the power of the tones, and mains hum."""
    hiss = chances.between(0.05, 2.0) * (2.0 * chances.uniform(length) - 1.0)
    hum = chances.between(0.0, 0.3) * np.sin(2.0 * np.pi * 50.0 * np.arange(length) / RATE)
    return hiss + hum


# --- files ---


def _refuse_foreign(folder: Path) -> None:
    """Raise a DataError if the folder holds anything, or is no folder; do nothing if it does not exist.

    Raise OSError if it cannot be listed.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(
            expected="a new or empty folder, or one that an earlier demo made",
            got="one that holds something else",
            where=str(folder),
            remedy="Name another folder with --keep.",
        )


def _fill(folder: Path, samples: int, seed: int, progress: Callable[[int, int], None]) -> CorpusFacts:
    """Write all clips and both manifests, and return the corpus's facts; call `progress` after each clip.

    Errors of writing and of `progress` pass through, after the clips in work; the others are not begun.
    """
    rows: dict[str, list[tuple[str, str]]] = {"train": [], "dev": []}
    frames = 0
    executor = ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1))
    try:
        written = executor.map(lambda number: _write(folder, number, seed), range(samples))
        for number, (path, text, length) in enumerate(written):
            rows["dev" if number % _DEV_SHARE == 0 else "train"].append((path, text))
            frames += length
            progress(number + 1, samples)
    finally:
        executor.shutdown(cancel_futures=True)  # after Ctrl-C too, which must not wait for all recordings
    for name, lines in rows.items():
        _write_manifest(folder / f"{name}.csv", lines)
    return CorpusFacts(train=len(rows["train"]), dev=len(rows["dev"]), seconds=frames / RATE, seed=seed)


def _write(folder: Path, number: int, seed: int) -> tuple[str, str, int]:
    made = utterance(number, seed)
    path = f"clips/{number:05d}.flac"
    soundfile.write(folder / path, made.audio, RATE, subtype="PCM_16")
    return path, made.digits, len(made.audio)


def _write_manifest(path: Path, rows: list[tuple[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("audio", "text"))
        writer.writerows(rows)

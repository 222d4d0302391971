"""A Kaldi data folder for tests, its archives written by kaldiio."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kaldiio
import numpy as np
import soundfile

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RATE", "features", "table", "write_features", "write_recordings"]

RATE = 8000


def table(folder: Path, name: str, *lines: str) -> None:
    """One table of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")


def write_recordings(folder: Path, *keys: str, suffix: str = "wav", seconds: float = 2.0) -> dict[str, np.ndarray]:
    """Recordings of noise, and wav.scp."""
    made = {}
    folder.mkdir(parents=True, exist_ok=True)
    for place, key in enumerate(keys):
        noise = np.random.default_rng(place).uniform(-0.5, 0.5, int(seconds * RATE)).astype(np.float32)
        soundfile.write(folder / f"{key}.{suffix}", noise, RATE)
        made[key] = soundfile.read(folder / f"{key}.{suffix}", dtype="float32")[0]
    table(folder, "wav.scp", *(f"{key} {folder / key}.{suffix}" for key in keys))
    return made


def features(*rows: int, columns: int = 13) -> dict[str, np.ndarray]:
    """Matrices of so many rows, by key."""
    draw = np.random.default_rng(3)
    return {f"u{place}": draw.normal(3, 7, (n, columns)).astype(np.float32) for place, n in enumerate(rows)}


def write_features(folder: Path, arrays: dict[str, np.ndarray], compression: int | None = None) -> None:
    """feats.scp and feats.ark, with a relative path as recipes have it."""
    folder.mkdir(parents=True, exist_ok=True)
    kaldiio.save_ark(str(folder / "feats.ark"), arrays, scp=str(folder / "feats.scp"), compression_method=compression)

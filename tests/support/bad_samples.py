"""Jobs with samples that misbehave, and what is reported of them."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import trainer_client
from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from tests.support.loaders import ask, wait_until, write_job

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.support.loaders import Loaders

__all__ = [
    "culprits_of",
    "index",
    "job_with_texts",
    "make_undecodable",
    "quarantined",
    "rows_in",
    "rows_of",
    "write_texts",
]


def quarantined(folder: Path) -> list[dict[str, Any]]:
    """What the quarantine log names."""
    return [json.loads(line) for line in (folder / ".stoker/tones/quarantine.jsonl").read_text().splitlines()]


def job_with_texts(folder: Path, texts: dict[int, str], *, transform: str, samples: int = 60, job: str = "") -> Path:
    """A job whose samples of these numbers have these texts, which tell the transform what to do."""
    transforms = (f"tests.support.transforms:{transform}", "logmel", "characters")
    path = write_job(folder, samples=samples, transforms=transforms, job=job)
    write_texts(folder, texts)
    return path


def write_texts(folder: Path, texts: dict[int, str]) -> None:
    """Let samples have other texts in the manifest."""
    manifest = folder / "csv.csv"
    lines = manifest.read_text().splitlines()
    for sample, text in texts.items():
        lines[1 + sample] = lines[1 + sample].split(",")[0] + "," + text
    manifest.write_text("\n".join(lines) + "\n")


def make_undecodable(path: Path, frames: int, rate: int = 8000) -> None:
    """Write over a recording, at its size: a FLAC header that promises these frames, and nothing behind it."""
    blocks = struct.pack(">HH", 4096, 4096) + bytes(6)
    facts = (rate << 44 | 15 << 36 | frames).to_bytes(8, "big") + bytes(16)  # one channel of 16 bits
    header = b"fLaC" + bytes([0x80, 0, 0, 34]) + blocks + facts
    path.write_bytes(header + bytes(path.stat().st_size - len(header)))


def index(job: Path) -> None:
    """Make the indexes of a job anew."""
    file = JobFile(job)
    file.make_importable()
    index_streams(file, list(file.recipes), force=True)


def rows_of(loaders: Loaders) -> dict[int, float]:
    """The weight of each sample of an epoch, masked rows included."""
    with trainer_client.connect(loaders.endpoint) as feed:
        return rows_in(feed)


def culprits_of(loaders: Loaders) -> list[dict[str, Any]]:
    """What the coordinator was told; a worker goes on building meanwhile, so its batch may be here first."""
    wait_until(lambda: ask(loaders.endpoint)["culprits"], "the coordinator knows of a culprit")
    known: list[dict[str, Any]] = ask(loaders.endpoint)["culprits"]
    return known


def rows_in(batches: Iterable[trainer_client.Batch]) -> dict[int, float]:
    """The weight of each sample, masked rows included."""
    rows = [row for batch in batches for row in zip(batch["tag"].tolist(), batch["weight"].tolist(), strict=True)]
    return {tag: weight for tag, weight in rows if tag >= 0}

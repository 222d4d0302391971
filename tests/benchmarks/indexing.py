"""Indexing at scale: many recordings, larger ones, many missing ones, many TFRecords, nothing changed, and opening the
index of 100 million samples.

`python -m tests.benchmarks.indexing [--only PART] [--scale 0.01] [--json]`. Each part runs in processes of its own, so
that the peak memory is the part's; data are made in a temporary folder that goes again. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.index.column_files import bytes_with_header
from loader_server.index.folder import FORMAT, Meta, meta_json
from loader_server.job_file import JobFile
from loader_server.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PARTS", "measured"]

_PROCESSES = 2
#: Samples whose columns are written at a time.
_BLOCK = 2**20


# --- data ---


def _job(folder: Path, stream: str) -> Path:
    path = folder / "job.toml"
    path.write_text(f'[job]\nname = "scale"\nmax_bad = "100 %"\n\n[streams.train]\n{stream}\n')
    return path


def _manifest_job(folder: Path, names: Callable[[int], str], rows: int) -> Path:
    with (folder / "train.csv").open("w") as file:
        file.write("audio,text\n")
        file.writelines(f"{names(row)},text {row}\n" for row in range(rows))
    said = 'source = "manifest"\npaths = ["train.csv"]\ntransforms = ["logmel", "characters"]\n'
    return _job(folder, said + 'length = "audio"\nbudget = "60 s"')


def recordings(folder: Path, rows: int, frames_of: range = range(80, 180)) -> Path:
    """So many WAV files, a thousand a folder, usually of some milliseconds."""
    import io  # for this part alone

    import soundfile

    made = []
    for frames in frames_of:
        with io.BytesIO() as file:
            soundfile.write(file, np.zeros(frames, np.float32), 8000, format="WAV", subtype="PCM_16")
            made.append(file.getvalue())
    for row in range(rows):
        if row % 1000 == 0:
            (folder / f"{row // 1000:05d}").mkdir()
        (folder / _name(row)).write_bytes(made[row % len(made)])
    return _manifest_job(folder, _name, rows)


def _name(row: int) -> str:
    return f"{row // 1000:05d}/{row:09d}.wav"


def missing(folder: Path, rows: int) -> Path:
    """A manifest of recordings of which all but one are missing."""
    job = recordings(folder, 1)
    with (folder / "train.csv").open("a") as file:
        file.writelines(f"missing/{row:09d}.wav,text {row}\n" for row in range(rows))
    return job


def tf_records(folder: Path, rows: int) -> Path:
    """So many records in a thousand files, each an Example of some numbers and a label: their lengths are counted."""
    from tests.support.records import record  # for this part alone

    made = b"".join(record(_example(number)) for number in range(max(1, rows // 1000)))
    for number in range(1000):
        (folder / f"{number:04d}.tfrecord").write_bytes(made)
    said = 'source = "tfrecord"\npaths = ["*.tfrecord"]\nfeatures = { audio = "float32 [any]", label = "int64" }\n'
    return _job(folder, said + 'length = "audio"\nbudget = "4096 steps"')


def _example(number: int) -> bytes:
    from tests.support.example_protos import Example

    made = Example()
    made.features.feature["audio"].float_list.value.extend([0.5] * (10 + number % 90))
    made.features.feature["label"].int64_list.value.append(number)
    return bytes(made.SerializeToString())


def indexed(folder: Path, samples: int) -> Path:
    """A job whose index is there: of lines of text in a file that is mostly hole, with lengths that differ."""
    job = _job(
        folder,
        'source = "lines"\npaths = ["c.txt"]\ntransforms = ["characters"]\nlength = "text"\nbudget = "4096 characters"',
    )
    (folder / "c.txt").write_bytes(b"x")
    index = JobFile(job).index_folder("train")
    columns = index / "columns-made"
    columns.mkdir(parents=True)
    names = ["file", "line", "offset", "bytes", "digest", "length_text"]
    for name in names:
        _column(columns / f"{name}.npy", samples, real=name == "length_text")
    meta = Meta(
        format=FORMAT,
        source="lines",
        settings={"paths": ["c.txt"]},
        origin=[{"path": "c.txt", "bytes": 1, "version": 0}],
        folder=columns.name,
        samples=samples,
        numbers=names,
        strings=[],
        measured=[],
        fields=[],
        recipe="",
        bad={},
        fingerprint="0" * 32,
        about={},
    )
    (index / "meta.json").write_text(meta_json(meta))
    return job


def _column(path: Path, samples: int, *, real: bool) -> None:
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (samples,)})
        pool = np.random.default_rng(0).integers(20, 200, _BLOCK)
        for start in range(0, samples if real else 0, _BLOCK):
            file.write(pool[: samples - start].tobytes())
        file.truncate(bytes_with_header(8 * samples))


# --- what is measured, in a process of its own ---


def _peak_mb() -> float:
    """Of this process alone: getrusage would count what the parent had when it forked."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024 / 1e6


def index(job: Path) -> dict[str, float]:
    """What `loader-server index` does, and what it takes."""
    from loader_server.commands.index import index_streams  # it counts

    read, began = JobFile(job), time.perf_counter()
    (report,) = index_streams(read, ["train"], processes=_PROCESSES).values()
    took = time.perf_counter() - began
    return {"rows": report.rows, "s": took, "peak_mb": _peak_mb(), "unchanged": report.unchanged} | _cpu()


def _cpu() -> dict[str, float]:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {"cpu_s": sum(one.ru_utime + one.ru_stime for one in used)}


def open_index_of(job: Path) -> dict[str, float]:
    """Open the index, and then all of the stream, whose plan is kept."""
    from loader_server.index.folder import open_index

    read, began = JobFile(job), time.perf_counter()
    samples = open_index(read.index_folder("train")).samples
    opened = time.perf_counter() - began
    mb = _peak_mb()
    began = time.perf_counter()
    stream = Stream(read, "train")
    took = time.perf_counter() - began
    assert stream.samples == samples
    return {"samples": samples, "index_s": opened, "index_mb": mb, "stream_s": took, "stream_mb": _peak_mb()} | _cpu()


def _alone(what: str, job: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.indexing", "--alone", what, str(job)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _wav_headers(folder: Path, scale: float) -> dict[str, Any]:
    job = recordings(folder, int(100_000 * scale))
    return {"wav_headers": _alone("index", job), "wav_headers_again": _alone("index", job)}


def _wav_content(folder: Path, scale: float) -> dict[str, Any]:
    """Recordings of 100 kB and of 1 MB, as they were just written, and after the page cache has forgotten them."""
    took = {}
    for name, frames, rows in (("100_kb", 50_000, 20_000), ("1_mb", 500_000, 2000)):
        below = folder / name
        below.mkdir()
        job = recordings(below, int(rows * scale), range(frames, frames + 10))
        took[f"wav_{name}"] = _alone("index", job)
        shutil.rmtree(below / ".stoker")
        _forget_pages(below)
        took[f"wav_{name}_cold"] = _alone("index", job)
    return took


def _forget_pages(folder: Path) -> None:
    for path in folder.rglob("*.wav"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _bad_rows(folder: Path, scale: float) -> dict[str, Any]:
    return {"bad_rows": _alone("index", missing(folder, int(10_000_000 * scale)))}


def _tf_records(folder: Path, scale: float) -> dict[str, Any]:
    return {"tf_records": _alone("index", tf_records(folder, int(1_000_000 * scale)))}


def _open(folder: Path, scale: float) -> dict[str, Any]:
    job = indexed(folder, int(100_000_000 * scale))
    return {"open_first": _alone("open", job), "open": _alone("open", job)}


PARTS = {
    "wav_headers": _wav_headers,
    "wav_content": _wav_content,
    "tf_records": _tf_records,
    "bad_rows": _bad_rows,
    "open": _open,
}


def measured(scale: float, part: str) -> dict[str, Any]:
    """What one of `PARTS` took."""
    with tempfile.TemporaryDirectory() as folder:
        return PARTS[part](Path(folder), scale)


def main() -> None:
    """Measure, and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="this part alone")
    parser.add_argument("--scale", type=float, default=1.0, help="a part of the 100 000, 1, 10 and 100 million rows")
    parser.add_argument("--json", action="store_true", help="no lines for people")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.alone:
        what, job = asked.alone
        print(json.dumps({"index": index, "open": open_index_of}[what](Path(job))))
        return
    found: dict[str, Any] = {"cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    for name in [asked.only] if asked.only else PARTS:
        took = measured(asked.scale, name)
        found |= took
        if not asked.json:
            print(took)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

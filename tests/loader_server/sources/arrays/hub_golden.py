"""A data set as the library `datasets` writes it: recordings, images, moments, and lists in lists.

`datasets` is large, so its files are kept; `python -m tests.loader_server.sources.arrays.hub_golden` writes them anew,
in Parquet and by `save_to_disk`, with the values that `datasets` itself reads from them.
"""

from __future__ import annotations

import datetime as dt
import io
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

__all__ = ["GOLDEN", "ROWS", "columns_of", "read_back", "write_hub"]

GOLDEN = Path(__file__).parent / "golden"
ROWS = 12
_RATE = 8000


def _recording(row: int) -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(row).uniform(-0.5, 0.5, 400 + 40 * row)
    soundfile.write(file, noise, _RATE, format="flac" if row % 3 else "wav", subtype="PCM_16")
    return file.getvalue()


def _image(row: int) -> bytes:
    from PIL import Image, ImageFilter

    file = io.BytesIO()
    noise = np.random.default_rng(row).integers(0, 255, (12, 16, 3), np.uint8)
    image = Image.fromarray(noise).filter(ImageFilter.GaussianBlur(1))
    if row == 5:  # grey, as some images of any set are
        image = image.convert("L")
    image.save(file, format="png" if row % 4 == 1 else "jpeg")
    return file.getvalue()


def columns_of(rows: int) -> dict[str, list[Any]]:
    """The columns as people give them to `datasets`."""
    return {
        "audio": [{"bytes": _recording(row), "path": f"clips/{row}.wav"} for row in range(rows)],
        "image": [{"bytes": _image(row), "path": None} for row in range(rows)],
        "when": [dt.datetime(2026, 1, row + 1, tzinfo=dt.timezone.utc) for row in range(rows)],
        "boxes": [[[row, 0.5, place, 1.0] for place in range(row % 4)] for row in range(rows)],
        "grid": [[[row + column for column in range(3)] for _ in range(2)] for row in range(rows)],
        "text": [f"číslo {row}" for row in range(rows)],
        "label": [row % 2 for row in range(rows)],
    }


def write_hub(folder: Path, rows: int = ROWS) -> Any:
    """Write the data set below a folder as the hub lays it out, and as `save_to_disk` does; needs `datasets`."""
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features(
        {
            "audio": datasets.Audio(sampling_rate=_RATE, decode=False),
            "image": datasets.Image(),
            "when": datasets.Value("timestamp[us, tz=UTC]"),
            "boxes": datasets.List(datasets.List(datasets.Value("float32"))),
            "grid": datasets.Array2D((2, 3), "int32"),
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["even", "odd"]),
        }
    )
    made = datasets.Dataset.from_dict(columns_of(rows)).cast(features)
    made = made.cast_column("audio", datasets.Audio(sampling_rate=_RATE))
    (folder / "data").mkdir(parents=True)
    for shard in range(2):
        part = made.shard(2, shard, contiguous=True)
        part.to_parquet(str(folder / f"data/train-{shard:05}-of-00002.parquet"), batch_size=4)
    datasets.DatasetDict({"train": made}).save_to_disk(str(folder / "saved"), num_shards={"train": 2})


def read_back(folder: Path) -> dict[str, np.ndarray]:
    """The values of all rows, each under its column and number, as `datasets` and soundfile read the Parquet files."""
    import datasets

    read = datasets.load_dataset("parquet", data_files=str(folder / "data/*.parquet"), cache_dir=str(folder / "cache"))
    read = read["train"].cast_column("audio", datasets.Audio(decode=False))
    found = {}
    for row, values in enumerate(read):
        # `datasets` needs another library to decode recordings; it gives their bytes without.
        found[f"audio_{row}"] = soundfile.read(io.BytesIO(values["audio"]["bytes"]), dtype="float32")[0]
        found[f"image_{row}"] = np.asarray(values["image"].convert("RGB"))
        found[f"when_{row}"] = np.int64(values["when"].timestamp() * 1e6)
        found[f"boxes_{row}"] = np.array(values["boxes"], np.float32).reshape(-1, 4)
        found[f"grid_{row}"] = np.array(values["grid"], np.int32)
        found[f"text_{row}"] = np.array(values["text"])
        found[f"label_{row}"] = np.int64(values["label"])
    return found


def _main() -> None:
    shutil.rmtree(GOLDEN, ignore_errors=True)
    write_hub(GOLDEN)
    found = read_back(GOLDEN)
    shutil.rmtree(GOLDEN / "cache")
    np.savez_compressed(GOLDEN / "values.npz", **found)  # type: ignore[arg-type] # by name
    sys.stdout.write(f"{len(found)} values\n")


if __name__ == "__main__":
    _main()

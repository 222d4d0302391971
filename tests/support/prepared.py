"""Data sets as TensorFlow Datasets leaves them, written without it: that takes TensorFlow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support.example_protos import example
from tests.support.records import write_array_records, write_records

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["FEATURES", "PACKAGE", "prepare", "spoken_example", "tensor"]

PACKAGE = "tensorflow_datasets.core.features."


def tensor(dtype: str, *dimensions: str) -> dict[str, Any]:
    """How a feature is described that is a tensor."""
    shape = {"dimensions": list(dimensions)} if dimensions else {}
    tensor = {"dtype": dtype, "encoding": "none", "shape": shape}
    return {"pythonClassName": f"{PACKAGE}tensor_feature.Tensor", "tensor": tensor}


def _dict(**features: Any) -> dict[str, Any]:
    name = f"{PACKAGE}features_dict.FeaturesDict"
    return {"pythonClassName": name, "featuresDict": {"features": features}}


#: As version 4.9 writes it.
FEATURES = _dict(
    audio=tensor("float32", "-1"),
    label={"pythonClassName": f"{PACKAGE}class_label_feature.ClassLabel", "classLabel": {"numClasses": "10"}},
    speaker=_dict(age=tensor("int32")),
    text={"pythonClassName": f"{PACKAGE}text_feature.Text", "text": {}},
    tokens={
        "pythonClassName": f"{PACKAGE}sequence_feature.Sequence",
        "sequence": {"feature": tensor("int64"), "length": "-1"},
    },
)


def spoken_example(n: int) -> bytes:
    """A record of these features."""
    values = {"audio": [float(n)] * n, "label": n % 10, "speaker/age": 30 + n, "text": f"Bäume {n}", "tokens": [n] * n}
    return example(**values)


def prepare(folder: Path, shards: Iterable[Iterable[bytes]], file_format: str = "array_record") -> Path:
    """A data set "tiny" with a split "train" in these shards."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [list(shard) for shard in shards]
    for number, records in enumerate(written):
        write = write_records if file_format == "tfrecord" else write_array_records
        write(folder / f"tiny-train.{file_format}-{number:05}-of-{len(written):05}", records)
    split = {
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "name": "train",
        "numBytes": str(sum(len(record) for records in written for record in records)),
        "shardLengths": [str(len(records)) for records in written],
    }
    info = {"fileFormat": file_format, "moduleName": "tiny", "name": "tiny", "splits": [split], "version": "1.0.0"}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text(json.dumps(FEATURES))
    return folder

"""Small data sets for every source: with bad rows where there can be some, and a way to change them."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import tarfile
from typing import TYPE_CHECKING

import h5py
import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet
import soundfile

from loader_server.conformance.case import SourceCase
from tests.loader_server.sources.hdf5.data import ragged, write_ragged
from tests.loader_server.sources.speech.kaldi_data import table, write_features
from tests.loader_server.sources.speech.lhotse_golden import GOLDEN, write_audio
from tests.support.corpora import make_corpus
from tests.support.example_protos import example
from tests.support.prepared import prepare, spoken_example
from tests.support.records import damage, record, write_array_records, write_records
from tests.support.shards import npy, tar_of, write_shard
from tests.support.sources import spec_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["FIXTURES", "Words"]


def manifest(folder: Path) -> SourceCase:
    """Recordings of two formats and rates, in two manifests, some of them unusable."""
    (folder / "more").mkdir()
    first = make_corpus(folder, samples=12)
    second = make_corpus(folder / "more", samples=5, style="nemo", suffix="flac", rate=16000)
    (folder / "noise.wav").write_bytes(b"no audio at all" * 9)
    soundfile.write(folder / "two.wav", np.zeros((90, 2), np.float32), 8000)
    with first.open("a") as file:
        file.write("gone.wav,x\nnoise.wav,x\nclips/00000.wav\ntwo.wav,both\n")
    with second.open("a") as file:
        for offset in (0.02, 0.04, 9):
            file.write(json.dumps({"audio_filepath": "clips/00000.flac", "offset": offset, "text": "part"}) + "\n")
    paths = [str(path.relative_to(folder)) for path in (first, second)]

    def change() -> None:
        with (folder / "clips/00003.wav").open("ab") as file:
            file.write(b"more")

    bad = {"missing_column": 1, "missing_file": 1, "undecodable": 1, "outside_recording": 1}
    return SourceCase(spec=spec_of("manifest", folder, paths=paths), change=change, bad=bad)


def files(folder: Path) -> SourceCase:
    """Arrays, images and recordings in files, in two manifests, some of them unusable."""
    (folder / "more").mkdir()
    rows = []
    for row in range(24):
        name, noise = f"{'more/' if row % 2 else ''}{row}", np.random.default_rng(row)
        np.save(folder / f"{name}.npy", noise.random((row % 4 + 1, 3), np.float32))
        np.savez_compressed(folder / f"{name}.npz", noise.integers(0, 9, row % 3))
        np.savez(folder / f"{name}-plot.npz", noise.random((row % 3, row % 5), np.float32))
        PIL.Image.fromarray(noise.integers(0, 255, (4, 5, 3), np.uint8)).save(folder / f"{name}.png")
        soundfile.write(folder / f"{name}.flac", noise.uniform(-0.5, 0.5, 100 + row), 8000, subtype="PCM_16")
        PIL.Image.new("RGB", (row % 4 + 1, row % 3 + 1), (row, 0, 9)).save(folder / f"{name}-icon.png")
        own = [f"{name}.npy", f"{name}.npz", f"{name}.png", f"{name}.flac", str(row % 2), "x" * row]
        rows.append([*own, f"{name}-plot.npz", f"{name}-icon.png"])
    (folder / "0.npy").write_bytes(b"no array at all")
    np.save(folder / "4.npy", np.zeros((2, 4), np.float32))
    PIL.Image.new("RGB", (9, 9)).save(folder / "6.png")
    rows[8][0], rows[10][4], rows[12][1], rows[14] = "gone.npy", "many", "", rows[16]
    head = "mel,codes,photo,speech,label,text,plot,icon"
    for place, manifest in enumerate(("a.csv", "more/b.csv")):
        own = [",".join(cells).replace("more/", "") for cells in rows[place::2]]
        (folder / manifest).write_text("\n".join([head, *own]))

    def change() -> None:
        np.save(folder / "2.npy", np.ones((3, 3), np.float32))

    columns = {"mel": "array", "codes": "array", "photo": "image", "speech": "audio", "label": "int64", "text": "text"}
    columns |= {"plot": "array", "icon": "image"}
    reasons = ("undecodable", "other_array", "other_size", "missing_file", "wrong_type", "missing_column", "duplicate")
    spec = spec_of("files", folder, paths=["a.csv", "more/b.csv"], columns=columns, any_size=["plot", "icon"])
    return SourceCase(spec=spec, change=change, bad=dict.fromkeys(reasons, 1))


def hdf5(folder: Path) -> SourceCase:
    """Ragged values in one piece and in chunks, labels, and texts, one of which is no UTF-8."""
    write_ragged(folder / "a.h5", ragged(3, 1, 0, 7))
    write_ragged(folder / "b.h5", ragged(*range(9)), chunks=(4, 3), compression="gzip")
    with h5py.File(folder / "b.h5", "r+") as file:
        file["text"][2] = b"\xff"
    for name, count in (("a.h5", 4), ("b.h5", 9)):
        shapes = np.stack([np.arange(count) % 3, np.arange(count) % 4], axis=1)
        with h5py.File(folder / name, "r+") as file:
            file["grid_offsets"] = np.append(0, np.cumsum(shapes.prod(axis=1)))
            file["grid_values"] = np.arange(shapes.prod(axis=1).sum(), dtype=np.int16)
            file["grid_shapes"] = shapes

    def change() -> None:
        with (folder / "a.h5").open("ab") as file:
            file.write(b"more")

    spec = spec_of("hdf5", folder, paths=["a.h5", "b.h5"], any_size=["grid"])
    return SourceCase(spec=spec, change=change, bad={"not_utf8": 1})


def kaldi(folder: Path) -> SourceCase:
    """Features of every kind that archives have, in two folders, some of them unusable."""
    for name, compression in (("a", None), ("b", 2)):
        arrays = {f"{name}-{n}": np.random.default_rng(n).normal(size=(n + 1, 4)).astype(np.float32) for n in range(9)}
        write_features(folder / name, arrays, compression)
        table(folder / name, "text", *(f"{key} {'x' * n}" for n, key in enumerate(arrays)), f"{name}-more x")
    with (folder / "b/feats.scp").open("a") as file:
        file.write("b-command cat b.ark |\nb-none x.ark:5\n")

    def change() -> None:
        with (folder / "b/feats.ark").open("ab") as file:
            file.write(b"more")

    bad = {"command": 1, "no_text": 1, "only_text": 2}
    return SourceCase(spec=spec_of("kaldi", folder, paths=["a", "b"], values="features"), change=change, bad=bad)


def lhotse(folder: Path) -> SourceCase:
    """Cuts as Lhotse writes them, each supervision a sample."""
    write_audio(folder)
    shutil.copy(GOLDEN / "cuts.jsonl.gz", folder)

    def change() -> None:
        with (folder / "mono.wav").open("ab") as file:
            file.write(b"more")

    bad = {"cut_type": 1, "no_supervision": 4, "transformed": 3}
    spec = spec_of("lhotse", folder, paths=["cuts.jsonl.gz"], sample="supervision")
    return SourceCase(spec=spec, change=change, bad=bad)


def lines(folder: Path) -> SourceCase:
    """Lines of two files, with all that ends lines and all that is no text."""
    (folder / "a.txt").write_bytes("\ufeffone\r\nzwei Bäume\n\n三つ\r\n\r\none\n".encode() + b"\xff\n")
    (folder / "b.txt").write_text("\n".join(f"{n} " * (n % 9 + 1) for n in range(40)))

    def change() -> None:
        with (folder / "b.txt").open("r+b") as file:
            file.seek(-3, os.SEEK_END)
            file.write(b"?")

    bad = {"empty_line": 2, "not_utf8": 1}
    return SourceCase(spec=spec_of("lines", folder, paths=["a.txt", "b.txt"]), change=change, bad=bad)


def tfrecord(folder: Path) -> SourceCase:
    """Records of three files, one compressed; one record of another kind, one unfit, and a broken end."""
    for name, numbers in (("a.tfrecord", range(9)), ("b.tfrecord", range(9, 20))):
        write_records(folder / name, (example(x=[0.5] * n, y=[n, -n], z=f"{n} Bäume") for n in numbers))
    with (folder / "b.tfrecord").open("ab") as file:
        file.write(record(b"no example") + record(example(x=1.0)) + record(example(z="cut"))[:-1])
    packed = b"".join(record(example(x=[0.5] * n, y=[n, -n], z=f"{n} Bäume")) for n in range(20, 30))
    (folder / "c.tfrecord.gz").write_bytes(gzip.compress(packed))

    def change() -> None:
        with (folder / "a.tfrecord").open("r+b") as file:
            file.write(record(example(x=[], y=[9, -9], z="0 Bäume")))

    features = {"x": "float32 [any]", "y": "int32 [2]", "z": "text"}
    bad = {"broken_file": 1, "missing_feature": 1, "undecodable": 1}
    return SourceCase(
        spec=spec_of("tfrecord", folder, paths=["*.tfrecord*"], features=features), change=change, bad=bad
    )


def parallel(folder: Path) -> SourceCase:
    """Three files, one of Windows, with lines that are bad in one or two of them."""
    texts = {"de": [f"Satz {n} ü" for n in range(30)], "en": [f"sentence {n}" for n in range(30)], "tags": ["N V"] * 30}
    texts["en"][3] = texts["de"][7] = texts["en"][7] = ""
    (folder / "a.de").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(texts["de"]).encode() + b"\r\n")
    (folder / "a.en").write_bytes("\n".join(texts["en"]).encode())
    (folder / "a.tags").write_bytes("\n".join(texts["tags"]).encode().replace(b"N", b"\xff", 1))

    def change() -> None:
        (folder / "a.en").write_bytes((folder / "a.en").read_bytes().replace(b"sentence 9", b"sentence 8"))

    spec = spec_of("parallel", folder, paths={"source": "a.en", "target": "a.de", "of/speech": "a.tags"})
    return SourceCase(spec=spec, change=change, bad={"empty_line": 2, "not_utf8": 1})


def jsonl(folder: Path) -> SourceCase:
    """Texts, numbers and lists in two files, and one row for each way of being bad."""
    rows = [{"text": "é" * (n % 5), "tokens": [*range(n % 4)], "half": n / 2, "label": n, "who": {}} for n in range(25)]
    lines = [json.dumps(row, ensure_ascii=n % 2 == 0).encode() for n, row in enumerate(rows)]
    good = json.dumps(rows[0])
    bad = [b"", b"[1]", b'{"text', b'{"text": "\xff"}', b"{}", good.replace('"tokens": []', '"tokens": null').encode()]
    bad += [good.replace('"label": 0', f'"label": {label}').encode() for label in ("[1]", "9" * 30)]
    (folder / "a.jsonl").write_bytes(b"\n".join([*lines[:20], *bad]))
    (folder / "b.jsonl").write_bytes(b"\r\n".join(lines[20:]) + b"\r\n")

    def change() -> None:
        (folder / "b.jsonl").write_bytes((folder / "b.jsonl").read_bytes().replace(b"24", b"25"))

    reasons = ("empty_line", "missing_key", "not_utf8", "null", "out_of_range", "wrong_type")
    counts = {**dict.fromkeys(reasons, 1), "malformed": 2}
    return SourceCase(spec=spec_of("jsonl", folder, paths=["a.jsonl", "b.jsonl"]), change=change, bad=counts)


def webdataset(folder: Path) -> SourceCase:
    """Samples of two shards, of all kinds of members, some unusable, and a shard that is cut short."""

    def members(number: int, mtime: int = 1) -> list[tuple[str, bytes]]:
        array, plot = (npy(np.full((number % 5, axis), number, np.float32)) for axis in (3, number % 3))
        file = io.BytesIO()
        PIL.Image.new("RGB", (number % 4 + 1, number % 3 + 1), (number, 0, 9)).save(file, "png")
        wide = [(f"a/{number}.plot.npy", plot), (f"a/{number}.png", file.getvalue())]
        plain = [(f"a/{number}.txt", b"x" * number), (f"a/{number}.cls", b"%d" % number)]
        return [(f"a/{number}.npy", array), *plain, *wide]

    write_shard(folder / "a.tar", [one for number in range(11) for one in members(number)])
    more = [*members(11), ("a/../12.npy", b""), *members(13)[:2], ("a/14.npy", b"?"), *members(14)[1:]]
    more += [*members(17)[:-1], ("a/17.png", b"no image")]
    whole = tar_of([*more, *members(15), ("a/16.npy", b"x" * 999)])
    (folder / "b.tar").write_bytes(whole[: whole.rindex(b"x" * 999) + 9])

    def change() -> None:
        with (folder / "a.tar").open("r+b") as file:
            file.write(tar_of(members(0), mtime=2)[: 2 * tarfile.BLOCKSIZE])

    bad = {"broken_file": 1, "missing_member": 1, "undecodable": 2, "unsafe_name": 1}
    spec = spec_of("webdataset", folder, paths=["*.tar"], images=["png"], any_size=["plot", "image"])
    return SourceCase(spec=spec, change=change, bad=bad)


def array_record(folder: Path) -> SourceCase:
    """Records of two files, one of another kind, and one that its checksum does not fit."""
    for name, numbers in (("a.array_record", range(9)), ("b.array_record", range(9, 20))):
        write_array_records(folder / name, (example(x=[0.5] * n, y=[n, -n], z=f"{n} Bäume") for n in numbers))
    write_array_records(folder / "c.array_record", [b"no example", example(x=[], y=[0, 0], z="damaged")])
    damage(folder / "c.array_record", b"damaged")

    def change() -> None:
        write_array_records(folder / "a.array_record", (example(x=[], y=[n, 0], z=f"{n} Bäume") for n in range(9)))

    features = {"x": "float32 [any]", "y": "int32 [2]", "z": "text"}
    bad = {"corrupted": 1, "undecodable": 1}
    spec = spec_of("array_record", folder, paths=["*.array_record"], features=features)
    return SourceCase(spec=spec, change=change, bad=bad)


def tfds(folder: Path) -> SourceCase:
    """A data set as TensorFlow Datasets prepares it, in two shards, with a record of another kind."""
    place = folder / "tiny" / "1.0.0"
    prepare(place, [map(spoken_example, range(9)), [*map(spoken_example, range(9, 15)), example(label=1)]])

    def change() -> None:
        write_array_records(place / "tiny-train.array_record-00000-of-00002", [spoken_example(3)] * 9)

    spec = spec_of("tfds", folder, folder="tiny/1.0.0", split="train")
    return SourceCase(spec=spec, change=change, bad={"undecodable": 1})


def synthetic(folder: Path) -> SourceCase:
    """Features; there are no data that could change."""
    return SourceCase(spec=spec_of("synthetic", folder, samples=70, kind="features", bands=3), bad={})


def _table() -> pa.Table:
    """Lists, vectors, texts, bytes and numbers, and some rows with nulls."""
    random = np.random.default_rng(5)
    tokens = [random.integers(1, 99, n % 7).tolist() for n in range(60)]
    tokens[7], tokens[20] = None, [1, None]
    boxes = [random.random((n % 4, n % 3)).tolist() for n in range(60)]
    boxes[15] = [[0.5], [0.5, 0.5]]
    columns = {
        "boxes": pa.array(boxes, pa.list_(pa.list_(pa.float64()))),
        "tokens": pa.array(tokens, pa.list_(pa.int32())),
        "frames": pa.array(
            [random.random((n % 4, 3)).tolist() for n in range(60)], pa.list_(pa.list_(pa.float32(), 3))
        ),
        "speaker": pa.array(random.random((60, 2)).tolist(), pa.list_(pa.float64(), 2)),
        "text": pa.array([f"číslo {n}" if n != 11 else None for n in range(60)]),
        "image": pa.array([bytes([n] * (n % 5)) for n in range(60)], pa.binary()),
        "label": pa.array([n % 3 == 0 for n in range(60)]),
    }
    return pa.table(columns)


def parquet(folder: Path) -> SourceCase:
    """Two files of some row groups each."""
    table, data = _table(), folder / "data"
    data.mkdir()
    pyarrow.parquet.write_table(table[:40], data / "a.parquet", row_group_size=16)
    pyarrow.parquet.write_table(table[40:], data / "b.parquet", row_group_size=9, compression="zstd")

    def change() -> None:
        pyarrow.parquet.write_table(table[:40], data / "b.parquet", row_group_size=16)

    spec = spec_of("parquet", folder, paths=["data"], any_size=["boxes"])
    return SourceCase(spec=spec, change=change, bad={"null": 3, "unequal_lists": 1})


def arrow(folder: Path) -> SourceCase:
    """A stream and a file of some record batches each."""
    table = _table().append_column("spoken", _files(".wav")).append_column("picture", _files(".png"))
    with pa.ipc.new_stream(folder / "a.arrow", table.schema) as stream:
        stream.write_table(table[:40], max_chunksize=16)
    with pa.ipc.new_file(folder / "b.arrow", table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as file:
        file.write_table(table[40:], max_chunksize=9)

    def change() -> None:
        (folder / "b.arrow").write_bytes((folder / "a.arrow").read_bytes())

    paths = ["a.arrow", "b.arrow"]
    bad = {"null": 3, "undecodable": 2, "not_embedded": 1, "unequal_lists": 1}
    return SourceCase(spec=spec_of("arrow", folder, paths=paths, any_size=["boxes", "picture"]), change=change, bad=bad)


def _files(suffix: str) -> pa.Array:
    """A column of recordings or images as `datasets` keeps them; one is broken, and one recording is only named."""
    rows = list[dict[str, bytes | str | None]]()
    for row in range(60):
        file, noise = io.BytesIO(), np.random.default_rng(row)
        if suffix == ".wav":
            soundfile.write(file, noise.uniform(-0.5, 0.5, 100 + row), 8000, format="wav", subtype="PCM_16")
        else:
            pixels = noise.integers(0, 255, (row % 3 + 2, row % 5 + 1, 3), np.uint8)
            PIL.Image.fromarray(pixels).save(file, format="png")
        rows.append({"bytes": file.getvalue(), "path": f"{row}{suffix}"})
    rows[30 if suffix == ".wav" else 31]["bytes"] = b"RIFF and no more of it"
    if suffix == ".wav":
        rows[33]["bytes"] = None
    return pa.array(rows, pa.struct({"bytes": pa.binary(), "path": pa.string()}))


def numpy_arrays(folder: Path) -> SourceCase:
    """A ragged array, a ragged one of vectors, rows of vectors, and numbers."""
    lengths, random = np.arange(40) % 7, np.random.default_rng(3)
    offsets = np.append(0, np.cumsum(lengths))
    arrays = {
        "tokens_values": random.integers(1, 99, offsets[-1], np.uint16),
        "tokens_offsets": offsets,
        "frames_values": random.random((80, 3), np.float32),
        "frames_offsets": np.arange(41, dtype=np.uint32) * 2,
        "speaker": random.random((40, 2)),
        "label": np.arange(40) % 3 == 0,
        "grid_shapes": (shapes := np.stack([np.arange(40) % 3, np.arange(40) % 4], axis=1)),
        "grid_offsets": np.append(0, np.cumsum(shapes.prod(axis=1))),
        "grid_values": random.random(int(shapes.prod(axis=1).sum()), np.float32),
    }
    (folder / "data").mkdir()
    for name, array in arrays.items():
        np.save(folder / "data" / name, array)

    def change() -> None:
        np.save(folder / "data" / "label", ~arrays["label"])

    return SourceCase(spec=spec_of("numpy", folder, paths=["data"], any_size=["grid"]), change=change, bad={})


class Words:
    """A user's own class, over a file of words."""

    def __init__(self, path: str) -> None:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - as people write it
            self.words = file.read().split()
        self.picture = np.ones((2, 2), np.float32)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, i: int) -> dict[str, object]:
        if self.words[i] == "bad":
            raise ValueError("a bad word")
        letters = np.frombuffer(self.words[i].encode(), np.uint8)
        return {"letters": letters, "text": self.words[i], "number": i, "picture": self.picture}

    def fingerprint(self) -> str:
        return " ".join(self.words)


class Grids(Words):
    """One with an array that differs along two axes."""

    def __getitem__(self, i: int) -> dict[str, object]:
        return super().__getitem__(i) | {"grid": np.full((i % 3, i % 4), i, np.int32)}


def map_style(folder: Path) -> SourceCase:
    """A class that gives what it keeps, and raises once."""
    path = folder / "words.txt"
    path.write_text("ten small words are enough for all of this bad work")
    name = f"{__name__}:Grids"
    spec = spec_of(name, folder, source=name, arguments={"path": str(path)}, any_size=["grid"])
    return SourceCase(spec=spec, change=lambda: path.write_text("other words"), bad={"undecodable": 1})


#: By what a job file calls the source.
FIXTURES: dict[str, Callable[[Path], SourceCase]] = {
    "manifest": manifest,
    "files": files,
    "hdf5": hdf5,
    "kaldi": kaldi,
    "lhotse": lhotse,
    "lines": lines,
    "tfrecord": tfrecord,
    "webdataset": webdataset,
    "array_record": array_record,
    "tfds": tfds,
    "parallel": parallel,
    "jsonl": jsonl,
    "parquet": parquet,
    "arrow": arrow,
    "numpy": numpy_arrays,
    "synthetic": synthetic,
    "package.module:Class": map_style,
}

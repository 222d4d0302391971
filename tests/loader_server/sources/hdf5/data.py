"""HDF5 files for tests, and one that RETURNN wrote.

`python -m tests.loader_server.sources.hdf5.data` makes that one anew.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

__all__ = ["RETURNN", "ragged", "sequences", "write_ragged", "write_returnn"]

RETURNN = Path(__file__).parent / "golden" / "returnn.hdf"


def ragged(*lengths: int, inner: tuple[int, ...] = (3,)) -> list[np.ndarray]:
    """Arrays of so many steps."""
    draw = np.random.default_rng(sum(lengths))
    return [draw.normal(size=(length, *inner)).astype(np.float32) for length in lengths]


def write_ragged(path: Path, samples: list[np.ndarray], **how) -> None:
    """Values and offsets of `audio`, and a label and a text for each sample."""
    offsets = np.cumsum([0, *map(len, samples)])
    with h5py.File(path, "w") as file:
        file.create_dataset("audio_values", data=np.concatenate(samples), **how)
        file.create_dataset("audio_offsets", data=offsets)
        file.create_dataset("label", data=np.arange(len(samples), dtype=np.int32))
        texts = np.array([f"zwölf {n}" for n in range(len(samples))], object)
        file.create_dataset("text", data=texts, dtype=h5py.string_dtype())


def sequences() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Features and classes of RETURNN's file, by tag."""
    return {f"corpus/{n}": (one, np.arange(n + 1, dtype=np.int32)) for n, one in enumerate(ragged(4, 2, 7, inner=(5,)))}


def write_returnn(path: Path) -> None:
    """The layout of RETURNN's files, by h5py."""
    made = sequences()
    with h5py.File(path, "w") as file:
        file["inputs"] = np.concatenate([one for one, _ in made.values()])
        file["targets/data/classes"] = np.concatenate([one for _, one in made.values()])
        file["targets/data/align"] = np.concatenate([one[:1] for _, one in made.values()])
        file.create_group("targets/size").attrs.update({"classes": [30, 1], "align": [30, 1]})
        file["targets/labels/classes"] = np.array([b"a"] * 30)
        lengths = [[len(one), 1, len(classes)] for one, classes in made.values()]  # inputs, align, classes
        file["seqLengths"] = np.array(lengths, np.int32)
        file.create_dataset("seqTags", data=np.array(list(made), "S20"))


def _main() -> None:
    from returnn.datasets.hdf import SimpleHDFWriter  # only whoever makes the file needs it

    RETURNN.parent.mkdir(exist_ok=True)
    RETURNN.unlink(missing_ok=True)
    writer = SimpleHDFWriter(str(RETURNN), dim=5, ndim=2, extra_type={"classes": (30, 1, "int32")})
    for tag, (one, classes) in sequences().items():
        writer.insert_batch(one[None], [len(one)], [tag], extra={"classes": classes[None]})
    writer.close()


if __name__ == "__main__":
    _main()

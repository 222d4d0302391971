"""A job that is copied to another host with its index, by a program that gives files new times, as `cp` does: equal
bytes are the indexed ones there, and other bytes of equal size are not.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
import soundfile

from shared.errors import DataError
from tests.end_to_end.test_formats import (
    FORMATS,
    JOB,
    STREAM,
    write_a_file_for_each_sample,
    write_columns_of_each_kind,
    write_folder_of_kaldi,
    write_records_of_each_kind,
)
from tests.end_to_end.test_several_jobs import command
from tests.faults.test_cut_files import read
from tests.faults.test_files_within_files import by_a_virtual_dataset
from tests.support.loaders import running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.loaders import Loaders

_NOISE = 'transforms = ["noise"]\nnoise.recordings = { source = "manifest", paths = ["noises.csv"] }'
#: What streams of further kinds say, and the key of their values.
_OTHERS = {
    "recordings": ('source = "manifest"\npaths = ["clips.csv"]', "audio"),
    "stretches": ('source = "manifest"\npaths = ["stretches.jsonl"]', "audio"),
    "noisy": (f'source = "manifest"\npaths = ["clips.csv"]\n{_NOISE}', "audio"),
    "parts": ('source = "hdf5"\npaths = ["within/a.h5"]', "audio"),
    "lines": ('source = "lines"\npaths = ["a.txt"]\ntransforms = ["characters"]', "text"),
    "bitexts": (
        'source = "parallel"\npaths = { text = "a.txt", target = "b.txt" }\ntransforms = ["characters"]',
        "text",
    ),
}
_STREAMS = (*FORMATS, *_OTHERS)


def write_job(folder: Path) -> Path:
    """Data of all kinds, and a job with a stream of each."""
    folder.mkdir()
    write_records_of_each_kind(folder)
    write_columns_of_each_kind(folder)
    write_a_file_for_each_sample(folder)
    write_folder_of_kaldi(folder)
    table = folder / "data/feats.scp"
    table.write_text(table.read_text().replace(f"{folder}/", ""))  # relative, as a copy needs it
    (folder / "within").mkdir()
    by_a_virtual_dataset(folder / "within")
    write_recordings(folder)
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text("".join(f"line {number} of {name}\n" for number in range(9)))
    formats = (STREAM.format(name, said, length) for name, (said, length, _) in FORMATS.items())
    others = (
        f'[streams.{name}]\n{said}\nlength = "{length}"\nbudget = "40000 steps"\n'
        for name, (said, length) in _OTHERS.items()
    )
    streams = "".join(f"{stream}evaluation = true\n" for stream in (*formats, *others))
    (folder / "job.toml").write_text(f"{JOB}{streams}")
    return folder / "job.toml"


def write_recordings(folder: Path) -> None:
    """Small and large recordings, of which some are decoded by seeking, and noises beside them."""
    names = [f"{number}.{suffix}" for number, suffix in enumerate(("wav", "flac", "wav", "ogg"))]
    for number, name in enumerate(names):
        frames = 8000 if number < 3 else 200_000
        rng = np.random.default_rng(number)
        for file in (name, f"noise-{name}"):
            soundfile.write(folder / file, rng.uniform(-0.5, 0.5, frames).astype(np.float32), 8000)
    (folder / "clips.csv").write_text("audio\n" + "".join(f"{name}\n" for name in names[:3]))
    (folder / "noises.csv").write_text("audio\n" + "".join(f"noise-{name}\n" for name in names[:2]))
    rows = (f'{{"audio": "{name}", "offset": 0.25, "duration": 0.5}}\n' for name in names)
    (folder / "stretches.jsonl").write_text("".join(rows))


def epochs(loaders: Loaders) -> dict[str, list[tuple[int, int]]]:
    return {stream: read(loaders.endpoint, stream) for stream in _STREAMS}


def copy_with_new_times(source: Path, target: Path) -> None:
    """Copy a folder as `cp -r` does."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for file in filter(os.path.isfile, target.rglob("*")):
        os.utime(file, ns=(5, 5))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_index_holds_for_copies_of_its_data_that_have_new_times(tmp_path: Path) -> None:
    with running(write_job(tmp_path / "here"), workers=1) as loaders:
        before = epochs(loaders)
    copy_with_new_times(tmp_path / "here", tmp_path / "there")
    indexes = {file: file.read_bytes() for file in (tmp_path / "there").rglob("meta.json")}
    assert len(indexes) == len(_STREAMS)
    with running(tmp_path / "there/job.toml", workers=1) as loaders:
        assert epochs(loaders) == before
        for file in filter(os.path.isfile, (tmp_path / "there").glob("**/[!.]*.*")):
            if ".stoker" not in file.parts:
                os.utime(file, ns=(7, 7))
        assert epochs(loaders) == before
    assert indexes == {file: file.read_bytes() for file in (tmp_path / "there").rglob("meta.json")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stream", "name"), [("recordings", "1.flac"), ("kaldi", "data/feats.ark"), ("numpy", "arrays.npz")]
)
def test_a_copy_of_equal_size_with_other_bytes_is_refused(tmp_path: Path, stream: str, name: str) -> None:
    with running(write_job(tmp_path / "here"), workers=1) as loaders:
        before = read(loaders.endpoint, stream)
    copy_with_new_times(tmp_path / "here", tmp_path / "there")
    file = tmp_path / "there" / name
    content = file.read_bytes()
    with running(tmp_path / "there/job.toml", workers=1) as loaders:
        file.write_bytes(content[:-8] + bytes(byte ^ 1 for byte in content[-8:]))
        with pytest.raises(DataError) as caught:
            read(loaders.endpoint, stream)
        assert str(file) in caught.value.where
        assert all(way in caught.value.remedy for way in ("rsync -a", "cp -a", "loader-server index"))
        file.write_bytes(content)
        assert read(loaders.endpoint, stream) == before
    file.write_bytes(content[:-8] + bytes(byte ^ 1 for byte in content[-8:]))
    code, out, complained = command("run", tmp_path / "there/job.toml", "--workers", "1")
    assert (code, "is served" in out + complained) == (1, False)
    assert str(file) in complained
    assert "rsync -a" in complained

"""The examples of docs/sources.md do what the page says, and pass the checks."""

from __future__ import annotations

import gzip
import json
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import PIL.Image
import pyarrow.parquet
import pytest

import loader_server.sources
import loader_server.transforms
from loader_server.commands.index import index_streams
from loader_server.conformance.command import main
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from tests.loader_server.sources.arrays.hub_golden import GOLDEN as HUB
from tests.loader_server.sources.arrays.hub_golden import ROWS
from tests.loader_server.sources.cuts.lhotse_data import GOLDEN as CUTS
from tests.loader_server.sources.cuts.lhotse_data import write_recordings_of_made_cuts
from tests.loader_server.sources.hdf5.data import ragged, write_ragged
from tests.loader_server.sources.speech.kaldi_data import features, table, write_features
from tests.loader_server.sources.speech.lhotse_golden import GOLDEN, write_audio
from tests.support import example_protos
from tests.support.corpora import make_corpus
from tests.support.prepared import prepare, spoken_example
from tests.support.records import write_array_records, write_records
from tests.support.shards import write_shard
from tests.support.token_models import TEXTS, train_sentencepiece

if TYPE_CHECKING:
    from types import ModuleType

PAGE = Path(__file__).parents[2] / "docs" / "sources.md"


def example(language: str, holding: str) -> str:
    """The one example that holds this."""
    found = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    (one,) = (text for text in found if holding in text)
    return one


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "my_data", None)
    for name in ("my_data", "my_arrays"):
        sys.modules.pop(name, None)
    rows = [{"tokens": list(range(n % 5 + 1)), "label": n, "text": "x" * n} for n in range(30)]
    (tmp_path / "sentences.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "my_data.py").write_text(example("python", "class Sentences"))
    (tmp_path / "my_arrays.py").write_text(example("python", "class ArraysSource"))
    (tmp_path / "data").mkdir()
    for n in range(12):
        np.save(tmp_path / "data" / f"{n:02}.npy", np.arange(n + 1, dtype=np.float32))
    (tmp_path / "data" / "bad.npy").write_bytes(b"no array at all")
    return tmp_path


def job(folder: Path, streams: str) -> JobFile:
    (folder / "job.toml").write_text(f'[job]\nname = "x"\n{streams}')
    return JobFile(folder / "job.toml")


def test_the_class_of_ones_own(beside: Path) -> None:
    made = job(beside, example("toml", "my_data:Sentences").replace("/data/sent", str(beside / "sent")))
    assert index_streams(made, ["train"])["train"].samples == 30
    stream = Stream(made, "train")
    assert [field.key for field in stream.chain.fields] == ["tokens", "label"]
    assert stream.source.lengths["tokens"][:6].tolist() == [1, 2, 3, 4, 5, 1]
    assert main(["my_data:Sentences", "--arguments", f'{{"path": "{beside}/sentences.jsonl"}}']) == 0


def test_the_source_that_is_added(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["my_arrays:ArraysSource", "--arguments", '{"folder": "data"}']) == 0
    assert "ok  Bad rows are named" in capsys.readouterr().out
    stream = 'source = "my_arrays:ArraysSource"\nfolder = "data"\nlength = "values"\nbudget = "40 steps"\n'
    made = job(beside, f"[streams.train]\n{stream}")
    assert index_streams(made, ["train"])["train"].bad_counts == {"undecodable": 1}
    assert Stream(made, "train").samples == 12


def test_the_command_runs_without_the_tests(beside: Path) -> None:
    code = "from loader_server.conformance.command import main; main(['-h'])"
    command = [sys.executable, "-c", f"import sys; sys.modules['tests'] = None; {code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "--arguments JSON" in done.stdout) == (0, True), done.stderr


def test_lines_and_mixtures(tmp_path: Path) -> None:
    make_corpus(tmp_path, samples=4, style="csv").rename(tmp_path / "train.csv")
    for name in ("corpus.txt", "corpus-1.txt", "corpus-2.txt"):
        (tmp_path / name).write_text("one\ntwo\n")
    for holding, samples in (("corpus-1.txt", 4), ('"corpus.txt"', 6)):
        made = job(tmp_path, example("toml", holding))
        index_streams(made, ["train"])
        assert Stream(made, "train").samples == samples


def test_tfrecord(tmp_path: Path) -> None:
    records = (example_protos.example(audio=[0.5] * (n + 1), label=n, words="one") for n in range(9))
    write_records(tmp_path / "train-0.tfrecord", records)
    made = job(tmp_path, example("toml", '*.tfrecord"'))
    assert index_streams(made, ["train"])["train"].samples == 9
    assert [field.key for field in Stream(made, "train").chain.fields] == ["audio", "label"]


def test_compressed_records(tmp_path: Path) -> None:
    records = (example_protos.example(audio=[0.5] * (n + 1), label=n, words="one") for n in range(9))
    plain = write_records(tmp_path / "train-0.tfrecord", records)
    (tmp_path / "train-0.tfrecord.gz").write_bytes(gzip.compress(plain.read_bytes()))
    made = job(tmp_path, example("toml", "*.tfrecord.gz"))
    assert index_streams(made, ["train"])["train"].samples == 9
    assert [field.key for field in Stream(made, "train").chain.fields] == ["audio", "label"]


def test_kaldi(tmp_path: Path) -> None:
    write_features(tmp_path / "data/train", features(3, 5, 8))
    table(tmp_path / "data/train", "text", "u0 a", "u1 b", "u2 c")
    made = job(tmp_path, example("toml", 'source = "kaldi"'))
    index_streams(made, ["train"])
    assert Stream(made, "train").samples == 3


def test_parallel_text(tmp_path: Path) -> None:
    for language in ("en", "de"):
        (tmp_path / f"train.{language}").write_text("\n".join(TEXTS))
        train_sentencepiece(tmp_path / f"{language}.model")
    made = job(tmp_path, example("toml", '"parallel"'))
    assert index_streams(made, ["train"])["train"].samples == len(TEXTS)
    assert [field.key for field in Stream(made, "train").chain.fields] == ["source", "target"]


def test_json_lines(tmp_path: Path) -> None:
    rows = [{"text": "very good", "label": 1, "from": "x"}, {"text": "", "label": 0.5}]
    (tmp_path / "reviews.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = job(tmp_path, example("toml", '"jsonl"'))
    assert index_streams(made, ["train"])["train"].bad_counts == {"wrong_type": 1}
    assert [(field.key, field.dtype) for field in Stream(made, "train").chain.fields] == [
        ("label", "int32"),
        ("text", "int32"),
    ]


@pytest.mark.parametrize("package", [loader_server.sources, loader_server.transforms])
def test_no_module_hides_a_name_that_authors_import(package: ModuleType) -> None:
    """Once it is imported, it would be the package's attribute of that name."""
    assert {module.name for module in pkgutil.iter_modules(package.__path__)} & {*package.__all__} == set()


def test_parquet(tmp_path: Path) -> None:
    columns = {"tokens": [[1, 2], [3], [4, 5, 6]], "label": [0, 1, 0], "text": ["a", "b", "c"]}
    (tmp_path / "corpus").mkdir()
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "corpus" / "a.parquet")
    made = job(tmp_path, example("toml", "datasets.save_to_disk"))
    assert index_streams(made, ["train"])["train"].samples == 3
    assert [field.key for field in Stream(made, "train").chain.fields] == ["tokens", "label"]


def test_recordings_of_the_hub(tmp_path: Path) -> None:
    shutil.copytree(HUB, tmp_path / "speech")
    dropping = '\n[streams.train.characters]\nunknown = "drop"\n'
    made = job(tmp_path, example("toml", "speech/data") + dropping)
    assert index_streams(made, ["train"])["train"].samples == ROWS
    assert [field.key for field in Stream(made, "train").chain.fields] == ["audio", "text"]


def test_images_of_the_hub(tmp_path: Path) -> None:
    shutil.copytree(HUB / "saved", tmp_path / "pictures")
    made = job(tmp_path, example("toml", "pictures/train") + 'columns = ["image", "label"]\n')
    assert index_streams(made, ["train"])["train"].samples == ROWS
    fields = Stream(made, "train").chain.fields
    assert [(field.key, field.shape) for field in fields] == [("image", (None, 224, 3)), ("label", ())]


def test_files_named_by_a_manifest(tmp_path: Path) -> None:
    for row in range(3):
        np.save(tmp_path / f"{row}.npy", np.zeros((row + 1, 80), np.float32))
        PIL.Image.new("RGB", (20 + row, 10)).save(tmp_path / f"{row}.png")
    rows = [f"{row}.npy,{row}.png,{row},some text,more" for row in range(3)]
    (tmp_path / "train.csv").write_text("\n".join(["mel,photo,label,text,further", *rows]))
    made = job(tmp_path, example("toml", 'source = "files"'))
    assert index_streams(made, ["train"])["train"].samples == 3
    fields = Stream(made, "train").chain.fields
    assert {field.key: field.shape for field in fields} == {"mel": (None, 80), "photo": (224, 224, 3), "label": ()}


def test_numpy_arrays(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    arrays = {"tokens_values": np.arange(12), "tokens_offsets": np.arange(5) * 3, "label": np.arange(4)}
    for name, array in arrays.items():
        np.save(tmp_path / "data" / name, array)
    made = job(tmp_path, example("toml", 'source = "numpy"'))
    assert index_streams(made, ["train"])["train"].samples == 4
    assert [field.key for field in Stream(made, "train").chain.fields] == ["label", "tokens"]


def test_lhotse(tmp_path: Path) -> None:
    write_audio(tmp_path)
    shutil.copy(GOLDEN / "cuts.jsonl.gz", tmp_path)
    dropping = '\n[streams.train.characters]\nunknown = "drop"\n'  # an ï in 16 letters
    made = job(tmp_path, "max_bad = 1.0\n" + example("toml", 'sample = "supervision"') + dropping)
    index_streams(made, ["train"])
    assert Stream(made, "train").samples == 6


def test_stored_features_of_lhotse(tmp_path: Path) -> None:
    shutil.copytree(CUTS / "numpy_files", tmp_path, dirs_exist_ok=True)
    (tmp_path / "cuts.jsonl").rename(tmp_path / "features.jsonl")
    made = job(tmp_path, example("toml", "features.jsonl"))
    assert index_streams(made, ["train"])["train"].samples == 4
    stream = Stream(made, "train")
    assert [field.key for field in stream.chain.fields] == ["features", "alignment", "snr"]
    assert stream.plan.dropped == {"filtered": 2}, "of the radio"


def test_cuts_that_lhotse_makes(tmp_path: Path) -> None:
    write_recordings_of_made_cuts(tmp_path)
    shutil.copy(CUTS / "made.jsonl", tmp_path)
    text = example("toml", "use_lhotse").replace(', "shar/"', "").replace("300 s", "99999 frames")
    made = job(tmp_path, text)
    lines = (tmp_path / "made.jsonl").read_bytes().splitlines()
    assert index_streams(made, ["train"])["train"].samples == len(lines)
    assert Stream(made, "train").samples == len(lines)


def test_array_record(tmp_path: Path) -> None:
    records = (example_protos.example(audio=[0.5] * (n + 1), label=n, words="one") for n in range(9))
    write_array_records(tmp_path / "train.array_record", records)
    made = job(tmp_path, example("toml", "*.array_record"))
    assert index_streams(made, ["train"])["train"].samples == 9
    assert [field.key for field in Stream(made, "train").chain.fields] == ["audio", "label"]


def test_tfds(tmp_path: Path) -> None:
    prepare(tmp_path / "tensorflow_datasets" / "tiny" / "1.0.0", [map(spoken_example, range(1, 11))])
    made = job(tmp_path, example("toml", "tensorflow_datasets/tiny"))
    assert index_streams(made, ["train"])["train"].samples == 9
    assert [field.key for field in Stream(made, "train").chain.fields] == ["audio", "label"]


def test_webdataset(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    clips = (make_corpus(tmp_path, samples=4, style="csv", suffix="flac").parent / "clips").iterdir()
    texts = {clip: clip.with_suffix(".txt").name for clip in clips}
    members = [one for clip, text in texts.items() for one in ((clip.name, clip.read_bytes()), (text, b"a"))]
    for number in range(2):
        write_shard(tmp_path / "shards" / f"train-000{number}.tar", members)
    made = job(tmp_path, example("toml", "shards/train-{").replace("..0099", "..0001"))
    assert index_streams(made, ["train"])["train"].samples == 8
    assert [field.key for field in Stream(made, "train").chain.fields] == ["audio", "text"]


def test_hdf5(tmp_path: Path) -> None:
    write_ragged(tmp_path / "train.h5", ragged(3, 5))
    made = job(tmp_path, example("toml", 'source = "hdf5"'))
    index_streams(made, ["train"])
    assert [field.key for field in Stream(made, "train").chain.fields] == ["audio", "label"]


def test_a_source_imports_all_from_one_place() -> None:
    for name in loader_server.sources.__all__:
        assert hasattr(loader_server.sources, name)
    assert {"BadRow", "Field", "Found", "Indexed", "Inventory", "Source", "setting"} <= set(
        loader_server.sources.__all__
    )

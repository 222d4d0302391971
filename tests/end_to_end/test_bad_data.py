"""Bad data through the real command: `loader-server run` leaves bad rows out and trains on all others, refuses what it
cannot use before anything is served, and tells trainers of data that change under a running job.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import trainer_client
from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from tests.loader_server import test_bad_input as data
from tests.support.corpora import make_corpus
from tests.support.disk import small_disk
from tests.support.example_protos import example
from tests.support.forked import run_module
from tests.support.loaders import running
from tests.support.records import damage, write_records
from tests.support.shards import tar_of, write_shard
from tests.support.stores import StoreProxy, plain_server
from tests.support.without_package import run_without

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.loaders import Loaders

#: Streams of data with a bad row each: what they say, how many samples are left, and what is said of the other.
BAD_ROWS = {
    "text": (data.LINES, 2, r"a\.txt, line 2: not_utf8: expected UTF-8, got the byte 0xf6"),
    "names": (
        data.SHARDS,
        2,
        r"a\.tar, line 0: unsafe_name: expected a name inside of the archive, got '\.\./1\.npy'",
    ),
    "cut": (data.SHARDS.replace("*", "cut/*"), 3, r"a\.tar, line 3: broken_file: .* nothing from byte 3072 on can be"),
    "nulls": (data.PARQUET, 2, r'a\.parquet, line 1: null: expected "tokens" without nulls, got one'),
    "checksum": (data.CHECKED, 2, r"a\.tfrecord, line 0: wrong_checksum: expected the checksum 0x"),
    "command": (
        data.KALDI.replace('"data"', '"kaldi"'),
        2,
        r"wav\.scp, line 3: command: .* got a command, which is never run \(touch RAN \|\): run the commands once",
    ),
}
#: Streams whose data change while they are served: what a trainer hears.
CHANGING = {
    "line": (
        data.LINES.replace("a.txt", "b.txt"),
        r"b\.txt, line 2 .*: expected the line that was indexed .*, got other bytes: .* Put the file back, .*or run",
    ),
    "shard": (
        data.SHARDS.replace("*", "b/*"),
        r"b/a\.tar.*: expected the file that was indexed .* got another one of .* run",
    ),
    "recording": (
        data.MANIFEST,
        r"00001\.wav .*: expected to read the sample, got .*No such file .* Check the disk or mount",
    ),
    "store": (data.LINES, r"far/c\.txt .*: expected a file that may be read, got a refusal \(403 .*Give the loaders"),
}


def stream(name: str, said: str) -> str:
    return f'[streams.{name}]\n{said}\nbudget = "20000 steps"\n'


def write_bad_rows(folder: Path) -> None:
    (folder / "a.txt").write_bytes(b"one\nzw\xf6lf\nthree\n")
    write_shard(folder / "a.tar", [("../1.npy", data.ONE), ("2.npy", data.ONE), ("3.npy", data.ONE)])
    (folder / "cut").mkdir()
    (folder / "cut/a.tar").write_bytes(tar_of([(f"{n}.npy", data.ONE) for n in range(9)])[:3500])
    data.parquet("a.parquet", data.tokens(pa.int32(), [[1], [1, None], [2]]))(folder)
    write_records(folder / "a.tfrecord", [example(x=[1.0] * n) for n in (1, 2, 3)])
    damage(folder / "a.tfrecord", b"\x00\x00\x80\x3f")
    data.write_recordings(folder / "kaldi", "a", "b", seconds=0.1)
    with (folder / "kaldi/wav.scp").open("a") as table:
        table.write("c touch RAN |\n")


def write_good_data(folder: Path) -> None:
    (folder / "b.txt").write_text("one\ntwo\nthree\n")
    (folder / "b").mkdir()
    write_shard(folder / "b/a.tar", [(f"{n}.npy", data.ONE) for n in range(3)])
    make_corpus(folder, samples=4).rename(folder / "a.csv")
    (folder / "far").mkdir()
    (folder / "far/c.txt").write_text("one\n" * 3)


def change_all(folder: Path) -> None:
    (folder / "b.txt").write_text("one\nTWO\nthree\n")
    write_shard(folder / "b/a.tar", [(f"{n}.npy", data.ONE) for n in range(3, 6)])
    (folder / "clips/00001.wav").unlink()
    for block in (folder / ".stoker/remote/entries").rglob("*"):
        if block.is_file():
            block.unlink()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProxy]:
    """A server of files, and one that says 404 and 403 as S3 does."""
    folder = tmp_path_factory.mktemp("far")
    with plain_server(folder, ranges=True) as target, StoreProxy(target) as one, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", one.url)
        patch.setenv("AWS_ACCESS_KEY_ID", "somebody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
        patch.setattr(one, "folder", folder, raising=False)
        yield one


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Loaders, StoreProxy]]:
    """All streams in one job."""
    folder = tmp_path_factory.mktemp("bad")
    write_bad_rows(folder)
    write_good_data(folder)
    with plain_server(folder, ranges=True) as target, StoreProxy(target) as store:
        streams = {name: said for name, (said, *_) in (BAD_ROWS | CHANGING).items()}
        streams["store"] = streams["store"].replace("a.txt", f"{store.url}/far/c.txt")
        tables = "".join(stream(name, said) for name, said in streams.items())
        (folder / "job.toml").write_text(f'[job]\nname = "j"\nlisten = "tcp://127.0.0.1:*"\n{tables}')
        with running(folder / "job.toml", workers=1) as loaders:
            yield folder, loaders, store


def samples_of(loaders: Loaders, stream: str) -> int:
    with trainer_client.connect(loaders.endpoint, stream=stream) as feed:
        return sum(int((batch["weight"] > 0).sum()) for batch in feed)


def test_bad_rows_are_named_and_all_others_are_trained_on(served: tuple[Path, Loaders, StoreProxy]) -> None:
    folder, loaders, _ = served
    for name, (_, samples, expected) in BAD_ROWS.items():
        indexed = rf"{name}: {samples} samples of {samples + 1} rows, .*\n(  characters: .*\n)?"
        assert re.search(rf"{indexed}  left out: .*{expected}", loaders.text())
        assert samples_of(loaders, name) == samples
    assert not (folder / "RAN").exists()
    assert (folder / ".stoker/j/quarantine.jsonl").read_text() == ""


@pytest.mark.slow
def test_a_trainer_hears_which_data_changed_and_what_to_do(served: tuple[Path, Loaders, StoreProxy]) -> None:
    folder, loaders, store = served
    change_all(folder)
    store.fault = lambda *_: 403
    for name, (_, expected) in CHANGING.items():
        with pytest.raises(trainer_client.DataError, match=expected):
            samples_of(loaders, name)
    assert samples_of(loaders, "text") == 2  # other streams go on


# --- refused before anything is served ---

#: What lacks in this Python, the stream, the data, and what is said.
REFUSED: dict[str, tuple[str, str, Callable[[Path], object], str]] = {
    "another schema": (
        "",
        data.PARQUET,
        data.both(
            data.parquet("a.parquet", data.tokens(pa.int32())), data.parquet("b.parquet", data.tokens(pa.int64()))
        ),
        r'b\.parquet: expected "tokens" as int32 \[any\], .* got "tokens" as int64 \[any\]\. All files need one schema',
    ),
    "a bucket that is not there": (
        "",
        data.LINES.replace("a.txt", "s3://nowhere/a.txt"),
        lambda folder: None,
        r"s3://nowhere/a\.txt: .* got none of this name, or no such bucket\. Mend `paths`",
    ),
    "credentials that are refused": (
        "",
        data.LINES.replace("a.txt", "s3://closed/a.txt"),
        lambda folder: None,
        r"s3://closed/a\.txt: .* got a refusal \(.*\)\. Give the loaders credentials",
    ),
    "an extra that is missing": (
        "pyarrow",
        data.PARQUET,
        data.parquet("a.parquet", data.tokens(pa.int32())),
        r"Run `pip install 'stoker\[parquet\]'`",
    ),
    "a length that is none": (
        "",
        data.RECORDS,
        lambda folder: write_records(folder / "a.tfrecord", [example(x=[1.0])] * 3),
        r'\[streams\.train\], length: expected .* a key with a padded axis, got "x", which is padded nowhere\.',
    ),
}


def test_what_cannot_be_used_ends_run_before_anything_is_served(tmp_path: Path, store: StoreProxy) -> None:
    store.fault = lambda _, path: 404 if "nowhere" in path else 403
    jobs = []
    for name, (_, said, write, _) in REFUSED.items():
        (folder := tmp_path / name).mkdir()
        write(folder)
        jobs.append(data.job_of(folder, said))
    commands = [(lacking, "run", job) for (lacking, *_), job in zip(REFUSED.values(), jobs, strict=True)]
    for name, (code, said) in zip(REFUSED, run_without(commands), strict=True):
        assert (code, said[:15], said.count("\n")) == (1, "loader-server: ", 1), said
        assert re.search(REFUSED[name][3], said), said
        assert "secret" not in said
        assert not data.left_below(tmp_path / name) or name == "a length that is none", said


def test_data_that_changed_before_a_start_are_refused_and_their_index_stays(tmp_path: Path, store: StoreProxy) -> None:
    store.fault = lambda *_: None
    streams = {"changed": data.LINES, "gone": data.LINES, "far": data.LINES.replace("a.txt", f"{store.url}/a.txt")}
    (store.folder / "a.txt").write_text(data.TEXT)  # type: ignore[attr-defined]
    jobs = {}
    for name, said in streams.items():
        (folder := tmp_path / name).mkdir()
        (folder / "a.txt").write_text(data.TEXT)
        jobs[name] = data.job_of(folder, said)
        index_streams(JobFile(folder / "job.toml"), ["train"], processes=1)
    make_corpus(tmp_path / "recording", samples=4).rename(tmp_path / "recording/a.csv")
    jobs["recording"] = data.job_of(tmp_path / "recording", data.MANIFEST)
    index_streams(JobFile(jobs["recording"]), ["train"], processes=1)
    recording = tmp_path / "recording/clips/00002.wav"
    recording.write_bytes(recording.read_bytes()[::-1])
    (tmp_path / "changed/a.txt").write_text(data.TEXT * 2)
    (tmp_path / "gone/a.txt").unlink()
    store.fault = lambda *_: 404
    before = {name: data.left_below(tmp_path / name) for name in jobs}
    expected = {
        "recording": r"00002\.wav \(.*a\.csv, line 4\): expected the file that was .* changed since\. Put .* run",
        "changed": r"a\.txt, index .*index-train: expected the file .* got another one \(.* run loader-server index",
        "gone": rf"a\.txt: {data.NO_FILE}",
        "far": r"a\.txt: expected a file that can be read, got none of this name",
    }
    for name, job in jobs.items():
        code, said, complained = run_module("loader_server", "run", str(job), "--workers", "1")
        assert code == 1
        assert re.search(expected[name], complained.splitlines()[0]), complained
        assert "is served" not in said + complained
        assert data.left_below(tmp_path / name) >= before[name]


def test_a_cache_without_room_ends_run_and_is_left_clean(tmp_path: Path, store: StoreProxy) -> None:
    store.fault = lambda *_: None
    (store.folder / "b.txt").write_text("a line\n" * 200_000)  # type: ignore[attr-defined]
    with small_disk(tmp_path / "disk", "512k") as disk:
        stream = data.LINES.replace("a.txt", f"{store.url}/b.txt")
        job = data.job_of(tmp_path, stream, f'remote_cache = "{disk.folder}"')
        code, _, said = run_module("loader_server", "run", str(job))
        assert code == 1
        assert re.search(rf"{disk.folder}: expected a folder that remote .* got No space left .* Make room there", said)
        assert [path for path in disk.folder.rglob("*") if path.is_file() and path.stat().st_size] == []

"""Bad data, tried as a user would: `loader-server index` or `show` says in one paragraph what was expected, what came
instead, where, and what to do; nothing is lost, and nothing half made is left.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
import zlib
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loader_server.cli import main
from tests.loader_server.sources.hdf5.data import ragged, write_ragged
from tests.loader_server.sources.speech.kaldi_data import table, write_recordings
from tests.support.corpora import make_corpus
from tests.support.disk import small_disk
from tests.support.example_protos import example
from tests.support.loaders import wait_until
from tests.support.prepared import prepare, spoken_example
from tests.support.records import damage, record, write_array_records, write_records
from tests.support.shards import npy, tar_of, write_shard
from tests.support.stores import StoreProxy, plain_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LINES = 'source = "lines"\npaths = ["a.txt"]\ntransforms = ["characters"]\nlength = "text"'
PARALLEL = LINES.replace('"lines"', '"parallel"').replace('["a.txt"]', '{ text = "a.txt", b = "b.txt" }')
JSON_LINES = 'source = "jsonl"\npaths = ["a.jsonl"]\ntransforms = ["characters"]\nlength = "text"'
MANIFEST = 'source = "manifest"\npaths = ["a.csv"]\nlength = "audio"'
SHARDS = 'source = "webdataset"\npaths = ["*.tar"]\nlength = "npy"'
PARQUET = 'source = "parquet"\npaths = ["data"]\nlength = "tokens"'
ARROW = 'source = "arrow"\npaths = ["saved"]\nlength = "tokens"'
RECORDS = 'source = "tfrecord"\npaths = ["a.tfrecord"]\nlength = "x"'
CHECKED = f"{RECORDS}\nchecksums = true"
ARRAY_RECORDS = 'source = "array_record"\npaths = ["a.array_record"]\nlength = "x"'
KALDI = 'source = "kaldi"\npaths = ["data"]\nlength = "audio"'
LHOTSE = 'source = "lhotse"\npaths = ["cuts.jsonl.gz"]\nlength = "audio"'
HDF5 = 'source = "hdf5"\npaths = ["a.h5"]\nlength = "audio"'
NUMPY = 'source = "numpy"\npaths = ["a.npy"]\nlength = "a"'
TFDS = 'source = "tfds"\nfolder = "tiny"\nsplit = "train"\nlength = "audio"'

ONE = npy(np.ones(3, np.float32))
TEXT = "one\nzwei Bäume\nseventeen\n"


def job_of(folder: Path, stream: str, more: str = "") -> str:
    job = folder / "job.toml"
    job.write_text(f'[job]\nname = "j"\n{more}\n[streams.train]\n{stream}\nbudget = "300 steps"\n')
    return str(job)


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code, and what was said on standard error."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(str(ended.value.code)), capsys.readouterr().err


def written(name: str, content: bytes | str) -> Callable[[Path], object]:
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(raw)


def cut(name: str, less: int) -> Callable[[Path], None]:
    """Take so many bytes from the end of a file."""

    def act(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:-less])

    return act


def tokens(kind: pa.DataType, rows: list[Any] | None = None) -> pa.Table:
    return pa.table({"tokens": pa.array(rows or [[1], [2, 3]], pa.list_(kind))})


def parquet(name: str, made: pa.Table) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        (folder / "data").mkdir(exist_ok=True)
        pq.write_table(made, folder / "data" / name)

    return act


def tar_header(at: int, size: bytes) -> Callable[[Path], object]:
    """A shard whose `at`th header says another size, with a checksum that fits."""
    raw = bytearray(tar_of([(f"{n}.npy", ONE) for n in range(3)]))
    begin = 1024 * at
    raw[begin + 124 : begin + 136] = size.ljust(12, b"\0")
    raw[begin + 148 : begin + 156] = b" " * 8
    raw[begin + 148 : begin + 156] = b"%06o\0 " % sum(raw[begin : begin + 512])
    return written("a.tar", bytes(raw))


def pax(line: bytes) -> Callable[[Path], object]:
    """A good sample, and one with this as its pax header."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, len(line)
    raw = tar_of([("0.npy", ONE)])[:1024] + header.tobuf(tarfile.USTAR_FORMAT) + line.ljust(512, b"\0")
    return written("a.tar", raw + tar_of([("1.npy", ONE)]))


def links(folder: Path) -> None:
    with tarfile.open(folder / "a.tar", "w") as shard:
        for name, kind in (("1.npy", tarfile.SYMTYPE), ("2.npy", tarfile.CHRTYPE), ("d", tarfile.DIRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            shard.addfile(member)
        for name in ("3.npy", "4.npy", "5.npy"):
            member = tarfile.TarInfo(name)
            member.size = len(ONE)
            shard.addfile(member, io.BytesIO(ONE))


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{}], object), allow_pickle=True)
    return file.getvalue()


def manifest(folder: Path, encoding: str) -> None:
    text = make_corpus(folder, samples=4).read_text()
    (folder / "a.csv").write_text(text.replace("zero", "nüll", 1), encoding)


def recordings(folder: Path, *more: str) -> None:
    write_recordings(folder / "data", "a", "b", seconds=0.1)
    with (folder / "data/wav.scp").open("a") as file:
        file.writelines(f"{line}\n" for line in more)


def both(*acts: Callable[[Path], object]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        for one in acts:
            one(folder)

    return act


NO_TEXT = r"expected a text file in UTF-8, got one {}\. {} it once"
UTF16, GZIP = NO_TEXT.format("in UTF-16", "Convert"), NO_TEXT.format("that is compressed by gzip", "Unpack")
NO_FILE = "expected a file that can be read, got No such file or directory. Mend `paths` of the stream"

#: What data the user has, and what the command says.
REFUSED: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "lines in UTF-16": (LINES, written("a.txt", TEXT.encode("utf-16")), rf"a\.txt: {UTF16}"),
    "lines in UTF-16 without mark": (LINES, written("a.txt", TEXT.encode("utf-16-le")), r"UTF-16, without its mark\."),
    "lines in gzip": (LINES, written("a.txt", gzip.compress(b"a\n")), rf"a\.txt: {GZIP}"),
    "lines of nothing": (LINES, written("a.txt", b""), r"a\.txt: expected at least one good row, .*Name other data"),
    "lines that are not there": (LINES, lambda folder: None, NO_FILE),
    "a link to nowhere": (LINES, lambda folder: (folder / "a.txt").symlink_to("gone"), NO_FILE),
    "a folder for a file": (LINES, lambda folder: (folder / "a.txt").mkdir(), r"a\.txt: expected files .* got none"),
    "one of parallel files in gzip": (
        PARALLEL,
        both(written("a.txt", TEXT), written("b.txt", gzip.compress(b"a\n"))),
        rf"b\.txt: {GZIP}",
    ),
    "parallel files of other length": (
        PARALLEL,
        both(written("a.txt", TEXT), written("b.txt", "one\n")),
        r"b\.txt: expected equally many lines .* got 1 in .*b\.txt, 3 in .*a\.txt\. It ends first, after line 1",
    ),
    "JSON in UTF-16": (JSON_LINES, written("a.jsonl", '{"text": "a"}\n'.encode("utf-16")), rf"a\.jsonl: {UTF16}"),
    "one JSON array": (
        JSON_LINES,
        written("a.jsonl", json.dumps([{"text": "a"}], indent=1)),
        r"a\.jsonl: expected objects .* got none in the first 100 rows \(line 1: expected JSON: .*\)\. Convert",
    ),
    "a manifest in UTF-16": (MANIFEST, lambda folder: manifest(folder, "utf-16"), rf"a\.csv: {UTF16}"),
    "a manifest without columns": (
        MANIFEST,
        written("a.csv", "x,y\n1,2\n"),
        r'a\.csv: expected a column "audio" or .* got the columns x, y\. Rename the column',
    ),
    "names that lead out of a shard": (
        SHARDS,
        lambda folder: write_shard(folder / "a.tar", [("/etc/1.npy", ONE), ("../2.npy", ONE)]),
        r"expected members .* got none .*a\.tar: expected a name inside of the archive, got '/etc/1\.npy'",
    ),
    "mostly names that lead out": (
        SHARDS,
        lambda folder: write_shard(folder / "a.tar", [("/1.npy", ONE), ("a/../2.npy", ONE), ("3.npy", ONE)]),
        r"got 2 bad of 3 \(2 unsafe_name\)\. The first: .*a\.tar, line 0: .*\(and 1 more .* All are in",
    ),
    "a shard that is none": (SHARDS, written("a.tar", b"hello" * 500), r"a\.tar: expected a tar file, got another one"),
    "a shard in gzip": (SHARDS, written("a.tar", gzip.compress(tar_of([("1.npy", ONE)]))), r"compressed by gzip.*once"),
    "pickles in a shard": (
        SHARDS,
        lambda folder: write_shard(folder / "a.tar", [("1.npy", pickled())]),
        r"a\.tar: 1\.npy: expected .* got an array of Python objects, which are never read\)",
    ),
    "a member larger than its shard": (SHARDS, tar_header(0, b"77777777777"), r"a member has \d+ bytes, but the file"),
    "another schema": (
        PARQUET,
        both(parquet("a.parquet", tokens(pa.int32())), parquet("b.parquet", tokens(pa.int64()))),
        r'b\.parquet: expected "tokens" as int32 \[any\], .* got "tokens" as int64 \[any\]\. All files need one schema',
    ),
    "nulls only": (
        PARQUET,
        parquet("a.parquet", tokens(pa.int32(), [None, [None]])),
        r'2 bad of 2 \(2 null\)\. The first: .*line 0: null: expected "tokens" without nulls',
    ),
    "structs in lists": (
        PARQUET,
        parquet("a.parquet", pa.table({"tokens": pa.array([[{"a": 1}]])})),
        r'expected "tokens" of numbers, .* got list<.*struct<a: int64>>\. Name the columns',
    ),
    "Parquet cut short": (
        PARQUET,
        both(parquet("a.parquet", tokens(pa.int32())), cut("data/a.parquet", 9)),
        r"a\.parquet: expected a whole file of this format, got .*[^.]\. Write it anew",
    ),
    "Arrow that is no data set": (
        ARROW,
        both(lambda folder: (folder / "saved").mkdir(), written("saved/state.json", "{")),
        r"state\.json: expected a file .* Save the data set anew",
    ),
    "records in zlib": (
        RECORDS,
        written("a.tfrecord", zlib.compress(record(example(x=[1.0])))),
        r"a\.tfrecord: expected a TFRecord file that is not compressed, got .*ZLIB\. Write it again",
    ),
    "text in gzip for records": (
        RECORDS,
        written("a.tfrecord", gzip.compress(TEXT.encode() * 9)),
        r"a\.tfrecord: expected a TFRecord file, got",
    ),
    "records that are text": (RECORDS, written("a.tfrecord", TEXT * 9), r"a\.tfrecord: expected a TFRecord file, got"),
    "no records": (RECORDS, written("a.tfrecord", b""), r"got no records at all\. Name other files"),
    "ArrayRecord cut short": (
        ARRAY_RECORDS,
        both(
            lambda folder: write_array_records(folder / "a.array_record", [example(x=[1.0])]),
            cut("a.array_record", 500),
        ),
        r"expected a whole ArrayRecord file, got one without its end.* write or copy the file again",
    ),
    "commands only": (
        KALDI,
        lambda folder: table(folder / "data", "wav.scp", "u1 touch RAN; cat x |"),
        r"wav\.scp, line 1: command: expected a file .* got a command, which is never run .*: run the commands once",
    ),
    "tables in UTF-16": (
        KALDI,
        both(recordings, lambda folder: (folder / "data/wav.scp").write_text("a a.wav\n", "utf-16")),
        rf"wav\.scp: {UTF16}",
    ),
    "no tables": (KALDI, lambda folder: (folder / "data").mkdir(), r"expected a Kaldi data folder with the table wav"),
    "cuts that are not in gzip": (LHOTSE, written("cuts.jsonl.gz", "{}\n"), "expected a whole gzip file, got BadGzip"),
    "cuts cut short": (
        LHOTSE,
        both(written("cuts.jsonl.gz", gzip.compress(b'{"id": 1}\n' * 99)), cut("cuts.jsonl.gz", 5)),
        r"expected a whole gzip file, got EOFError.* It is cut short or damaged: write or copy it anew",
    ),
    "recordings for cuts": (
        LHOTSE,
        written("cuts.jsonl.gz", gzip.compress(b'{"id": "r", "sources": [], "sampling_rate": 16000}\n')),
        r"line 1: cut_type: expected a MonoCut or MultiCut, got a line of a recording manifest: write cuts",
    ),
    "HDF5 cut short": (
        HDF5,
        both(lambda folder: write_ragged(folder / "a.h5", ragged(3, 4)), cut("a.h5", 99)),
        r"a\.h5: expected a whole HDF5 file, got .*truncated.* write or copy it anew",
    ),
    "pickles for arrays": (NUMPY, written("a.npy", pickled()), r"a\.npy: expected .* no pickles, got .*objects"),
    "text for arrays": (NUMPY, written("a.npy", TEXT), r"got pickled objects, or no arrays at all\. Write it anew by"),
    "no data set": (TFDS, lambda folder: (folder / "tiny").mkdir(), r"tiny: expected a data set that TensorFlow Datas"),
    "a shard that is gone": (
        TFDS,
        both(
            lambda folder: prepare(folder / "tiny", [[spoken_example(3)], [spoken_example(4)]]),
            lambda folder: next((folder / "tiny").glob("*00001-of*")).unlink(),
        ),
        rf"00001-of-00002: {NO_FILE}",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_data_are_refused_in_one_paragraph(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream, write, expected = REFUSED[name]
    write(tmp_path)
    code, said = command(capsys, "index", job_of(tmp_path, stream))
    assert code == 1
    assert said.startswith("loader-server: ")
    assert said.count("\n") == 1
    assert re.search(expected, said), said
    assert left_below(tmp_path) <= {"refused_rows.jsonl"}
    assert not (tmp_path / "RAN").exists()


def left_below(folder: Path) -> set[str]:
    """The files that commands left, but for what the machine remembers of files."""
    left = {path.name for path in (folder / ".stoker").rglob("*") if path.is_file()}
    return left - {"seen_files"}


#: What data the user has, how many samples they are, and what is said of the one that is left out.
LEFT_OUT: dict[str, tuple[str, Callable[[Path], object], int, str]] = {
    "a line in Latin-1": (
        LINES,
        written("a.txt", TEXT.encode() + "schön\n".encode("latin-1")),
        3,
        r"a\.txt, line 4: not_utf8: expected UTF-8, got the byte 0xf6 after 3 others",
    ),
    "a manifest's row in Latin-1": (
        MANIFEST,
        lambda folder: manifest(folder, "latin-1"),
        3,
        r"a\.csv, line 2: not_utf8",
    ),
    "a shard cut short": (
        SHARDS,
        written("a.tar", tar_of([(f"{n}.npy", ONE) for n in range(9)])[:3500]),
        3,
        r"a\.tar, line 3: broken_file: .* nothing from byte 3072 on can be read",
    ),
    "a header that does not fit": (
        SHARDS,
        both(tar_header(2, b"0"), lambda folder: flip(folder / "a.tar", 2048 + 5)),
        2,
        r"line 2: broken_file: the checksum of a header does not match",
    ),
    "a size below zero": (SHARDS, tar_header(2, b"-0000002000"), 2, r"line 2: broken_file: the checksum of a header"),
    "a pax header that never ends": (SHARDS, pax(b"0 a=b\n"), 1, r"line 1: broken_file: a pax header cannot be read"),
    "a pax size below zero": (SHARDS, pax(b"14 size=-1024\n"), 1, r"line 1: broken_file: a pax header cannot be read"),
    "a pax size that is none": (SHARDS, pax(b"11 size=abc\n"), 1, r"line 1: broken_file: a pax header cannot be read"),
    "a null in a list": (
        PARQUET,
        parquet("a.parquet", tokens(pa.int32(), [[1], [1, None], [2]])),
        2,
        r'a\.parquet, line 1: null: expected "tokens" without nulls',
    ),
    "a command in a table": (
        KALDI,
        lambda folder: recordings(folder, "c touch RAN |"),
        2,
        r"wav\.scp, line 3: command: .* got a command, which is never run \(touch RAN \|\)",
    ),
    "a wrong checksum": (
        CHECKED,
        both(
            lambda folder: write_records(folder / "a.tfrecord", [example(x=[1.0] * n) for n in (1, 2, 3)]),
            lambda folder: damage(folder / "a.tfrecord", b"\x00\x00\x80\x3f"),
        ),
        2,
        r"a\.tfrecord, line 0: wrong_checksum: expected the checksum 0x",
    ),
    "records cut short": (
        RECORDS,
        both(
            lambda folder: write_records(folder / "a.tfrecord", [example(x=[1.0] * n) for n in (1, 2, 3)]),
            cut("a.tfrecord", 5),
        ),
        2,
        r"a\.tfrecord, line 2: broken_file: .* nothing from byte \d+ on can be read",
    ),
}


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_cannot_be_used_is_left_out_and_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream, write, samples, expected = LEFT_OUT[name]
    write(tmp_path)
    code, said = command(capsys, "index", job_of(tmp_path, stream))
    assert code == 0
    assert re.search(f"left out: .*{expected}", said), said
    meta = json.loads((tmp_path / ".stoker/j/index-train/meta.json").read_text())
    assert (meta["samples"], sum(meta["bad"].values())) == (samples, 1)
    assert not (tmp_path / "RAN").exists()


def test_an_index_of_other_files_is_refused_and_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = job_of(tmp_path, LINES)
    (tmp_path / "a.txt").write_text(TEXT)
    assert command(capsys, "index", job)[0] == 0
    before = {path.name for path in (tmp_path / ".stoker").rglob("*")}
    (tmp_path / "a.txt").write_text(TEXT * 2)
    code, said = command(capsys, "show", job)
    assert code == 1
    assert re.search(r"a\.txt, index .*index-train: expected the file .* got another one \(.* run loader-server", said)
    (tmp_path / "a.txt").unlink()
    for verb in ("show", "index"):
        assert re.search(rf"a\.txt: {NO_FILE}", command(capsys, verb, job)[1])
    (tmp_path / "a.txt").write_text(TEXT)
    assert command(capsys, "show", job)[0] == 0
    assert {path.name for path in (tmp_path / ".stoker").rglob("*")} >= before


@pytest.mark.parametrize(("damaged", "content"), [("meta.json", "{"), ("columns-*/line.npy", "")])
def test_a_damaged_index_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: str, content: str
) -> None:
    job = job_of(tmp_path, LINES)
    (tmp_path / "a.txt").write_text(TEXT)
    command(capsys, "index", job)
    (file,) = (tmp_path / ".stoker/j/index-train").glob(damaged)
    file.write_text(content)
    assert re.search(
        r"index-train: expected a whole index, .* run loader-server index", command(capsys, "show", job)[1]
    )
    assert command(capsys, "index", job)[0] == 0
    assert command(capsys, "show", job)[0] == 0


def test_a_job_file_that_is_not_utf8_names_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.toml"
    job.write_bytes('[job]\nname = "häuser"\n'.encode("latin-1"))
    code, said = command(capsys, "index", str(job))
    assert code == 1
    assert "job.toml, line 2: expected a job file in UTF-8, got the byte 0xe4. Save it as UTF-8." in said


# --- remote ---


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProxy]:
    """A server of the folder `folder`, which may answer with a fault, whether it is asked as one of files or as S3."""
    folder = tmp_path_factory.mktemp("far")
    with plain_server(folder, ranges=True) as target, StoreProxy(target) as one, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", one.url)
        patch.setenv("AWS_ACCESS_KEY_ID", "somebody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
        patch.setattr(one, "folder", folder, raising=False)
        s3 = fsspec.get_filesystem_class("s3")  # which keeps what it made of the environment
        s3.clear_instance_cache()
        yield one
        s3.clear_instance_cache()


STORES: dict[str, tuple[str, int | None, str]] = {
    "a bucket that is not there": (
        "s3://nowhere/a.txt",
        404,
        r"s3://nowhere/a\.txt: .* got none of this name, or no such bucket\. Mend `paths`",
    ),
    "a closed bucket": (
        "s3://closed/a.txt",
        403,
        r"s3://closed/a\.txt: .* got a refusal \(.*\)\. Give the loaders credentials",
    ),
    "a closed server": ("{}/a.txt", 401, r"a\.txt: expected a file that may be read, got a refusal \(401 .*Give the"),
    "a server without it": ("{}/a.txt", 404, r"a\.txt: expected a file that can be read, got none of this name"),
    "no such store": ("nothing://x/a.txt", None, r"nothing://x/a\.txt: expected what reads nothing:// .*Run `pip ins"),
}


@pytest.mark.parametrize("name", STORES)
def test_what_a_store_refuses_is_said_without_secrets(
    name: str, store: StoreProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, fault, expected = STORES[name]
    store.fault = lambda *_: fault
    code, said = command(capsys, "index", job_of(tmp_path, LINES.replace("a.txt", url.format(store.url))))
    assert code == 1
    assert re.search(expected, said), said
    assert "secret" not in said
    assert "somebody" not in said
    assert left_below(tmp_path) == set()


def test_a_cache_without_room_is_named_and_left_clean(
    store: StoreProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.fault = lambda *_: None
    with small_disk(tmp_path / "disk", "512k") as disk:
        (store.folder / "a.txt").write_text("a line\n" * 200_000)
        job = job_of(tmp_path, LINES.replace("a.txt", f"{store.url}/a.txt"), f'remote_cache = "{disk.folder}"')
        code, said = command(capsys, "index", job)
        assert code == 1
        expected = rf"{disk.folder}: expected a folder that remote files .* got No space left .* Make room there"
        assert re.search(expected, said), said
        parts = [disk.folder / part for part in ("entries", "underway")]
        # Threads that fetch ahead may be at it still: they clean up as well.
        wait_until(lambda: not any(list(part.rglob("*")) for part in parts), "nothing is left")
        (store.folder / "a.txt").write_text(TEXT)
        assert command(capsys, "index", job)[0] == 0

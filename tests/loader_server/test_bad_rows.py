"""One row of nonsense among good ones: it is left out, counted and named, and the others become samples."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.cli import main
from tests.loader_server.sources.speech.kaldi_data import features, table, write_features, write_recordings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

JOB = '[job]\nname = "j"\nmax_bad = "1 samples"\n[streams.train]\n{}\nbudget = "300 s"\n'
LONG = "9" * 20
LONGER = "9" * 400
DIGITS = "9" * 5000

#: Rows of a manifest: path, offset and duration.
MANIFEST_ROWS = {
    "an offset of 20 digits": ("a.wav", LONG, "1"),
    "an offset of 400 digits": ("a.wav", LONGER, "1"),
    "an offset of 5 000 digits": ("a.wav", DIGITS, "1"),
    "an infinite offset": ("a.wav", "inf", "1"),
    "an offset before the beginning": ("a.wav", "-1e300", "1"),
    "an offset that is no number": ("a.wav", "nan", "1"),
    "a tiny offset": ("a.wav", "-1e-300", "nan"),
    "a duration of 20 digits": ("a.wav", "0.1", LONG),
    "a duration of 400 digits": ("a.wav", "0.1", LONGER),
    "an infinite duration": ("a.wav", "0.1", "1e999"),
    "a duration that is infinite and negative": ("a.wav", "0.1", "-inf"),
    "a large duration": ("a.wav", "0.1", "1e308"),
    "a large offset": ("a.wav", "1e308", "1e308"),
    "a duration below nothing": ("a.wav", "0.1", "-1e308"),
    "a file URL": ("file://a.wav", "0", "0.1"),
    "a file URL of a host": ("file://host/a.wav", "0", "0.1"),
    "a file URL from the root": ("file:///etc/hostname", "0", "0.1"),
    "a URL of no store": ("nothing://x/a.wav", "0", "0.1"),
    "a URL of no host": ("http://", "0", "0.1"),
    "a URL with a port of nonsense": ("http://127.0.0.1:99999999/a.wav", "0", "0.1"),
    "a URL with brackets": ("http://[/a.wav", "0", "0.1"),
    "a URL with credentials": ("http://me:secret@127.0.0.1:9/a.wav", "0", "0.1"),
    "a URL of a long scheme": (f"{'z' * 10_000}://x", "0", "0.1"),
    "a data URL": ("data://x,y", "0", "0.1"),
    "a URL of memory": ("memory://a.wav", "0", "0.1"),
    "a URL of another's file": ("simplecache::file://a.wav", "0", "0.1"),
    "a long path": ("x" * 100_000, "0", "0.1"),
    "a long path in parts": ("x/" * 50_000, "0", "0.1"),
    "a folder": (".", "0", "0.1"),
    "a pipe": ("pipe.wav", "0", "0.1"),
    "a device": ("/dev/zero", "0", "0.1"),
    "memory of the kernel's": ("/proc/self/mem", "0", "0.1"),
    "a file of the kernel's": ("/proc/self/stat", "0", "0.1"),
    "a link to itself": ("loop.wav", "0", "0.1"),
    "a file below a file": ("a.wav/b.wav", "0", "0.1"),
    "an empty file": ("empty.wav", "0", "0.1"),
    "a control character": ("a\x1b.wav", "0", "0.1"),
}  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    write_recordings(folder, "a", "b", seconds=0.5)
    write_features(folder / "features", features(5, 9))
    os.mkfifo(folder / "pipe.wav")
    (folder / "loop.wav").symlink_to("loop.wav")
    (folder / "empty.wav").touch()
    (folder / "text.wav").write_text("no sound " * 99)
    return folder


@pytest.fixture
def folder(corpus: Path) -> Path:
    for name in (".stoker", "job.toml", "rows.csv", "rows.jsonl", "data"):
        path = corpus / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return corpus


def assert_one_row_is_left_out(
    folder: Path, stream: str, capsys: pytest.CaptureFixture[str], samples: int = 2, *, bad: int = 1
) -> None:
    (folder / "job.toml").write_text(JOB.format(stream))
    with pytest.raises(SystemExit) as ended:
        main(["index", str(folder / "job.toml")])
    said = capsys.readouterr().err
    assert ended.value.code == 0, said[:2000]
    meta = json.loads((folder / ".stoker/j/index-train/meta.json").read_text())
    assert (meta["samples"], sum(meta["bad"].values())) == (samples, bad), said[:2000]
    assert said.count("left out: ") == bad
    assert max(map(len, said.split("\n"))) < 1000, "a sentence, and not pages"
    assert "secret" not in said


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("name", MANIFEST_ROWS)
def test_a_row_of_a_manifest(name: str, kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("a.wav", "0", "0.1"), MANIFEST_ROWS[name], ("b.wav", "0", "0.1")]
    if kind == "csv":
        lines = [",".join(row) for row in [("audio", "offset", "duration"), *rows]]
    else:
        lines = [json.dumps({"audio": path, "offset": offset, "duration": duration}) for path, offset, duration in rows]
    (folder / f"rows.{kind}").write_text("\n".join(lines) + "\n")
    assert_one_row_is_left_out(folder, f'source = "manifest"\npaths = ["rows.{kind}"]\nlength = "audio"', capsys)


#: Lines of JSON.
JSON_ROWS = {
    "brackets": "[" * 100_000,
    "brackets in a value": '{"audio": ' + "[" * 100_000 + "}",
    "a number of 5 000 digits": '{"audio": "a.wav", "offset": ' + DIGITS + "}",
    "an offset of 20 digits": '{"audio": "a.wav", "offset": ' + LONG + "}",
    "an infinite duration": '{"audio": "a.wav", "offset": 0.1, "duration": -Infinity}',
    "an offset that is no number": '{"audio": "a.wav", "offset": NaN}',
    "an offset that is a list": '{"audio": "a.wav", "offset": [1]}',
    "a path that is a list": '{"audio": ["a.wav"]}',
    "a path that is a number": '{"audio": 1e999}',
    "a lone surrogate": '{"audio": "\\ud800.wav"}',
    "nothing": "null",
    "a NUL": '{"audio": "a\\u0000.wav"}',
    "a string without end": '{"audio": "' + "x" * 100_000,
}


@pytest.mark.parametrize("name", JSON_ROWS)
def test_a_line_of_json(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = [json.dumps({"audio": f"{path}.wav", "offset": 0, "duration": 0.1}) for path in "ab"]
    (folder / "rows.jsonl").write_text("\n".join([good[0], JSON_ROWS[name], good[1]]) + "\n")
    assert_one_row_is_left_out(folder, 'source = "manifest"\npaths = ["rows.jsonl"]\nlength = "audio"', capsys)


KALDI = 'source = "kaldi"\npaths = ["data"]\nlength = "audio"'
FEATURES = 'source = "kaldi"\npaths = ["data"]\nvalues = "features"\nlength = "features"'

SEGMENTS = {
    "a begin of 20 digits": f"a {LONG} {LONG}9",
    "a begin of 400 digits": f"a {LONGER} {LONGER}",
    "a begin of 5 000 digits": f"a {DIGITS} 1",
    "an end of 20 digits": f"a 0 {LONG}",
    "an infinite end": "a 0 inf",
    "an end before the beginning": "a 0.3 -1e300",
    "a channel of 20 digits": f"a 0 0.1 {LONG}",
    "a channel of 5 000 digits": f"a 0 0.1 {DIGITS}",
    "a begin that is no number": "a nan 0.1",
    "a recording of a long name": f"{'x' * 100_000} 0 0.1",
}

PLACES = {
    "an offset of 20 digits": f"features/feats.ark:{LONG}",
    "an offset of 400 digits": f"features/feats.ark:{LONGER}",
    "an offset of 5 000 digits": f"features/feats.ark:{DIGITS}",
    "an offset of 2^63": f"features/feats.ark:{2**63}",
    "an offset below 2^63": f"features/feats.ark:{2**63 - 1}",
    "a range of 20 digits": f"features/feats.ark:3[0:{LONG}]",
    "a range of 5 000 digits": f"features/feats.ark:3[0:{DIGITS}]",
    "a begin of 20 digits": f"features/feats.ark:3[{LONG}:{LONG}]",
    "a pipe": "pipe.wav:3",
    "a device": "/dev/zero:3",
    "memory of the kernel's": "/proc/self/mem:3",
    "a file of the kernel's": "/proc/self/stat:3",
    "a file URL": "file://a.ark:3",
    "a URL of no store": "nothing://x/a.ark:3",
    "a long path": f"{'x' * 100_000}:3",
    "a matrix larger than all": "huge.ark:0",
}


@pytest.mark.parametrize("name", SEGMENTS)
def test_a_segment(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(folder / "data", "wav.scp", "a a.wav", "b b.wav")
    table(folder / "data", "segments", "u1 a 0 0.1", f"u2 {SEGMENTS[name]}", "u3 b 0 0.1")
    assert_one_row_is_left_out(folder, KALDI, capsys)


@pytest.mark.parametrize("name", [name for name, (_, offset, _) in MANIFEST_ROWS.items() if offset == "0"])
def test_a_recording_of_a_table(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(folder / "data", "wav.scp", "a a.wav", f"x {MANIFEST_ROWS[name][0]}", "b b.wav")
    assert_one_row_is_left_out(folder, KALDI, capsys)


@pytest.mark.parametrize("name", PLACES)
def test_a_place_in_an_archive(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "huge.ark").write_bytes(b"\0BFM \4" + np.array(2**31 - 1, "<i4").tobytes() * 3)
    good = [line.split()[1] for line in (folder / "features/feats.scp").read_text().splitlines()]
    table(folder / "data", "feats.scp", f"u1 {good[0]}", f"u2 {PLACES[name]}", f"u3 {good[1]}")
    assert_one_row_is_left_out(folder, FEATURES, capsys)


def cut(**changes: Any) -> dict[str, Any]:
    source = {"type": "file", "channels": [0], "source": changes.pop("source", "a.wav")}
    recording = {"id": "r", "sources": [source], "sampling_rate": 8000, "num_samples": 4000, "duration": 0.5}
    recording |= changes.pop("recording", {})
    made = {"id": "c", "start": 0.0, "duration": 0.1, "channel": 0, "supervisions": [], "type": "MonoCut"}
    return made | {"recording": recording} | changes


CUTS: dict[str, Callable[[], dict[str, Any]]] = {
    "a start of 20 digits": lambda: cut(start=int(LONG)),
    "a start of 400 digits": lambda: cut(start=int(LONGER)),
    "a start that is infinite": lambda: cut(start=float("inf")),
    "a start that is no number": lambda: cut(start=float("nan")),
    "a start that is a list": lambda: cut(start=[1]),
    "a duration of 20 digits": lambda: cut(duration=int(LONG)),
    "a duration of 400 digits": lambda: cut(duration=int(LONGER)),
    "a duration that is infinite": lambda: cut(duration=float("inf")),
    "a duration that is no number": lambda: cut(duration=float("nan")),
    "a channel of 20 digits": lambda: cut(channel=int(LONG)),
    "a channel that is text": lambda: cut(channel="x"),
    "a rate of 400 digits": lambda: cut(recording={"sampling_rate": int(LONGER)}),
    "a rate of nothing": lambda: cut(recording={"sampling_rate": 0}),
    "sources of nothing": lambda: cut(recording={"sources": []}),
    "sources that are a number": lambda: cut(recording={"sources": 3}),
    "a recording that is a number": lambda: cut(recording_id="r") | {"recording": 3},
    "supervisions that are a number": lambda: cut(supervisions=3),
    "a supervision that is infinite": lambda: cut(supervisions=[{"id": "s", "start": float("inf"), "text": 3}]),
    "a file URL": lambda: cut(source="file://a.wav"),
    "a URL of no store": lambda: cut(source="nothing://x/a.wav"),
    "a pipe": lambda: cut(source="pipe.wav"),
    "a device": lambda: cut(source="/dev/zero"),
    "a NUL": lambda: cut(source="a\0.wav"),
    "a long path": lambda: cut(source="x" * 100_000),
}


@pytest.mark.parametrize("name", CUTS)
def test_a_cut(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [cut(id="one"), CUTS[name](), cut(id="two", source="b.wav")]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert_one_row_is_left_out(folder, 'source = "lhotse"\npaths = ["rows.jsonl"]\nlength = "audio"', capsys)

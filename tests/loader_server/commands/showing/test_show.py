"""`loader-server show`: what is seen of a batch is what a worker builds and a trainer gets."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from loader_server.building.builder import Builder
from loader_server.building.deadline import Deadline
from loader_server.building.quarantine import Quarantine
from loader_server.cli import main
from loader_server.commands.index import index_missing, index_streams
from loader_server.commands.showing.batch_picture import draw, segment_starts
from loader_server.commands.showing.shown_batch import BatchNumber, ShownBatch, ShownBatches
from loader_server.coordinator.events import CulpritFound, Forgot, GroupFixed
from loader_server.coordinator.journal import Journal
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from loader_server.transforms.generators import generator_for
from shared.errors import SettingsError
from shared.hashing import digest64
from tests.support.bad_samples import make_undecodable
from tests.support.loaders import write_job

_NOISE = "tests.support.transforms:noise"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFile:
    monkeypatch.chdir(tmp_path)
    return _indexed(write_job(tmp_path, samples=24, transforms=(_NOISE, "logmel", "characters")))


def _indexed(path: Path) -> JobFile:
    job = JobFile(path)
    index_missing(job)
    return job


def _said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["show", *map(str, arguments)])
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


def _facts(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    _, out, err = _said(capsys, *arguments, "--json")
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def _break(job: JobFile, name: str) -> None:
    """Other bytes, which indexing does not notice and decoding does."""
    path = job.base / name
    make_undecodable(path, soundfile.info(path).frames)
    index_streams(job, ["train"])


def _shown(job: JobFile, number: int = 0, **of: int) -> ShownBatch:
    return ShownBatches(Stream(job, "train"), ()).build(BatchNumber(**{"epoch": 3, "number": number, "group": 1, **of}))


def test_what_is_seen_is_what_a_worker_builds(job: JobFile, capsys: Any) -> None:
    facts = _facts(capsys, job.path, "--stream", "train", "--epoch", 3, "--batch", 1)
    stream = Stream(job, "train")
    builder = Builder(stream, Quarantine(job.base / "q.jsonl"), Deadline(9.0, lambda _: None))
    from loader_server.commands.showing.shown_batch import _want  # a want is a want

    want = _want(stream, BatchNumber(epoch=3, number=1, group=1))
    prepared = builder.prepare(want)
    payload = np.full(prepared.layout.nbytes, 0xA5, np.uint8)
    builder.build(want, prepared, payload)
    assert facts["digest"] == f"{digest64(payload.data):016x}"
    arrays = prepared.layout.arrays(payload)
    assert [one["sample"] for one in facts["samples"]] == [tag for tag in arrays["tag"].tolist() if tag >= 0]
    assert [one["lengths"]["audio"] for one in facts["samples"]] == [n for n in arrays["audio_length"].tolist() if n]
    assert facts["shapes"] == {"audio": list(arrays["audio"].shape), "text": list(arrays["text"].shape)}
    assert facts["rows"]["valid"] == len(facts["samples"])
    assert facts["rows"]["valid"] + facts["rows"]["empty"] == facts["rows"]["all"] == len(arrays["weight"])
    assert (facts["masked"], facts["plan"]) == ({}, stream.digest)


def test_each_sample_has_its_name_texts_and_what_was_drawn_for_it(job: JobFile, capsys: Any) -> None:
    for one in _facts(capsys, job.path, "--epoch", 3)["samples"]:
        line = (job.base / "csv.csv").read_text().splitlines()[one["sample"] + 1]
        assert f"{one['name']},{one['texts']['text']}" == line
        assert one["place"] == f"{job.base / 'csv.csv'}, line {one['sample'] + 2}"
        assert len(one["texts"]["text"]) == one["lengths"]["text"]
        (drawn,) = one["drawn"]
        expected = generator_for(7, 3, one["sample"]).standard_normal(drawn["shape"][0], dtype="float32")
        assert drawn["first"] == expected[:4].tolist()
        assert (drawn["transform"], drawn["method"]) == (_NOISE, "standard_normal")
        assert drawn["mean"] == float(expected.mean())


def test_texts_are_shown_as_they_are(tmp_path: Path, capsys: Any) -> None:
    texts = ["[noise] so [/noise]", ":smile: [link", "\x1b[31mred", "two\nlines\t\0"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"n": 1, "id": text}) + "\n" for text in texts))
    (tmp_path / "job.toml").write_text(
        '[job]\nname = "x"\n[streams.train]\nsource = "jsonl"\npaths = ["a.jsonl"]\nrows = 4\nstrings = ["id"]\n'
    )
    _indexed(tmp_path / "job.toml")
    code, out, _ = _said(capsys, tmp_path / "job.toml", "--batch", 0)
    assert code == 0
    for text in ("[noise] so [/noise]", ":smile: [link", r"\x1b[31mred", r"two\nlines\t\x00"):
        assert text in out


def test_a_masked_row_says_why_and_nothing_is_written(job: JobFile, capsys: Any) -> None:
    facts = _facts(capsys, job.path)
    broken = facts["samples"][1]
    _break(job, broken["name"])
    before = sorted(job.state.rglob("*"))
    masked = _facts(capsys, job.path)
    assert masked["masked"] == {"undecodable": 1}
    assert masked["rows"]["valid"] == facts["rows"]["valid"] - 1
    one = masked["samples"][1]
    assert one["masked"]["reason"] == "undecodable"
    assert broken["name"] in one["masked"]["error"]
    assert (one["lengths"], one["texts"], one["drawn"]) == ({"audio": 0, "text": 0}, {}, [])
    assert [other for other in masked["samples"] if other["row"] != 1] == [
        other for other in facts["samples"] if other["row"] != 1
    ]
    _, out, _ = _said(capsys, job.path)
    assert "masked, row 1: " in out
    assert "expected WAV, FLAC" in out
    assert sorted(job.state.rglob("*")) == before


def test_what_a_failing_transform_drew_before_is_shown(tmp_path: Path, capsys: Any) -> None:
    failing = "tests.support.transforms:always_raises"
    job = _indexed(write_job(tmp_path, samples=4, transforms=(_NOISE, failing, "logmel", "characters")))
    (one, *_) = _facts(capsys, job.path)["samples"]
    assert one["masked"]["reason"] == "transform"
    assert [drawn["transform"] for drawn in one["drawn"]] == [_NOISE]
    assert one["texts"]["text"]


def test_the_jobs_group_and_its_convictions_hold_here_too(job: JobFile, capsys: Any) -> None:
    stream = Stream(job, "train")
    victim, spared = (stream.identity(sample) for sample in (3, 4))
    journal = Journal(job.state / "journal.sqlite")
    convicted = [CulpritFound("train", identity, "SEGV") for identity in (victim, spared)]
    journal.write([GroupFixed("train", 2), *convicted, Forgot("train", spared)])
    journal.close()
    places = _facts(capsys, job.path, "--sample", "clips/00003.wav")
    (seat,) = places["seats"]
    seen = _facts(capsys, job.path, "--batch", seat["batch"])
    assert seen["group"] == 2
    assert seen["masked"] == {"kills_decoder": 1}
    one = seen["samples"][seat["row"]]
    assert (one["name"], one["masked"]["reason"], one["texts"]) == ("clips/00003.wav", "kills_decoder", {})
    assert _facts(capsys, job.path, "--group", 1)["group"] == 1


def test_where_a_sample_is(job: JobFile, capsys: Any) -> None:
    places = _facts(capsys, job.path, "--sample", "clips/00005.wav", "--epoch", 2)
    (seat,) = places["seats"]
    batch = _facts(capsys, job.path, "--epoch", 2, "--batch", seat["batch"])
    assert batch["samples"][seat["row"]]["name"] == "clips/00005.wav"
    assert (
        "clips/00005.wav (sample 5) in epoch 2"
        in _said(capsys, job.path, "--sample", "clips/00005.wav", "--epoch", 2)[1]
    )


def test_sound_is_what_features_are_made_of(job: JobFile, capsys: Any) -> None:
    facts = _facts(capsys, job.path, "--epoch", 3, "--wav", 2)
    assert "after tests.support.transforms:noise" in facts["wav"]
    one = facts["samples"][2]
    with wave.open("train-epoch3-batch0-row2.wav") as file:
        heard = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        assert (file.getframerate(), file.getnchannels()) == (8000, 1)
    import soundfile  # here alone

    audio, _ = soundfile.read(job.base / one["name"], dtype="float32")
    noise = generator_for(7, 3, one["sample"]).standard_normal(len(audio), dtype="float32")
    assert np.array_equal(heard, np.round((audio + 0.01 * noise).astype(np.float64) * 32767).astype(np.int16))


@pytest.mark.fault(66)
def test_sound_that_cannot_be_written_is_one_sentence(job: JobFile, capsys: Any) -> None:
    Path("train-epoch3-batch0-row1.wav").mkdir()
    code, _, err = _said(capsys, job.path, "--epoch", 3, "--wav", 1)
    assert code == 1
    assert err.startswith("loader-server: train-epoch3-batch0-row1.wav: expected the system to do")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("trian",), "expected one of the streams train, dev, got trian"),
        (("--batch", 99), "stream train, batch: expected a batch from 0 to "),
        (("--wav", 99), "--wav: expected a row from 0 to "),
        (("--sample", "clips/0005.wav"), 'perhaps "clips/000'),
        (("--sample", "s003"), 'Names are as the source has them, such as "clips/00000.wav".'),
        (("--epoch", -1), "expected a number from 0 on, got -1"),
    ],
)
def test_a_wrong_question_is_answered_with_what_there_is(job: JobFile, capsys: Any, arguments: Any, said: str) -> None:
    code, out, err = _said(capsys, job.path, *arguments)
    assert code != 0
    assert out == ""
    assert said in " ".join(err.split())


def test_packed_rows_and_batches_that_are_written_at_once(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "job.toml"
    said = 'source = "synthetic"\nsamples = 40\nmedian_length = 9\nlength = "tokens"\nbudget = "64 tokens"\n'
    path.write_text(f'[job]\nname = "x"\n[streams.train]\n{said}[streams.packed]\n{said}packing = "64 tokens"\n')
    job = _indexed(path)
    plain = _facts(capsys, path, "--batch", 1)
    assert [one["row"] for one in plain["samples"]] == list(range(len(plain["samples"])))
    assert all(one["lengths"]["tokens"] and not one["texts"] for one in plain["samples"])
    packed = _facts(capsys, path, "--stream", "packed")
    assert len({one["row"] for one in packed["samples"]}) < len(packed["samples"])
    assert any(one["offset"] for one in packed["samples"])
    picture = tmp_path / "packed.png"
    draw(ShownBatches(Stream(job, "packed"), ()).build(BatchNumber(epoch=0, number=0, group=1)), picture)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    from matplotlib.image import imread  # slow to load

    parting = np.abs(imread(picture)[..., :3] - (0.0, 191 / 255, 1.0)).max(axis=-1) < 0.02
    assert parting.sum() > 100, "packed samples are told apart"
    code, _, err = _said(capsys, path, "--wav", 0)
    assert code == 1
    assert "a sample without a value that has a rate" in err


def test_a_picture_shows_rows_padding_and_what_is_masked(tmp_path: Path) -> None:
    job = _indexed(write_job(tmp_path, samples=5, budget="2 s"))
    from matplotlib.image import imread  # slow to load

    draw(_shown(job), tmp_path / "whole.png")
    _break(job, _shown(job).samples[0].name)
    draw(_shown(job), tmp_path / "masked.png")
    whole, masked = (imread(tmp_path / name) for name in ("whole.png", "masked.png"))
    assert not _red(whole)
    assert _red(masked)
    # Hatched padding is light grey, of which a masked row has as much as is wide.
    assert 0 < _light(whole) < _light(masked)


def _red(picture: np.ndarray) -> int:
    return int(((picture[..., 0] > 0.8) & (picture[..., 1] < 0.2) & (np.abs(picture[..., 2] - 0.15) < 0.05)).sum())


def _light(picture: np.ndarray) -> int:
    return int((np.abs(picture[..., :3] - 0.93) < 0.01).all(axis=-1).sum())


def test_without_matplotlib_it_says_what_to_install(job: JobFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(SettingsError, match=r"show --png: expected matplotlib.* pip install"):
        draw(_shown(job), Path("x.png"))


def test_without_matplotlib_show_and_plan_print_all_but_the_picture(
    job: JobFile, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    for words in (("show", "--png"), ("plan", "--plot")):
        with pytest.raises(SystemExit) as ended:
            main([words[0], str(job.path), words[1], str(tmp_path / "x.png"), "--json"])
        printed = capsys.readouterr()
        assert ended.value.code == 1
        assert "expected matplotlib" in printed.err
        facts = json.loads(printed.out)
        assert Stream(job, "train").digest in (facts.get("plan"), facts.get("digest"))
        assert "png" not in facts


@pytest.mark.parametrize("command", [("show", "--png"), ("plan", "--plot")])
def test_a_picture_that_cannot_be_written_costs_the_picture_alone(
    job: JobFile, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[str, str]
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "no such folder" / "x.png"
    with pytest.raises(SystemExit) as ended:
        main([command[0], str(job.path), command[1], str(picture), "--json"])
    printed = capsys.readouterr()
    assert ended.value.code == 1
    assert f"{picture}: expected" in printed.err
    facts = json.loads(printed.out)
    assert Stream(job, "train").digest in (facts.get("plan"), facts.get("digest"))
    assert "png" not in facts


def test_where_packed_samples_begin():
    assert segment_starts(np.array([1, 1, 2, 2, 2, 3])) == [0, 2, 5]
    assert segment_starts(np.array([1, 1, 0, 0, 2])) == [0, 4]
    assert segment_starts(np.array([], int)) == []


def test_a_batch_of_chunks_says_which_stretch_each_row_is_and_where_a_recording_begins(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = write_job(tmp_path, samples=6, stream='chunk = "0.2 s"\ncarry = true', budget="0.8 s")
    path.write_text(path.read_text().replace("shapes = 4\n", ""))
    _indexed(path)
    first, second = (_facts(capsys, path, "--stream", "train", "--batch", number)["samples"] for number in (0, 1))
    assert all(one["reset"] for one in first)
    names = [one["name"] for one in second if not one["reset"]]
    assert names
    assert all(" [1600:" in name for name in names)
    _, out, _ = _said(capsys, path, "--stream", "train", "--batch", 1)
    assert "reset" in out
    assert "[1600:" in out

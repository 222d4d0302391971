"""The command `loader-server` as its user meets it: output, errors, exit codes."""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path

import pytest

from loader_server.arguments import COMMANDS
from loader_server.cli import main
from shared.errors import StokerError
from tests.support.loaders import write_job


def _run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path, samples=40)


@pytest.mark.parametrize(
    "command", ["index", "plan", "show", "run", "add", "end", "status", "coordinator", "worker", "forgive", "keys"]
)
def test_every_command_explains_itself_with_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, _ = _run(capsys, command, "--help")
    assert code == 0
    assert f"example: loader-server {command}" in " ".join(out.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_the_function_that_runs_a_command_is_where_the_table_has_it(command: str) -> None:
    module, _, function = COMMANDS[command].run.partition(":")
    assert function in import_module(module).__all__


def test_index_reports_each_bad_row_with_its_line_and_strict_refuses(
    capsys: pytest.CaptureFixture[str], job: Path
) -> None:
    clips, manifest = job.parent / "clips", job.parent / "csv.csv"
    (clips / "00001.wav").unlink()
    (clips / "00002.wav").write_bytes(b"")
    (clips / "00003.wav").write_text("this is no audio")
    lines = manifest.read_text().splitlines()
    manifest.write_text("\n".join([*lines, lines[1], "clips/00009.wav"]) + "\n")
    code, out, err = _run(capsys, "index", job, "--stream", "train")
    assert code == 0
    assert "train: 37 samples of 42 rows" in out
    for line, reason in (
        (3, "missing_file"),
        (4, "empty_file"),
        (5, "undecodable"),
        (42, "duplicate"),
        (43, "missing_column"),
    ):
        assert f"line {line}: {reason}" in err
    assert "left out in all: 1 duplicate, 1 empty_file, 1 missing_column, 1 missing_file, 1 undecodable; each" in err
    assert len(Path(err.split("each is in ")[1].splitlines()[0]).read_text().splitlines()) == 5
    code, _, err = _run(capsys, "index", job, "--strict")
    assert code == 1
    assert "expected only good rows, as --strict asks, got 5 bad of 42" in err


def test_files_that_come_back_are_mentioned_before_a_job_is_served_and_taken_in_by_index(
    capsys: pytest.CaptureFixture[str], job: Path
) -> None:
    clips, away = job.parent / "clips", job.parent / "away"
    away.mkdir()
    for name in ("00001.wav", "00002.wav", "00003.wav"):
        (clips / name).rename(away / name)
    assert "train: 37 samples of 40 rows" in _run(capsys, "index", job)[1]
    assert _run(capsys, "index", job, "--missing") == (0, "", "")
    (away / "00001.wav").rename(clips / "00001.wav")
    words = "[streams.train]: 1 row is left out whose file is there now: loader-server index takes them in\n"
    assert words in _run(capsys, "index", job, "--missing")[2]
    (away / "00003.wav").rename(clips / "00003.wav")
    words = "[streams.train]: 2 rows are left out whose files are there now: loader-server index takes them in\n"
    assert words in _run(capsys, "index", job, "--missing")[2]
    assert "train: 39 samples of 40 rows" in _run(capsys, "index", job)[1]
    assert _run(capsys, "index", job, "--missing") == (0, "", "")


def test_indexing_again_does_nothing_while_the_data_are_the_same_unless_forced(
    capsys: pytest.CaptureFixture[str], job: Path
) -> None:
    assert "unchanged" not in _run(capsys, "index", job)[1]
    before = sorted((job.parent / ".stoker").rglob("*"))
    again = [line for line in _run(capsys, "index", job)[1].splitlines() if not line.startswith("  ")]
    assert [line.split(":")[1].split(",")[0] for line in again] == [" unchanged", " unchanged"]
    assert sorted((job.parent / ".stoker").rglob("*")) == before
    assert "unchanged" not in _run(capsys, "index", job, "--force")[1]


def test_index_and_plan_speak_json(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    _, out, _ = _run(capsys, "index", job, "--json")
    assert {name: report["samples"] for name, report in json.loads(out).items()} == {"train": 40, "dev": 40}
    _, out, _ = _run(capsys, "plan", job, "--json")
    assert json.loads(out)["samples"] == 40


@pytest.mark.parametrize("command", ["plan", "show"])
def test_a_stream_is_named_by_an_option_and_may_stand_behind_the_job_file(
    capsys: pytest.CaptureFixture[str], job: Path, command: str
) -> None:
    _run(capsys, "index", job)
    train = _run(capsys, command, job, "--json")
    assert (train[0], train[2]) == (0, "")
    assert _run(capsys, command, job, "--stream", "train", "--json") == train
    dev = _run(capsys, command, job, "--stream", "dev", "--json")
    assert (dev[0], dev[2], dev[1] == train[1]) == (0, "", False)
    code, out, err = _run(capsys, command, job, "dev", "--json")
    assert (code, out) == dev[:2]
    assert err == f"loader-server {command}: a stream is written --stream dev; it is taken here, too\n"
    for words in ((job, "dev", "--stream", "train"), ("--stream", "train", job, "dev")):
        code, out, err = _run(capsys, command, *words)
        assert (code, out) == (2, "")
        assert "expected one stream, got " in err
    code, out, _ = _run(capsys, command, "--help")
    assert (code, "[--stream STREAM]" in out, " [stream]" in out) == (0, True, False)


def test_plan_names_the_sources_of_a_mixture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, lines in (("corpus", 300), ("rare", 64)):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} {number}\n" for number in range(lines)))
    job = tmp_path / "job.toml"
    stream = 'transforms = ["characters"]\nlength = "text"\nbudget = "200 characters"\nweights = [2, 1]\n'
    lines = [f'[[streams.train.sources]]\nsource = "lines"\npaths = ["{name}.txt"]\n' for name in ("corpus", "rare")]
    job.write_text(
        f'[job]\nname = "mixed"\nseed = 1\n[streams.train]\n{stream}cycle = [false, true]\n' + "".join(lines)
    )
    _run(capsys, "index", job)
    _, out, err = _run(capsys, "plan", job, "--json")
    assert err == ""
    found = json.loads(out)
    assert [Path(source["source"]).name for source in found["mixture"]] == ["corpus.txt", "rare.txt"]
    assert [source["samples"] for source in found["mixture"]] == [300, 64]
    assert sum(source["given"] for source in found["mixture"]) == found["samples"]
    assert "Mixture" in _run(capsys, "plan", job)[1]


def test_plan_finds_a_sample_draws_and_compares(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    _run(capsys, "index", job)
    picture = job.parent / "lengths.png"
    code, out, _ = _run(capsys, "plan", job, "--find", "clips/00007.wav", "--plot", picture, "--json")
    assert (code, json.loads(out)["sample"]) == (0, 7)
    assert picture.read_bytes().startswith(b"\x89PNG")
    other = job.with_name("other.toml")
    other.write_text(job.read_text().replace("8 s", "16 s"))
    _, out, _ = _run(capsys, "plan", job, "--diff", other, "--json")
    assert json.loads(out)["buckets.0.rows"]
    code, _, err = _run(capsys, "plan", job, "--find", "clips/0007.wav")
    assert (code, 'perhaps "clips/00' in err) == (1, True)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("budget", "buget", r'[streams.train]: expected a known setting, perhaps "budget", got "buget"'),
        ('budget = "8 s"', "", 'expected "budget"'),
        ('budget = "8 s"', "budget = 8", "an amount with its unit"),
        ('"manifest"', '"manifets"', 'expected source = "manifest"'),
        ('"csv.csv"', '"none.csv"', "none.csv"),
        ("'logmel',", "'logmle',", 'perhaps "logmel"'),
        ("bands = 40", "band = 40", 'perhaps "bands"'),
        ('length = "audio"', 'length = "sound"', 'expected length = "audio" or "text", got "sound"'),
        ("shapes = 4", 'shapes = 4\norder = "shufled"', 'perhaps "shuffled"'),
        ('like = "train"', 'like = "trian"', "a stream that is not like another"),
        ("[job]", "[jobs]", 'perhaps "job"'),
        ("seed = 7", "seed = seven", "expected a TOML file"),
        ("seed = 7", 'listen = "localhost"', "expected an endpoint like tcp://127.0.0.1:7400"),
    ],
)
def test_a_mistake_in_the_job_file_is_one_paragraph(
    capsys: pytest.CaptureFixture[str], job: Path, old: str, new: str, said: str
) -> None:
    text = job.read_text()
    assert old in text
    if "listen" in new:
        text = text.replace('listen = "tcp://127.0.0.1:*"\n', "")
    job.write_text(text.replace(old, new, 1))
    _, _, err = _run(capsys, "index", job)
    if not err:
        _, _, err = _run(capsys, "plan", job) if "listen" not in new else _run(capsys, "coordinator", job)
    assert said in err
    assert err.count("\n") == 1


def test_an_index_that_does_not_match_its_source_is_refused(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    code, _, err = _run(capsys, "plan", job)
    assert (code, "expected an index, got none" in err) == (1, True)
    _run(capsys, "index", job)
    manifest = job.parent / "csv.csv"
    manifest.write_text(manifest.read_text() + "clips/00003.wav,again\n")
    code, _, err = _run(capsys, "plan", job)
    assert code == 1
    assert "another manifest" in err
    assert "loader-server index" in err


def test_status_of_nobody_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = _run(capsys, "status", "tcp://127.0.0.1:9", "--timeout-seconds", "0.2")
    assert code == 3
    assert "expected a coordinator that answers within 0.2 s" in err


@pytest.mark.fault(66)
def test_what_the_system_refuses_is_said_to_the_parent_as_well(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    read, write = os.pipe()
    (job.parent / ".stoker").mkdir()
    (job.parent / ".stoker" / "tones").touch()
    code, _, err = _run(capsys, "index", job, "--missing", "--ready-fd", write)
    os.close(write)
    with os.fdopen(read) as told:
        error = json.load(told)["error"]
    assert code == 1
    assert error["expected"] == "the system to do what it was asked for"
    assert err == f"loader-server: {StokerError(**error)}\n"


def test_keys_are_made_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = _run(capsys, "keys", tmp_path / "keys")
    assert code == 0
    for needs in (
        "coordinator  coordinator.key_secret, allowed/",
        "workers      worker.key_secret, coordinator.key, allowed/",
        "trainers     trainer.key_secret, coordinator.key, worker.key",
    ):
        assert f"\n  {needs}\n" in out
    code, _, err = _run(capsys, "keys", tmp_path / "keys")
    assert (code, "expected a folder without keys" in err) == (1, True)


def test_a_coordinator_takes_the_keys_that_it_is_given_instead_of_the_job_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job = write_job(tmp_path, samples=40, job='keys = "of-the-job"')
    listen = ("--listen", "tcp://0.0.0.0:*")
    for options, named in (((), "of-the-job"), (("--keys", tmp_path / "given"), "given")):
        code, _, err = _run(capsys, "coordinator", job, *listen, *options)
        assert code == 1
        assert f"{tmp_path / named}/coordinator.key_secret" in err


def test_keys_that_are_given_let_a_job_without_any_be_served_beyond_loopback(
    capsys: pytest.CaptureFixture[str], job: Path
) -> None:
    listen = ("--listen", "tcp://0.0.0.0:*")
    assert "expected keys, or a loopback address" in _run(capsys, "coordinator", job, *listen)[2]
    _, _, err = _run(capsys, "coordinator", job, *listen, "--keys", job.parent / "given")
    assert f"{job.parent / 'given'}/coordinator.key_secret" in err


def test_a_run_whose_parent_has_ended_already_ends_at_once(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    assert _run(capsys, "run", job, "--parent", os.getpid())[0] == 0

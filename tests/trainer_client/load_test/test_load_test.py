"""The command as a whole: crews and loaders in processes of their own, and Ctrl-C at every stage of it."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading

import psutil
import pytest

from loader_server.commands import status
from shared.errors import StokerError
from tests.support.forked import start_talking
from tests.support.loaders import ROOT, running, wait_until, write_job
from trainer_client import cli
from trainer_client.load_test import conductor
from trainer_client.load_test.command import OwnJob
from trainer_client.load_test.conductor import Interrupts, conduct
from trainer_client.load_test.thin_trainer import ThinRun


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(["load-test", *arguments])
    return ended.value.code


@pytest.fixture(autouse=True)
def _in(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.slow
def test_a_world_of_trainers_gets_every_batch_once_and_leaves_nothing_behind(tmp_path, capsys):
    how = ("--trainers", "5", "--step-ms", "60", "--seconds", "4", "--processes", "2", "--workers", "1", "--json")
    assert run("train", *how, "--report", str(tmp_path / "out"), "--min-batches-per-s", "2") == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["trainers"], figures["errors"], figures["lost"], figures["repeated"]) == (5, 0, 0, 0)
    assert figures["batches"] > 20
    assert 0 < figures["utilisation"] <= 1
    assert 0 < figures["wait_p50_ms"] <= figures["wait_p99_ms"] <= figures["wait_max_ms"]
    kept = json.loads((tmp_path / "out" / "report.json").read_text())
    assert kept["figures"] == figures
    assert kept["settings"]["processes"] == 2
    assert sum(one["batches"] for one in kept["runs"][0]["by_second"]) == figures["batches"] - 5
    assert (tmp_path / "out" / "report.html").exists()
    assert list((tmp_path / "temporary").iterdir()) == []
    assert [one for one in psutil.Process().children() if _is_ours(one)] == []


@pytest.mark.heritage("T12")
def test_the_data_flow_alone_has_its_speed_said(capsys):
    assert run("drain", "--seconds", "0.5", "--workers", "1", "--json", "--min-batches-per-s", "1") == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["batches_per_s"] > 1
    assert (figures["errors"], figures["lost"], figures["repeated"]) == (0, 0, 0)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    """Loaders that run already."""
    with running(write_job(tmp_path_factory.mktemp("job")), workers=1) as loaders:
        yield loaders.endpoint


def test_a_limit_that_is_not_kept_sets_the_exit_code(endpoint, capsys):
    assert run("drain", "--feed", endpoint, "--seconds", "0.3", "--min-batches-per-s", "1e9") == 1
    said = capsys.readouterr()
    assert "not kept: batches_per_s" in said.err
    assert "| batches a second |" in said.out


@pytest.mark.slow
def test_a_server_that_is_lost_in_the_midst_is_no_other_failure(tmp_path, capsys):
    with running(write_job(tmp_path), workers=1) as loaders:

        def lose():
            wait_until(lambda: status.ask(loaders.endpoint)["streams"]["train"]["trainers"], "somebody trains", 60)
            for process in [loaders.process, loaders.coordinator(), *loaders.workers()]:
                process.kill()

        loss = threading.Thread(target=lose)
        loss.start()
        code = run("train", "--feed", loaders.endpoint, "--seconds", "8", "--step-ms", "200", "--prefetch", "1")
        loss.join()
    assert (code, "expected a batch, got none for 10 s" in capsys.readouterr().err) == (3, True)


def test_help_has_examples(capsys):
    assert run("--help") == 0
    assert "trainer-client load-test drain --seconds 10" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [("train", "--trainers", "0"), ("drain", "--seconds", "-1"), ("other",)])
def test_wrong_usage_is_said_and_exits_with_2(arguments, capsys):
    assert run(*arguments) == 2
    assert "usage:" in capsys.readouterr().err


def test_an_old_report_that_is_none_is_refused_before_anything_starts(tmp_path, capsys):
    assert run("drain", "--compare", str(tmp_path / "none.json")) == 1
    assert "Write one with --report FOLDER." in capsys.readouterr().err


def test_loaders_that_do_not_start_say_why(monkeypatch, tmp_path):
    monkeypatch.setattr("trainer_client.load_test.command._JOB", "no job {seed}")
    with Interrupts() as interrupts, pytest.raises(StokerError, match="expected a TOML file"):
        OwnJob(seed=1, workers=1, interrupts=interrupts)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_trainers_that_cannot_attach_are_said_and_no_figures(capsys):
    assert run("drain", "--feed", "tcp://127.0.0.1:1", "--keys", "nowhere", "--trainers", "2") == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(
        "trainer-client: load test: expected 2 trainers to attach, got 2 that could not, the first"
    )
    assert "nowhere" in said.err


def test_a_crew_that_is_killed_is_an_error_and_not_a_silence(endpoint, monkeypatch):
    def killed(crew, **line):
        if "begin_s" in line:
            crew.process.kill()

    how = {"stream": "train", "world": 1, "step_s": 0, "seconds": 9, "prefetch": 8, "shared_memory": True, "keys": ""}
    with Interrupts() as interrupts:
        tell = conductor._Process.tell
        monkeypatch.setattr(conductor._Process, "tell", lambda crew, **line: (tell(crew, **line), killed(crew, **line)))
        with pytest.raises(StokerError, match="its end, with exit code -9"):
            conduct(ThinRun(endpoint=endpoint, **how), 1, interrupts, None, lambda _: None)
    assert [one for one in psutil.Process().children() if _is_ours(one)] == []


STAGES = {
    "loaders start": lambda children: any("loader_server" in one for one in children),
    "crews start": lambda children: any("trainer_client.load_test.crew" in one for one in children),
    "trainers train": lambda children: "training" in children,
}


@pytest.mark.parametrize(
    ("stage", "number"),
    [("loaders start", signal.SIGINT), ("crews start", signal.SIGTERM), ("trainers train", signal.SIGINT)],
)
def test_an_interruption_at_any_stage_ends_everything(stage, number, tmp_path):
    how = ("train", "--trainers", "3", "--seconds", "60")
    with start_talking("trainer_client", "load-test", *how, folder=tmp_path) as process:
        family = {}

        def reached():
            found = psutil.Process(process.pid).children(recursive=True)
            family.update({one.pid: one for one in found})
            lines = [" ".join(_command_line(one)) for one in found]
            sockets = [one for one in found if "crew" in " ".join(_command_line(one)) and one.num_threads() > 8]
            return STAGES[stage]([*lines, *["training"] * len(sockets)])

        wait_until(reached, stage)
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=60)
    code, said = (143, "terminated") if number == signal.SIGTERM else (130, "interrupted")
    assert process.returncode == code, err
    assert (out, err.splitlines()[-1]) == ("", f"trainer-client: {said}")
    wait_until(lambda: not any(_lives(one) for one in family.values()), "whatever it started has ended")
    assert list((tmp_path / "temporary").iterdir()) == []


def _lives(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _command_line(process):
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def _is_ours(process):
    """Tests before these may have left helpers of their own: multiprocessing's resource tracker and fork server."""
    words = " ".join(_command_line(process))
    return ("loader_server" in words or "load_test.crew" in words) and "multiprocessing" not in words

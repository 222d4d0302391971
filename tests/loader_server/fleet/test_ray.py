"""The program that serves a job in Ray, as far as it goes without Ray; `make fleet-test` has the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from loader_server.fleet import ray as program
from loader_server.fleet.process_keeper import LISTEN_FILE
from loader_server.fleet.ray import main
from loader_server.fleet.ray_actor import NodeActor, asks_for_token
from loader_server.fleet.ray_settings import Orders
from shared.errors import SettingsError
from shared.keys import make_keys
from tests.support.forked import ROOT
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

JOB = """
[job]
name = "digits"
{keys}

[streams.train]
source = "manifest"
paths = ["train.csv"]
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(keys=""))
    return path


class Ray:
    """What the module `ray` is asked before a job is served: its runtime environment, and whether it has a token."""

    def __init__(self, *, has_token: bool, working_dir: str = "") -> None:
        self._has_token = has_token
        self._environment = {"working_dir": working_dir} if working_dir else {}

    def get_runtime_context(self) -> SimpleNamespace:
        return SimpleNamespace(runtime_env=self._environment)

    def remote(self, _function: Callable[[], bool]) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: self._has_token))

    def get(self, answer: bool, *, timeout: float) -> bool:
        assert timeout > 0
        return answer


def settings(ray: Ray, job: Path | str, *options: str) -> Any:
    parsed = program._parser().parse_args([str(job), *options])
    return program._settings(ray, parsed, program._read_job(str(job)))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--workers", "4:2"), "--workers: expected a number of workers"),
        (("--resources", "disk"), "--resources: expected a table as JSON"),
        (("--label-selector", '{"a": 1}'), "--label-selector: expected labels"),
        (("--runtime-env-json", "[]"), "--runtime-env-json: expected a table as JSON"),
        ((), "expected ray, which runs the loaders' actors"),
    ],
)
def test_mistakes_are_named_before_ray_is_needed(
    options: tuple[str, ...],
    error: str,
    job: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SystemExit) as end:
        main([str(job), *options])
    assert end.value.code == 1
    assert error in capsys.readouterr().err


def test_a_job_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "none.toml")])
    assert f"{tmp_path}/none.toml: expected a job file" in capsys.readouterr().err


def test_paths_are_those_of_a_folder_that_all_nodes_share(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = settings(Ray(has_token=False), job.name, "--state", "state", "--accept-code", "--keys", "/etc/keys")
    assert found.job == str(job)
    assert found.joining == ("--state", str(tmp_path / "state"), "--accept-code")
    assert found.keys == "/etc/keys"


def test_paths_of_an_uploaded_working_directory_stay_relative(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = settings(Ray(has_token=False, working_dir="gcs://package.zip"), job.name, "--data", "data")
    assert (found.job, found.joining) == ("job.toml", ("--data", "data"))


def test_each_process_is_sent_its_own_keys_and_no_other(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    job.write_text(JOB.format(keys='keys = "secret"'))
    make_keys(job.parent / "secret")
    found = settings(Ray(has_token=True), job)
    allowed = {f"keys/allowed/{role}/{role}.key" for role in ("coordinator", "trainer", "worker")}
    assert {name for name in found.coordinator_files if "allowed" in name} == allowed
    assert found.coordinator_files.keys() - allowed == {"keys/coordinator.key_secret"}
    assert found.worker_files.keys() - allowed == {"keys/worker.key_secret", "keys/coordinator.key"}
    for name, content in (found.coordinator_files | found.worker_files).items():
        assert content == (job.parent / "secret" / name.removeprefix("keys/")).read_text()


@pytest.mark.parametrize(("here", "there"), [("disabled", True), ("token", False), ("", False)])
def test_keys_are_sent_only_if_this_process_and_ray_both_have_a_token(
    here: str, there: bool, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", here)
    job.write_text(JOB.format(keys='keys = "secret"'))
    make_keys(job.parent / "secret")
    with pytest.raises(SettingsError, match="expected a Ray that asks for a token"):
        settings(Ray(has_token=there), job)
    assert settings(Ray(has_token=there), job, "--insecure").worker_files
    assert settings(Ray(has_token=there), job, "--keys", "/etc/keys").worker_files == {}


def test_keys_that_are_missing_are_named(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    job.write_text(JOB.format(keys='keys = "secret"'))
    with pytest.raises(SettingsError, match=r"secret/coordinator\.key_secret"):
        settings(Ray(has_token=True), job)


@pytest.mark.parametrize(("mode", "asks"), [("token", True), ("Token", True), ("disabled", False), (None, False)])
def test_whether_ray_asks_for_a_token(mode: str | None, asks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    assert asks_for_token() is asks


def test_an_actor_reports_what_its_process_does_and_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(util=SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7"))
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    status = ("status", "tcp://127.0.0.1:1", "--timeout-seconds", "0.1")  # where nobody answers
    files = {"keys/allowed/a.key": "k", "endpoint": "first\n"}
    actor = NodeActor(Orders(commands=(status,), files=files).line())
    try:
        assert actor.look({})["address"] == "10.0.0.7"
        wait_until(lambda: actor.look({}).get("ended") == 3, "the end of its process is reported")
        (folder,) = tmp_path.iterdir()
        assert (folder / "keys/allowed/a.key").read_text() == "k"
        assert [path.stat().st_mode & 0o777 for path in (folder, folder / "endpoint")] == [0o700, 0o600]
        actor.look({"endpoint": "second\n"})
        wait_until(lambda: (folder / "endpoint").read_text() == "second\n", "the file is replaced")
        before = (folder / "endpoint").stat().st_ino
        actor.look({"endpoint": "second\n"})
        actor.look({"other": json.dumps({})})
        wait_until((folder / "other").exists, "the other file is there")
        assert (folder / "endpoint").stat().st_ino == before, "what has not changed is not written again"
    finally:
        actor.end()
    assert list(tmp_path.iterdir()) == []
    assert actor._keeper.stdout is not None
    actor._keeper.stdout.close()


def test_an_actor_whose_process_is_killed_removes_what_that_leaves_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import sys, time; from types import SimpleNamespace as N;"
        "sys.modules['ray'] = N(util=N(get_node_ip_address=lambda: '10.0.0.7'));"
        "from loader_server.fleet.ray_actor import NodeActor;"
        "actor = NodeActor(sys.argv[1]); time.sleep(60)"
    )
    status = ("status", "tcp://127.0.0.1:1", "--timeout-seconds", "30")  # where nobody answers
    orders = Orders(commands=(status,), files={"keys/a.key": "k"}).line()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code, orders]) as actor:
        wait_until(lambda: [*tmp_path.glob("*/keys/a.key")], "the keys are there")

        def keepers() -> list[psutil.Process]:
            return [each for each in psutil.process_iter(["cmdline"]) if _keeps_below(each, tmp_path)]

        wait_until(keepers, "the process is there")
        (keeper,) = keepers()
        wait_until(keeper.children, "its child is there")
        children = keeper.children()
        keeper.kill()
        for child in children:
            child.kill()
        assert actor.wait(30) == 1
    assert list(tmp_path.iterdir()) == []


def _keeps_below(process: psutil.Process, folder: Path) -> bool:
    try:
        words = process.info["cmdline"] or []
        return "loader_server.fleet.process_keeper" in words and process.environ().get("TMPDIR") == str(folder)
    except psutil.Error:
        return False


def test_where_a_process_serves_is_noted_for_its_successor(tmp_path: Path) -> None:
    noted: list[str] = []

    def reports() -> Iterator[bytes]:
        yield b'{"endpoint": "tcp://0.0.0.0:4711"}\n'
        noted.append((folder / LISTEN_FILE).read_text())

    folder = tmp_path / "own"
    folder.mkdir()
    actor = NodeActor.__new__(NodeActor)
    vars(actor).update(_keeper=SimpleNamespace(stdout=reports()), _folder=folder, _facts={}, _has_to_end=True)
    actor._hear()
    assert noted == ["tcp://0.0.0.0:4711"]

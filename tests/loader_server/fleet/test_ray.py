"""The program that serves a job in Ray, as far as it goes without Ray; `make fleet-test` has the rest."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from loader_server.arguments import COMMANDS
from loader_server.fleet import ray as program
from loader_server.fleet.process_keeper import LISTEN_FILE
from loader_server.fleet.ray import main
from loader_server.fleet.ray_actor import NodeActor, asks_for_token
from shared.errors import LostError, SettingsError
from shared.keys import make_keys
from tests.support.forked import ROOT
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

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


def orders(ray: Ray, job: Path | str, *options: str) -> Any:
    parsed = program._parser().parse_args([str(job), *options])
    return program._orders(ray, parsed, program._read_job(Path(job)))


@pytest.mark.parametrize(
    ("text", "workers"), [("4", (4, 4)), ("2:16", (2, 16)), ("1:1", (1, 1)), ("4096", (4096, 4096)), ("02:03", (2, 3))]
)
def test_a_number_of_workers_or_a_range_is_understood(text: str, workers: tuple[int, int]) -> None:
    assert program._parser().parse_args(["job.toml", "--workers", text]).workers == workers


@pytest.mark.parametrize(
    ("option", "text"),
    [
        *(("--workers", text) for text in ("", "0", "0:4", "4:2", "4097", "1:4097", "-1", ":2", "2:3:4", "two", "1e3")),
        *(("--resources", text) for text in ("[]", "loader=1", "1", "{", "null", "")),
        ("--label-selector", "disk"),
        ("--runtime-env-json", "[]"),
        ("--num-cpus", "two"),
    ],
)
def test_other_text_is_wrong_usage(option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["job.toml", f"{option}={text}"])
    assert end.value.code == 2
    assert f"argument {option}: {'invalid' if option == '--num-cpus' else 'expected'}" in capsys.readouterr().err


def test_a_missing_ray_is_named(job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SystemExit) as end:
        main([str(job)])
    assert end.value.code == 1
    assert "expected ray, which runs the loaders' actors" in capsys.readouterr().err


def test_what_ray_refuses_of_a_node_is_named() -> None:
    def options(**placing: Any) -> None:
        assert placing == {"num_cpus": -1}
        raise ValueError("The quantity of resource num_cpus cannot be negative")

    with pytest.raises(SettingsError, match=r"--num-cpus.*: expected cores, resources and labels.* cannot be negative"):
        program._refuse_placing(SimpleNamespace(remote=lambda _: SimpleNamespace(options=options)), {"num_cpus": -1})


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "[::1]:1"])
def test_an_address_where_nothing_listens_is_refused_at_once(address: str) -> None:
    with pytest.raises(LostError, match="expected a running Ray") as refused, program._deadline(address):
        pytest.fail("Ray would try for minutes")
    assert address in refused.value.where


@pytest.mark.parametrize("address", ["", "local", "auto", "ray://head:10001"])
def test_other_addresses_are_left_to_ray(address: str) -> None:
    before = {*threading.enumerate()}
    with program._deadline(address):
        assert len({*threading.enumerate()} - before) == (address in ("auto", "ray://head:10001")), "a watch"


def test_a_ray_that_refuses_to_be_connected_to_is_named() -> None:
    with pytest.raises(LostError, match="expected a running Ray, got Failed to connect"), program._deadline("auto"):
        raise ConnectionError("Failed to connect")


def test_what_listens_but_is_no_ray_ends_the_program_with_a_sentence() -> None:
    code = (
        "import sys, time; from loader_server.fleet import ray;"
        "ray._CONNECT_S = 0.2;"
        "deadline = ray._deadline(sys.argv[1]); deadline.__enter__(); time.sleep(60)"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", code, address], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
        )
    assert done.returncode == LostError.exit_code
    assert f"the address {address}: expected a running Ray, got no answer in 0.2 s" in done.stderr


def test_a_job_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "none.toml")])
    assert f"{tmp_path}/none.toml: expected a job file" in capsys.readouterr().err


def test_paths_are_those_of_a_folder_that_all_nodes_share(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = orders(Ray(has_token=False), job.name, "--state", "state", "--accept-code", "--keys", "keys")
    assert [command[1] for command in found["coordinator"]["commands"]] == [str(job), str(job)]
    (command,) = found["worker"]["commands"]
    assert "--accept-code" in command
    assert command[-1 - command[::-1].index("--state") + 1] == str(tmp_path / "state"), "the last one counts"
    assert {command[command.index("--keys") + 1] for command in last_commands(found)} == {str(tmp_path / "keys")}


def test_paths_of_an_uploaded_working_directory_stay_relative(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = orders(Ray(has_token=False, working_dir="gcs://package.zip"), job.name, "--data", "data")
    assert found["coordinator"]["commands"][0][:2] == ("index", "job.toml")
    (command,) = found["worker"]["commands"]
    assert command[command.index("--data") + 1] == "data"


def last_commands(found: Any) -> list[tuple[str, ...]]:
    return [found[role]["commands"][-1] for role in ("coordinator", "worker")]


def test_the_coordinator_indexes_and_then_serves_and_a_worker_joins(job: Path) -> None:
    found = orders(Ray(has_token=False), job, "--listen", "tcp://0.0.0.0:7400", "--insecure")
    assert [command[:2] for command in found["coordinator"]["commands"]] == [
        ("index", str(job)),
        ("coordinator", str(job)),
    ]
    assert found["coordinator"]["files"] == {LISTEN_FILE: "tcp://0.0.0.0:7400"}
    assert (found["coordinator"]["ends_job"], found["worker"]["ends_job"]) == (True, False)
    (command,) = found["worker"]["commands"]
    assert command[:4] == ("run", "file://{folder}/endpoint", "--workers", "1")
    assert found["worker"]["files"] == {}
    assert all("--insecure" in command and "--keys" not in command for command in last_commands(found))


def test_the_commands_take_all_these_options(job: Path) -> None:
    options = ("--state", "s", "--data", "d", "--index", "i", "--accept-code", "--keys", "k", "--insecure")
    found = orders(Ray(has_token=False), job, *options)
    for name, *words in (*found["coordinator"]["commands"], *found["worker"]["commands"]):
        command = COMMANDS[name]
        known = {option for group in (command.options, command.joining) for found in group for option in found.names}
        assert {word for word in words if word.startswith("--")} <= known | {"--log-level"}


def test_each_process_is_sent_its_own_keys_and_no_other(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    job.write_text(JOB.format(keys='keys = "secret"'))
    make_keys(job.parent / "secret")
    sent = orders(Ray(has_token=True), job)
    coordinator, worker = sent["coordinator"]["files"], sent["worker"]["files"]
    allowed = {f"keys/allowed/{role}/{role}.key" for role in ("coordinator", "trainer", "worker")}
    assert {name for name in coordinator if "allowed" in name} == allowed
    assert coordinator.keys() - allowed == {"keys/coordinator.key_secret", LISTEN_FILE}
    assert worker.keys() - allowed == {"keys/worker.key_secret", "keys/coordinator.key"}
    del coordinator[LISTEN_FILE]
    for name, content in (coordinator | worker).items():
        assert content == (job.parent / "secret" / name.removeprefix("keys/")).read_text()


@pytest.mark.parametrize(("here", "there"), [("disabled", True), ("token", False), ("", False)])
def test_keys_are_sent_only_if_this_process_and_ray_both_have_a_token(
    here: str, there: bool, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", here)
    job.write_text(JOB.format(keys='keys = "secret"'))
    make_keys(job.parent / "secret")
    with pytest.raises(SettingsError, match="expected a Ray that asks for a token"):
        orders(Ray(has_token=there), job)
    assert orders(Ray(has_token=there), job, "--insecure")["worker"]["files"]
    assert orders(Ray(has_token=there), job, "--keys", "/etc/keys")["worker"]["files"] == {}


def test_keys_that_are_missing_are_named(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    job.write_text(JOB.format(keys='keys = "secret"'))
    with pytest.raises(SettingsError, match=r"secret/coordinator\.key_secret"):
        orders(Ray(has_token=True), job)


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
    actor = NodeActor(json.dumps({"commands": [status], "files": files, "ends_job": False}))
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
    orders = json.dumps({"commands": [status], "files": {"keys/a.key": "k"}, "ends_job": False})
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


def test_an_actor_ends_with_its_nodes_own_process() -> None:
    actor = (
        "import os; from loader_server.fleet.ray_actor import _end_with_parent;"
        "parent = os.getppid(); print(os.getpid()); _end_with_parent(parent)"
    )
    raylet = f"import subprocess, sys; subprocess.run([sys.executable, '-uc', {actor!r}])"
    with subprocess.Popen([sys.executable, "-c", raylet], cwd=ROOT, stdout=subprocess.PIPE) as node:
        assert node.stdout is not None
        pid = int(node.stdout.readline())
        assert psutil.pid_exists(pid)
        node.kill()
        wait_until(lambda: not psutil.pid_exists(pid), "the actor has ended")


def test_where_a_process_serves_is_noted_for_its_successor() -> None:
    sent = io.BytesIO()
    actor = NodeActor.__new__(NodeActor)
    keeper = SimpleNamespace(stdout=[b'{"endpoint": "tcp://0.0.0.0:4711"}\n'], stdin=sent)
    vars(actor).update(_keeper=keeper, _files={}, _facts={}, _has_to_end=True)
    actor._hear()
    assert json.loads(sent.getvalue()) == {LISTEN_FILE: "tcp://0.0.0.0:4711"}

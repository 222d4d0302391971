"""What `loader-server run` takes: job files or endpoints, and only the options that belong to them."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack

import pytest

from loader_server.cli import _parser
from loader_server.commands.machine_jobs import jobs_of
from shared.errors import SettingsError
from shared.system.endpoint_file import write_endpoint


@pytest.mark.parametrize(
    ("words", "got"),
    [
        (("tcp://127.0.0.1:7400", "job.toml"), "job.toml beside an endpoint"),
        (("job.toml", "--keys", "keys"), "--keys with the endpoint"),
        (("job.toml", "--index", "index"), "--index with the endpoint"),
        (("job.toml", "--accept-code"), "--accept-code with the endpoint"),
        (("job.toml", "--metrics-port", "9100"), "--metrics-port with the endpoint"),
        (("tcp://127.0.0.1:7400", "--metrics-port", "-5"), "--metrics-port: expected a port with room"),
        (("tcp://127.0.0.1:7400", "--metrics-port", "99999"), "got 99999"),
        (("tcp://127.0.0.1:7400", "--metrics-port", "65535"), "got 65535, for 1 workers"),
        (("tcp://127.0.0.1:7400", "--metrics-port", "65534", "--workers", "2"), "got 65534, for 2 workers"),
        (("tcp://127.0.0.1:7400", "--metrics-port", "9100", "--metrics-listen", "127.0.0.1:9101"), "one port for"),
        (("tcp://127.0.0.1:7400", "--metrics-port", "9100", "--metrics-listen", "127.0.0.1:0"), "one port for"),
        (("tcp://127.0.0.1:7400", "--accept-code"), "would run code here, got no keys"),
        (("a.toml", "b.toml", "--listen", "tcp://127.0.0.1:*"), "expected one job"),
        (("tcp://10.0.0.1:7400",), "without keys"),
        (("ipc://somewhere",), "an endpoint like tcp://"),
        (("tcp://127.0.0.1:7400", "--keys", "nowhere"), "nowhere/worker.key_secret"),
        (("job.toml", "--advertise", "203.0.113.7:17400"), "--advertise: expected a host alone"),
        (("tcp://127.0.0.1:7400", "--advertise", "0.0.0.0"), "--advertise: expected a host alone"),
        (("file://endpoint",), "Write three slashes"),
        (("file:///shared/endpoint", "job.toml"), "job.toml beside an endpoint"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, monkeypatch, words, got) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError) as error, ExitStack() as held:
        jobs_of(_parser("run").parse_args(["run", *words]), held)
    assert got in str(error.value)


def test_a_file_that_names_the_coordinator_is_looked_at_before_anything_is_fetched(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "endpoint"
    write_endpoint(file, "tcp://10.0.0.1:7400")
    run = _parser("run").parse_args(["run", "tcp://127.0.0.1:9", f"file://{file}"])
    with pytest.raises(SettingsError, match=r"tcp://10\.0\.0\.1:7400 without keys"):
        jobs_of(run, contextlib.ExitStack())
    file.chmod(0o666)
    with pytest.raises(SettingsError, match="endpoint, which others may write"):
        jobs_of(run, contextlib.ExitStack())

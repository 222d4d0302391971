"""A host's folders: one process each, found again, with names of workers that nobody else has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from loader_server.fleet import host_folder
from loader_server.fleet.host_folder import HostFolder, JoinedFolder, bundles_in_use
from shared.errors import MachineError
from shared.settings.job import parse_job
from tests.support.forked import ROOT

if TYPE_CHECKING:
    from pathlib import Path

HOST = os.uname().nodename


def test_each_process_has_one_of_its_own_and_takes_the_first_that_is_free(tmp_path: Path) -> None:
    with HostFolder.take(tmp_path, "digits") as first:
        assert first.path == tmp_path / HOST / "digits"
        with HostFolder.take(tmp_path, "digits") as second, HostFolder.take(tmp_path, "words") as other:
            assert second.path == tmp_path / f"{HOST}~2" / "digits"
            assert other.path == tmp_path / HOST / "words"
            assert len({first.tag, second.tag, other.tag}) == 3
    with HostFolder.take(tmp_path, "digits") as again:
        assert (again.path, again.tag) == (first.path, first.tag)


def test_two_hosts_of_one_name_have_workers_of_different_names(tmp_path: Path) -> None:
    with HostFolder.take(tmp_path / "a", "digits") as one, HostFolder.take(tmp_path / "b", "digits") as other:
        assert one.tag != other.tag


def test_a_tag_that_was_cut_short_is_made_anew(tmp_path: Path) -> None:
    with HostFolder.take(tmp_path, "digits") as first:
        pass
    (first.path / "in-use").write_text(first.tag[:3])
    with HostFolder.take(tmp_path, "digits") as again:
        assert len(again.tag) == 6
    assert (first.path / "in-use").read_text() == again.tag


_HOLDER = """
import sys
from pathlib import Path
from loader_server.fleet.host_folder import HostFolder

print(HostFolder.take(Path(sys.argv[1]), "digits").path, flush=True)
sys.stdin.read()
"""


def test_that_of_a_killed_process_is_free(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline().decode().strip() == str(tmp_path / HOST / "digits")
    with HostFolder.take(tmp_path, "digits") as second:
        assert second.path == tmp_path / f"{HOST}~2" / "digits"
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with HostFolder.take(tmp_path, "digits") as first:
        assert first.path == tmp_path / HOST / "digits"


def test_where_nothing_can_be_locked_a_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_locks(_descriptor: int, _how: int) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(host_folder.fcntl, "flock", without_locks)
    with pytest.raises(MachineError) as error:
        HostFolder.take(tmp_path, "digits")
    assert "can lock files" in error.value.expected
    assert "--state" in error.value.remedy


@pytest.mark.parametrize("planted", ["digits", "digits/in-use"])
def test_nothing_is_taken_through_a_link(tmp_path: Path, planted: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    place = tmp_path / "hosts" / HOST / planted
    place.parent.mkdir(parents=True)
    place.symlink_to(outside if planted == "digits" else outside / "in-use")
    with pytest.raises(MachineError, match="link"):
        HostFolder.take(tmp_path / "hosts", "digits")


def write(host: HostFolder, bundle: str) -> None:
    JoinedFolder(endpoint="tcp://a:1", data="/d", state="/s", index="/i", bundle=bundle).write(host.job_file)


def test_bundles_are_in_use_as_long_as_the_process_lives_that_has_the_folder(tmp_path: Path) -> None:
    with HostFolder.take(tmp_path, "digits") as first:
        write(first, "one")
        with HostFolder.take(tmp_path, "digits") as second:
            write(second, "two")
            assert bundles_in_use(tmp_path) == {"one", "two"}
        assert bundles_in_use(tmp_path) == {"one"}
        with HostFolder.take(tmp_path, "words"):  # has not said yet which it has
            assert bundles_in_use(tmp_path) == {"one"}
    assert bundles_in_use(tmp_path) == set()


def test_of_a_folder_that_cannot_be_read_nobody_knows_what_it_uses(tmp_path: Path) -> None:
    with HostFolder.take(tmp_path, "digits") as host:
        host.job_file.with_name("joined.json").write_text("{")
        assert bundles_in_use(tmp_path) is None
    assert bundles_in_use(tmp_path) == set()


@pytest.mark.parametrize("port", [0, 9100])
def test_the_metrics_port_is_this_hosts_and_not_the_coordinators(tmp_path: Path, port: int) -> None:
    job = parse_job('[job]\nname = "digits"\nmetrics_port = 9200\n[streams.train]\n', "job.toml")
    JoinedFolder(endpoint="tcp://a:1", data="/d", state="/s", index="/i", metrics_port=port).write(tmp_path / "job")
    read = JoinedFolder.beside(tmp_path / "job")
    assert read is not None
    assert read.settle(job).settings.metrics_port == port

"""The process that keeps another one on a node of Ray: restarts, files, reports, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from loader_server.fleet.process_keeper import LISTEN_FILE
from tests.support.forked import ROOT
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Stands for the program `loader-server`: it notes how it was started, and then does as its first argument says.
PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
action, log, *words = sys.argv[1:]
with open(log, "a") as file:
    file.write(json.dumps({"pid": os.getpid(), "parent": os.getppid(), "action": action, "words": words}) + "\\n")
print("noise on standard output", flush=True)
def report(**facts):
    os.write(int(words[words.index("--ready-fd") + 1]), (json.dumps(facts) + "\\n").encode())
if action == "fail":
    sys.exit(3)
if action == "finish":
    sys.exit(0)
report(endpoint="tcp://0.0.0.0:4711")
if action == "crash":
    time.sleep(2.1)
    sys.exit(1)
if action == "stubborn":
    signal.signal(signal.SIGTERM, lambda *_: None)
def leave(*_):
    Path(log).with_name("left").write_text("in good order")
    sys.exit(0)
if action == "serve":
    signal.signal(signal.SIGTERM, leave)
while True:
    time.sleep(0.05)
"""


@dataclass
class Kept:
    """A running keeper, seen by its owner."""

    folder: Path
    owner: subprocess.Popen[bytes]
    reports: list[dict[str, Any]] = field(default_factory=list)
    is_ended: bool = False

    def __post_init__(self) -> None:
        assert self.owner.stdout is not None
        os.set_blocking(self.owner.stdout.fileno(), False)
        self._text = b""

    @property
    def starts(self) -> list[dict[str, Any]]:
        log = self.folder / "starts"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    @property
    def own(self) -> Path:
        """Return the keeper's folder, once that is there."""
        wait_until(lambda: self.hear() or self._text, "the keeper has named its folder")
        return Path(json.loads(self._text.splitlines()[0])["folder"])

    def send(self, **files: str) -> None:
        assert self.owner.stdin is not None
        self.owner.stdin.write(json.dumps(files).encode() + b"\n")
        self.owner.stdin.flush()

    begin = send

    def hear(self) -> list[dict[str, Any]]:
        assert self.owner.stdout is not None
        with suppress(BlockingIOError):
            while content := os.read(self.owner.stdout.fileno(), 2**16):
                self._text += content
            self.is_ended = True
        # The first one names the folder.
        self.reports = [json.loads(line) for line in self._text.splitlines()][1:]
        return self.reports

    def close(self) -> None:
        assert self.owner.stdin is not None
        self.owner.stdin.close()

    def wait_until_gone(self) -> None:
        wait_until(lambda: self.hear() is not None and self.is_ended, "the keeper has ended")
        wait_until(lambda: not any(psutil.pid_exists(start["pid"]) for start in self.starts), "its child has ended")
        assert list((self.folder / "tmp").iterdir()) == []


@contextmanager
def keeper(folder: Path, *commands: list[str], ends_job: bool = False, tmp: Path | None = None) -> Iterator[Kept]:
    """A keeper whose child is not the program but the script above, started with the arguments of the orders."""
    package = folder / "packages" / "loader_server"
    package.mkdir(parents=True)
    tmp = tmp or folder / "tmp"
    tmp.mkdir(exist_ok=True)
    orders = json.dumps({"commands": commands, "ends_job": ends_job})
    (package / "__init__.py").write_text(f"__path__.append({str(ROOT / 'loader_server')!r})\n")
    (package / "__main__.py").write_text(PROGRAM)
    owner = subprocess.Popen(
        [sys.executable, "-m", "loader_server.fleet.process_keeper", orders],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{package.parent}:{ROOT}", "TMPDIR": str(tmp)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    kept = Kept(folder, owner)
    try:
        yield kept
    finally:
        kept.close()
        owner.wait(60)
        wait_until(lambda: kept.hear() is not None and kept.is_ended, "the keeper has ended")
        assert owner.stdout is not None
        owner.stdout.close()


def command(folder: Path, action: str, *words: str) -> list[str]:
    return [action, str(folder / "starts"), "--ready-fd", "{reports}", *words]


def test_a_child_gets_what_only_its_keeper_knows_and_reports_to_the_owner(tmp_path: Path) -> None:
    words = ("{folder}/state", "{parent}", "{listen}", "{reports} {other}")
    with keeper(tmp_path, command(tmp_path, "serve", *words)) as kept:
        own = kept.own
        kept.begin(listen="tcp://0.0.0.0:*")
        wait_until(lambda: kept.hear() == [{"endpoint": "tcp://0.0.0.0:4711"}], "it has reported")
        (start,) = kept.starts
        _, reports, *rest = start["words"]
        assert rest == [f"{own}/state", str(start["parent"]), "tcp://0.0.0.0:*", f"{reports} {{other}}"]
        kept.close()
        kept.wait_until_gone()
    assert (tmp_path / "left").read_text() == "in good order"
    assert kept.reports == [{"endpoint": "tcp://0.0.0.0:4711"}], "an ordered end is not reported"


def test_nothing_is_started_and_the_folder_goes_if_the_owner_ends_before_it_is_ready(tmp_path: Path) -> None:
    with keeper(tmp_path, command(tmp_path, "serve")) as kept:
        (kept.own / "half.key").write_text("k")
        kept.close()
        kept.wait_until_gone()
    assert kept.starts == []


def test_a_child_that_fails_is_started_again_ever_later_and_each_end_is_reported(tmp_path: Path) -> None:
    with keeper(tmp_path, command(tmp_path, "fail")) as kept:
        kept.begin()
        wait_until(lambda: len(kept.hear()) >= 3, "it has failed three times")
        assert kept.reports[:3] == 3 * [{"ended": 3, "is_over": False}]
        assert len(kept.starts) >= 3


def test_what_comes_first_is_run_to_its_end_once(tmp_path: Path) -> None:
    with keeper(tmp_path, command(tmp_path, "finish"), command(tmp_path, "serve"), ends_job=True) as kept:
        kept.begin()
        wait_until(kept.hear, "the last one serves")
        assert [start["action"] for start in kept.starts] == ["finish", "serve"]


def test_what_comes_first_is_tried_again_if_it_fails(tmp_path: Path) -> None:
    with keeper(tmp_path, command(tmp_path, "fail"), command(tmp_path, "serve")) as kept:
        kept.begin()
        wait_until(lambda: len(kept.hear()) >= 2, "it has failed twice")
        assert {start["action"] for start in kept.starts} == {"fail"}


@pytest.mark.parametrize("ends_job", [False, True])
def test_an_end_in_good_order_ends_the_job_only_if_it_should(tmp_path: Path, ends_job: bool) -> None:
    with keeper(tmp_path, command(tmp_path, "finish"), ends_job=ends_job) as kept:
        kept.begin()
        wait_until(kept.hear, "the end is reported")
        assert kept.reports[0] == {"ended": 0, "is_over": ends_job}
        if ends_job:
            kept.wait_until_gone()
            assert len(kept.starts) == 1
        else:
            wait_until(lambda: len(kept.starts) >= 2, "it is started again")


@pytest.mark.slow
def test_a_child_that_served_is_started_again_where_it_served(tmp_path: Path) -> None:
    with keeper(tmp_path, command(tmp_path, "crash", "{listen}")) as kept:
        kept.begin(**{LISTEN_FILE: "tcp://0.0.0.0:*"})
        wait_until(kept.hear, "it serves")
        kept.send(**{LISTEN_FILE: "tcp://0.0.0.0:4711"})
        wait_until(lambda: len(kept.starts) >= 2, "it is started again")
        assert [start["words"][-1] for start in kept.starts[:2]] == ["tcp://0.0.0.0:*", "tcp://0.0.0.0:4711"]


def test_a_child_that_fails_at_its_start_is_not_bound_to_where_another_served(tmp_path: Path) -> None:
    with keeper(tmp_path, command(tmp_path, "fail", "{listen}")) as kept:
        kept.begin(**{LISTEN_FILE: "tcp://0.0.0.0:*"})

        def is_bound() -> bool:
            kept.send(**{LISTEN_FILE: "tcp://0.0.0.0:4711"})  # again, as it counts only if it comes in a pause
            time.sleep(0.2)
            return "tcp://0.0.0.0:4711" in listened(kept)

        wait_until(is_bound, "it is to serve where another did")
        wait_until(lambda: listened(kept)[-1] == "tcp://0.0.0.0:*", "it serves elsewhere")


def listened(kept: Kept) -> list[str]:
    return [start["words"][-1] for start in kept.starts]


def test_files_are_written_for_the_owner_alone_whenever_it_sends_some(tmp_path: Path) -> None:
    with keeper(tmp_path, command(tmp_path, "serve")) as kept:
        own = kept.own
        kept.begin(**{"keys/allowed/a.key": "k" * 70_000, "endpoint": "first\n"})
        wait_until(kept.hear, "it serves")
        assert (own / "keys/allowed/a.key").read_text() == "k" * 70_000
        assert [path.stat().st_mode & 0o777 for path in (own, own / "endpoint")] == [0o700, 0o600]
        kept.send(endpoint="second\n")
        wait_until(lambda: (own / "endpoint").read_text() == "second\n", "the file is replaced")


def test_a_line_that_its_owner_could_not_finish_starts_nothing(tmp_path: Path) -> None:
    with keeper(tmp_path, command(tmp_path, "serve")) as kept:
        assert kept.owner.stdin is not None
        kept.owner.stdin.write(b'{"keys/a.key": "k')
        kept.close()
        kept.wait_until_gone()
    assert kept.starts == []


def test_what_a_keeper_left_that_was_killed_with_its_owner_goes_with_the_next_and_nothing_else(tmp_path: Path) -> None:
    left, empty, other = (tmp_path / "tmp" / name for name in ("stoker-ray-left", "stoker-ray-empty", "other"))
    for folder in (left / "keys", empty, other):
        folder.mkdir(parents=True)
    (left / "keys" / "a.key").write_text("k")
    (tmp_path / "a").mkdir()
    with keeper(tmp_path / "a", command(tmp_path, "serve"), tmp=tmp_path / "tmp") as living:
        living.begin(endpoint="e")
        wait_until(living.hear, "it serves")
        (tmp_path / "b").mkdir()
        with keeper(tmp_path / "b", command(tmp_path, "serve"), tmp=tmp_path / "tmp") as later:
            later.begin()
            wait_until(later.hear, "it serves as well")
            assert {*(tmp_path / "tmp").iterdir()} == {empty, other, living.own, later.own}
            assert (living.own / "endpoint").read_text() == "e"
            empty.rmdir()
            other.rmdir()


def test_a_killed_child_is_started_again(tmp_path: Path) -> None:
    with keeper(tmp_path, command(tmp_path, "serve")) as kept:
        kept.begin()
        wait_until(kept.hear, "it serves")
        os.kill(kept.starts[0]["pid"], signal.SIGKILL)
        wait_until(lambda: len(kept.starts) == 2, "it is started again")
        wait_until(lambda: len(kept.hear()) == 3, "it serves again")
        assert kept.reports[1] == {"ended": -9, "is_over": False}


def test_nothing_is_left_if_the_owner_is_killed(tmp_path: Path) -> None:
    """The owner of a pipe is whoever holds its other end: this test lets go of it, as the kernel does at a kill -9."""
    with keeper(tmp_path, command(tmp_path, "serve")) as kept:
        kept.begin()
        wait_until(kept.hear, "it serves")
        parent = psutil.Process(kept.starts[0]["parent"])
        assert parent.pid != kept.owner.pid, "the keeper is no child of its owner"
        assert os.getsid(parent.pid) == parent.pid != os.getsid(0)
        kept.close()
        kept.wait_until_gone()


def test_the_keeper_itself_ends_in_good_order_at_sigterm(tmp_path: Path) -> None:
    with keeper(tmp_path, command(tmp_path, "serve")) as kept:
        kept.begin()
        wait_until(kept.hear, "it serves")
        os.kill(kept.starts[0]["parent"], signal.SIGTERM)
        kept.wait_until_gone()
    assert (tmp_path / "left").exists()

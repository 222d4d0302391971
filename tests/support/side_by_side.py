"""Test modules side by side, in processes forked from the one that collected them: `pytest --processes 4`.

Collecting imports TensorFlow and all that we have, which takes a process eight seconds; so it is done once. A module
stays whole, because its tests share loaders. Processes of even numbers take modules from the beginning, which wait
and measure time; those of odd numbers take them from the end, which compute, and let the others go first. When a
process dies, the test that it was at has failed, and another goes on with the rest of the module.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import closing
from io import StringIO
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.forked import Nurseries
from tests.support.stack_room import call_with_room

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

#: How much less of a processor those get that compute.
_NICE = 5

#: Set-ups and clean-ups that went well are reported from here on, for `--durations`: nothing else is made of them, and
#: passing on those of ten thousand tests takes seconds.
_SHORT_S = 0.005

_NURSERIES: pytest.StashKey[Nurseries] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """How many processes; with none, tests run in this one."""
    parser.addoption("--processes", type=int, default=0, help="run test modules in so many forked processes")


def pytest_configure(config: pytest.Config) -> None:
    """Open nurseries while this process is small."""
    count = config.getoption("processes")
    if count and not config.option.collectonly:
        config.stash[_NURSERIES] = Nurseries(count)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> object:
    """Take the place of pytest's own loop, which runs one test after the other."""
    nurseries = session.config.stash.get(_NURSERIES, None)
    if nurseries is None:
        return None
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        raise session.Interrupted(f"{session.testsfailed} errors while collecting")
    if any(name.startswith("tf_") for name in _threads()):
        raise session.Interrupted("a test module that is imported starts threads of TensorFlow, which no fork has")
    with closing(nurseries):
        _Distributor(session, nurseries).run()
    return True


def _threads() -> list[str]:
    return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]


class _TestProcess:
    """A process that runs tests, as the one that collected them sees it."""

    def __init__(self, number: int, pid: int, connection: Connection) -> None:
        self.number, self.pid, self.connection = number, pid, connection
        #: Readable once it has ended; its connection may be held open by a process that a test left behind.
        self.pidfd = os.pidfd_open(pid)
        #: The test that it is at, and those of its module that it has not begun, by their place in the session.
        self.at: int | None = None
        self.rest = range(0)

    def wait(self) -> int:
        """How it ended."""
        os.close(self.pidfd)
        self.connection.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class _Distributor:
    """Gives out modules and hears what became of their tests."""

    def __init__(self, session: pytest.Session, nurseries: Nurseries) -> None:
        self._session, self._nurseries = session, nurseries
        self._modules = list(_modules(session))
        self._processes: list[_TestProcess] = []
        self._folder = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]

    def run(self) -> None:
        """Go on until all modules are through, or too many tests have failed."""
        try:
            for number in range(self._session.config.getoption("processes")):
                self._fork(number)
            while self._processes:
                self._hear_all()
        finally:
            for process in self._processes:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)

    def _fork(self, number: int) -> None:
        ours, theirs = Pipe()
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            ours.close()
            for process in self._processes:
                process.connection.close()
                os.close(process.pidfd)
            self._nurseries.adopt(number)
            os.nice(_NICE if _computes(number) else 0)
            _be_test_process(self._session, theirs, self._folder / f"fork{number}")
        theirs.close()
        self._processes.append(_TestProcess(number, pid, ours))

    def _hear_all(self) -> None:
        heard = wait([source for process in self._processes for source in (process.connection, process.pidfd)])
        for process in self._processes[:]:
            if process.connection in heard:  # what it has said comes before its end
                self._hear(process)
            elif process.pidfd in heard:
                self._note_end(process)

    def _hear(self, process: _TestProcess) -> None:
        try:
            reports, what, value = process.connection.recv()
            for data in reports:
                self._pass_on(data)
                process.at = None
            if what == "next":
                self._give_module(process)
        except (EOFError, OSError):
            self._note_end(process)
            return
        if what == "begin":
            process.at, process.rest = value, range(value + 1, process.rest.stop)
            item = self._session.items[value]
            item.config.hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)

    def _pass_on(self, data: dict[str, Any]) -> None:
        hook = self._session.config.hook
        report = hook.pytest_report_from_serializable(config=self._session.config, data=data)
        hook.pytest_runtest_logreport(report=report)

    def _give_module(self, process: _TestProcess) -> None:
        stop = self._session.shouldfail or self._session.shouldstop
        end = -1 if _computes(process.number) else 0
        process.rest = range(0) if stop or not self._modules else self._modules.pop(end)
        process.connection.send(process.rest)

    def _note_end(self, process: _TestProcess) -> None:
        """It may have ended before its time, with any status: a test may call `os._exit(0)`."""
        self._processes.remove(process)
        status = process.wait()
        if process.at is not None:
            item = self._session.items[process.at]
            reason = f"its process ended with {status} during this test"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", reason, "call")
            self._session.config.hook.pytest_runtest_logreport(report=report)
        elif status:
            raise RuntimeError(f"a process ended with {status} between two tests")
        if process.rest:
            self._modules.insert(0, process.rest)
        if process.rest or process.at is not None:
            self._fork(process.number)


def _computes(number: int) -> bool:
    return number % 2 == 1


def _modules(session: pytest.Session) -> Iterator[range]:
    begin = 0
    for _, items in groupby(session.items, key=lambda item: item.nodeid.split("::")[0]):
        end = begin + len(list(items))
        yield range(begin, end)
        begin = end


# --- in a forked process ---


class _Teller:
    """Tells what became of each test when the next one begins: each message wakes the process that hears it."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config, self._connection = config, connection
        self._reports: list[object] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed and report.when != "call" and report.duration < _SHORT_S:
            return
        self._reports.append(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def begin(self, place: int) -> None:
        self._send("begin", place)

    def next(self) -> range:
        self._send("next", None)
        module: range = self._connection.recv()
        return module

    def end(self) -> None:
        self._send("end", None)

    def _send(self, what: str, value: object) -> None:
        self._connection.send((self._reports, what, value))
        self._reports = []


def _be_test_process(session: pytest.Session, connection: Connection, folder: Any) -> None:
    """Run what is given out; never return."""
    code = 1
    try:
        teller = _Teller(session.config, connection)
        _settle(session.config, teller, folder)
        call_with_room(lambda: _run_modules(session, teller))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _settle(config: pytest.Config, teller: _Teller, folder: Any) -> None:
    """Have what two processes cannot share: the file that output is captured in, and the folder for tests' files."""
    capture = config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    capture.stop_global_capturing()
    capture.start_global_capturing()
    folder.mkdir(mode=0o700, exist_ok=True)
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
    reporter = config.pluginmanager.getplugin("terminalreporter")
    assert reporter is not None
    reporter._tw._file = StringIO()  # for the parent reports
    config.pluginmanager.register(teller)


def _run_modules(session: pytest.Session, teller: _Teller) -> None:
    """One after the other; the last test of one learns what comes next, so that what both need stays."""
    module = teller.next()
    while module:
        following = module
        for place in module:
            teller.begin(place)
            is_last = place + 1 == module.stop
            following = teller.next() if is_last else module
            upcoming = (following.start if following else None) if is_last else place + 1
            nextitem = None if upcoming is None else session.items[upcoming]
            item = session.items[place]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        module = following
    teller.end()

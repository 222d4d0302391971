"""How our commands begin and end, whatever happens in them.

Rules: an expected error is one readable paragraph on standard error, and so is what the system refuses: a full disk, a
folder that may not be read, memory. The exit code says what happened, as `EXIT_CODES`
has it and every command's help; a command that serves until it is told to end ends with 0 then. SIGTERM ends other
commands as Ctrl-C does, cleaning up, but for the code. A reader that closes our output early is not an error. Python
misses a signal that arrives just as it begins to wait, and acts on it when the wait is over: so nothing waits in the
main thread for longer than `LONGEST_WAIT_S` at a time.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import traceback
from contextlib import contextmanager
from dataclasses import make_dataclass
from typing import TYPE_CHECKING, NoReturn

from shared.errors import MachineError, StokerError
from shared.logs import Log, start_logging
from shared.system.system_errors import is_refusal, system_error

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

__all__ = [
    "EXIT_CODES", "LONGEST_WAIT_S", "Terminated", "add_common_arguments", "allow_many_files", "describe_exit_codes",
    "run_command", "sigterm_is_ctrl_c",
]  # fmt: skip

_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM

#: How late a command may heed a signal.
LONGEST_WAIT_S = 0.5

#: What the codes of all commands mean; those of errors stand in `shared.errors`.
EXIT_CODES = {
    0: "finished",
    1: "an error, of the data for example",
    2: "wrong usage",
    3: "no server answers",
    4: "a server refused",
    _INTERRUPTED: "Ctrl-C",
    _TERMINATED: "SIGTERM",
}


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


def add_common_arguments(command: argparse.ArgumentParser, *, log_level: str, serves: bool = False) -> None:
    """What every command has: how much it logs, and in its help the exit codes."""
    levels = ("debug", "info", "warning", "error")
    command.add_argument("--log-level", choices=levels, default=log_level, help="how much to log")
    describe_exit_codes(command, serves=serves)


def describe_exit_codes(command: argparse.ArgumentParser, *, serves: bool = False) -> None:
    """Explain the exit codes in the command's help."""
    codes = {code: said for code, said in EXIT_CODES.items() if not serves or code < _INTERRUPTED}
    codes[0] = "ended by Ctrl-C or SIGTERM" if serves else codes[0]
    command.add_argument_group("exit codes", ", ".join(f"{code} {said}" for code, said in codes.items()))


def run_command(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> NoReturn:
    """Read the arguments, call `options.run(options)` and end the process with the exit code that it returns."""
    options = parser.parse_args(arguments)
    start_logging(level=options.log_level)
    with _sigterm_as_ctrl_c() as came:
        try:
            code: int = options.run(options)
        except StokerError as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            code = error.exit_code
        except KeyboardInterrupt as error:
            terminated = bool(came) or isinstance(error, Terminated)
            what_is_left = f": {error}" if str(error) else ""  # what was saved, say
            print(f"{parser.prog}: {'terminated' if terminated else 'interrupted'}{what_is_left}", file=sys.stderr)
            code = _TERMINATED if terminated else _INTERRUPTED
            _make_python_forget()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except Exception as error:  # refusals of the system have many classes; others are raised
            if not is_refusal(error):
                raise
            Log(parser.prog).debug("the system refused", traceback=traceback.format_exc())
            print(f"{parser.prog}: {system_error(error)}", file=sys.stderr)
            code = MachineError.exit_code
    sys.exit(code)


def _make_python_forget() -> None:
    """Have Python forget a KeyboardInterrupt that was handled, so that our exit code counts.

    One that passes through code which is compiled from text, as that of every dataclass is while modules are imported,
    is remembered as unhandled, and `python -m` then ends by SIGINT whatever the code is. Compiling other text makes it
    forgotten.
    """
    make_dataclass("Nothing", [])


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[list[int]]:
    """While the block lasts, SIGTERM does what Ctrl-C does in this process; the yielded list has those that came."""
    ours, came = os.getpid(), list[int]()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != ours:  # a child that was forked from us
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        came.append(number)
        importer = _importer(frame)
        if importer is not None:
            _call_after_import(importer, interrupt)
        else:
            interrupt()

    def interrupt() -> None:
        if not callable(signal.getsignal(signal.SIGINT)):  # ignored, as shells do for background jobs
            raise Terminated
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, handle)
    _handlers.append(handle)
    try:
        yield came
    finally:
        _handlers.remove(handle)
        signal.signal(signal.SIGTERM, before)


def _importer(frame: FrameType | None) -> FrameType | None:
    """Return the frame that waits for the outermost import that is under way in this one; None if none is."""
    importer = None
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            importer = frame.f_back
        frame = frame.f_back
    return importer


def _call_after_import(importer: FrameType, interrupt: Callable[[], None]) -> None:
    """Call `interrupt`, which raises an exception, once the import is over that this frame waits for.

    What is raised during an import may be lost: importlib drops what is raised in its callbacks, and the creation of a
    class turns it into another exception. Tracing is how a debugger gets control back there; neither a timer nor a
    thread would do, because workers have their own use for the one, and a nursery must not have the other.
    """

    def trace(_frame: FrameType, _event: str, _arg: object) -> None:
        sys.settrace(None)
        importer.f_trace = None
        interrupt()

    importer.f_trace = trace
    sys.settrace(lambda *_event: None)


_handlers: list[object] = []


def sigterm_is_ctrl_c() -> bool:
    """Whether SIGTERM does what Ctrl-C does, for code that must act before Python runs a signal's handler."""
    return signal.getsignal(signal.SIGTERM) in _handlers


def allow_many_files() -> None:
    """Raise the soft limit of open files: a connection takes one, and the usual 1024 is only for users of `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

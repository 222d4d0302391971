"""Start and end of our commands: signals, errors and exit codes.

Rules: an expected error is printed as one readable paragraph on standard error, and so is a refusal by the system: a
full disk, an unreadable folder, no memory. The exit code says what happened, as `EXIT_CODES` and every command's help
list; a command that serves until it is stopped ends with 0 then. SIGTERM ends other commands as Ctrl-C does, with
clean-up, but with its own code. A reader that closes our output early is not an error. Python misses a signal that
arrives just as it begins to wait, and handles it only when the wait is over, so nothing waits in the main thread for
longer than `LONGEST_WAIT_S` at a time.
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

from shared.early_signals import end_at_once
from shared.errors import MachineError, StokerError
from shared.logs import Log, start_logging
from shared.system.system_errors import is_refusal, system_error

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

__all__ = [
    "EXIT_CODES", "LONGEST_WAIT_S", "Terminated", "add_common_arguments", "allow_many_files", "describe_exit_codes",
    "is_usual_ctrl_c", "run_command", "sigterm_is_ctrl_c",
]  # fmt: skip

_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM

#: Longest wait in the main thread, and so the longest delay before a signal is handled.
LONGEST_WAIT_S = 0.5

#: Meaning of every command's exit codes; the codes of errors are set in `shared.errors`.
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
    """Termination by SIGTERM where SIGINT is ignored, so that Ctrl-C's own path cannot be used."""


def add_common_arguments(command: argparse.ArgumentParser, *, log_level: str, serves: bool = False) -> None:
    """Add the options that every command has: the log level, and the exit codes in its help."""
    command.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default=log_level, help="how much to log"
    )
    describe_exit_codes(command, serves=serves)


def describe_exit_codes(command: argparse.ArgumentParser, *, serves: bool = False) -> None:
    """Explain the exit codes in the command's help; a command that `serves` ends with 0 at Ctrl-C and SIGTERM."""
    codes = {code: meaning for code, meaning in EXIT_CODES.items() if not serves or code < _INTERRUPTED}
    codes[0] = "ended by Ctrl-C or SIGTERM" if serves else codes[0]
    command.add_argument_group("exit codes", ", ".join(f"{code} {meaning}" for code, meaning in codes.items()))


def run_command(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> NoReturn:
    """Read the arguments, call `options.run(options)` and end the process with the exit code that it returns.

    Errors are printed and set the code: a StokerError its own, Ctrl-C 130, SIGTERM 143, a refusal by the system 1;
    wrong usage ends with 2 and a reader that closed our output with 0. Other exceptions are raised as they are.
    """
    options = parser.parse_args(arguments)
    start_logging(level=options.log_level)
    with _signals_heeded() as signals:
        try:
            code: int = options.run(options)
        except StokerError as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            code = error.exit_code
        except KeyboardInterrupt as error:
            terminated = bool(signals) or isinstance(error, Terminated)
            state = f": {error}" if str(error) else ""  # such as what was saved
            print(f"{parser.prog}: {'terminated' if terminated else 'interrupted'}{state}", file=sys.stderr)
            code = _TERMINATED if terminated else _INTERRUPTED
            # Have Python forget the handled KeyboardInterrupt, so that our exit code counts. One that passes through
            # code compiled from text (as every dataclass is while modules are imported) stays marked as unhandled, and
            # `python -m` then ends by SIGINT whatever the exit code is. Compiling other text clears the mark.
            make_dataclass("Nothing", [])
        except BrokenPipeError:
            # Python flushes standard output once more as it ends, which would fail again with a message.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except Exception as error:  # refusals of the system have many classes; others are raised
            if not is_refusal(error):
                raise
            Log(parser.prog).debug("the system refused", traceback=traceback.format_exc())
            print(f"{parser.prog}: {system_error(error)}", file=sys.stderr)
            code = MachineError.exit_code
    sys.exit(code)


@contextmanager
def _signals_heeded() -> Iterator[list[int]]:
    """Make Ctrl-C raise outside imports, and SIGTERM act as Ctrl-C, in this block; yield the list of SIGTERMs received.

    SIGTERM raises Terminated where SIGINT is ignored. A handler of SIGINT that is not Python's own, nor that of a
    command's start, stays.
    """
    own_pid, signals = os.getpid(), list[int]()

    def handle(number: int, frame: FrameType | None) -> None:
        """Raise the interruption now, or after a running import; in a forked child, end it by the default action."""
        if os.getpid() != own_pid:  # a forked child inherits this handler but not our clean-up: SIGTERM just ends it
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        signals.append(number)
        importer = _importer(frame)
        if importer is not None:  # an exception raised inside an import may be lost
            _call_after_import(importer, interrupt)
        else:
            interrupt()

    def interrupt() -> None:
        """Raise what Ctrl-C would: by SIGINT's handler, or Terminated where SIGINT is ignored."""
        if not callable(signal.getsignal(signal.SIGINT)):  # ignored, as shells do for background jobs
            raise Terminated
        signal.raise_signal(signal.SIGINT)

    before, of_ctrl_c = signal.signal(signal.SIGTERM, handle), signal.getsignal(signal.SIGINT)
    _handlers.append(handle)
    is_ours = of_ctrl_c in (end_at_once, signal.default_int_handler)
    if is_ours:
        signal.signal(signal.SIGINT, _CtrlC().handle)
    try:
        yield signals
    finally:
        _handlers.remove(handle)
        signal.signal(signal.SIGTERM, before)
        if is_ours:
            signal.signal(signal.SIGINT, of_ctrl_c)


class _CtrlC:
    """Handler of SIGINT that raises KeyboardInterrupt as Python's own does; inside an import only if asked twice."""

    def __init__(self) -> None:
        self._is_waiting = False

    def handle(self, _number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt now; inside an import at a first signal once that is over, now at a second one."""
        importer = _importer(frame)
        if importer is None or self._is_waiting:  # importing a user's own module may take minutes
            self._interrupt()
        else:
            self._is_waiting = True
            _call_after_import(importer, self._interrupt)

    def _interrupt(self) -> None:
        self._is_waiting = False
        raise KeyboardInterrupt


def is_usual_ctrl_c(handler: object) -> bool:
    """Return whether this handler of SIGINT raises KeyboardInterrupt: Python's own, or that of a command of ours."""
    return handler is signal.default_int_handler or isinstance(getattr(handler, "__self__", None), _CtrlC)


def _importer(frame: FrameType | None) -> FrameType | None:
    """Return the caller of the outermost import that is running in this stack, or None if no import is running."""
    importer = None
    while frame is not None:  # to the outermost frame: the last match is the first import that began
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            importer = frame.f_back
        frame = frame.f_back
    return importer


def _call_after_import(importer: FrameType, interrupt: Callable[[], None]) -> None:
    """Call `interrupt`, which raises, once the import that this frame waits for is over.

    An exception raised during an import may be lost: importlib drops those raised in its callbacks, and class creation
    turns them into other exceptions. Tracing is how a debugger gets control back there. A timer would not do because
    workers use it otherwise, nor a thread because a nursery must not have one.
    """

    def trace(_frame: FrameType, _event: str, _arg: object) -> None:
        sys.settrace(None)
        importer.f_trace = None
        interrupt()

    importer.f_trace = trace
    sys.settrace(lambda *_event: None)


_handlers: list[object] = []


def sigterm_is_ctrl_c() -> bool:
    """Return whether SIGTERM acts as Ctrl-C, for code that must act before Python runs a signal handler."""
    return signal.getsignal(signal.SIGTERM) in _handlers


def allow_many_files() -> None:
    """Raise the soft limit of open files to the hard one.

    Each connection takes a descriptor, and the usual soft limit of 1024 only protects users of `select`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

"""How our commands begin and end, whatever happens in them.

Rules: an expected error is one readable paragraph on standard error and exit code 1; wrong usage exits with 2, Ctrl-C
with 130; a reader that closes our output early is not an error.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING, NoReturn

from shared.errors import StokerError
from shared.logs import start_logging

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["allow_many_files", "run_command"]


def run_command(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> NoReturn:
    """Read the arguments, call `options.run(options)` and end the process with the exit code that it returns."""
    options = parser.parse_args(arguments)
    start_logging(level=options.log_level)
    try:
        code: int = options.run(options)
    except StokerError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def allow_many_files() -> None:
    """Raise the soft limit of open files: a connection takes one, and the usual 1024 is only for users of `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

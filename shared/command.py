"""How a command of ours begins and ends, whatever happens in it.

Rules: an expected error is one readable paragraph on standard error and exit code 1; wrong usage exits with 2, Ctrl-C
with 130; a reader of our output that has seen enough is no error.
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
    """Read the arguments, call `options.run(options)`, end the process with its exit code."""
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
    """A connection takes a descriptor; the usual soft limit of 1024 is for programs that call select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

"""Arguments that several commands of `trainer-client` share: the user's module, the job, and kinds of numbers."""

from __future__ import annotations

import argparse
import json
import math
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.endpoints import check_coordinator
from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = [
    "Interval",
    "add_job",
    "add_model",
    "at_least",
    "command_named",
    "endpoint",
    "positive",
    "rate",
    "refuse_usage",
    "share",
    "whole",
    "wrong_usage",
]


def command_named(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    texts: tuple[str, str, str],
) -> argparse.ArgumentParser:
    """Add and return a command; `texts` are its purpose in a line, its description, and examples."""
    line, full, examples = texts
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser(name, help=line, description=full, epilog=examples, formatter_class=raw)
    command.set_defaults(run=run, refuse_usage=command.error)
    return command


def refuse_usage(options: argparse.Namespace, problem: str) -> None:
    """End the process with exit code 2 if there is a problem with its arguments."""
    if problem:
        options.refuse_usage(problem)


@contextmanager
def wrong_usage(options: argparse.Namespace) -> Iterator[None]:
    """Turn a SettingsError of the block into wrong usage, because all its settings come from the command line."""
    try:
        yield
    except SettingsError as error:
        options.refuse_usage(str(error))


def add_model(command: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options of the user's module, and return their group for further ones."""
    group = command.add_argument_group("model")
    group.add_argument(
        "--model",
        required=True,
        type=_module,
        metavar="MODULE[:NAME]",
        help="import this module of yours; NAME if its model is not called model",
    )
    group.add_argument(
        "--param",
        action="append",
        default=[],
        type=_parameter,
        metavar="NAME=VALUE",
        help="pass this parameter to the module's functions that take it; may be given several times",
    )
    return group


def add_job(command: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options of the running job and the checkpoints, and return their group for further ones."""
    group = command.add_argument_group("job")
    group.add_argument(
        "--feed", required=True, type=endpoint, metavar="ENDPOINT", help="connect to this coordinator of a running job"
    )
    group.add_argument("--keys", default="", metavar="FOLDER", help="authenticate with the keys in FOLDER")
    group.add_argument(
        "--timeout-seconds", type=positive, default=60.0, metavar="S", help="wait S seconds for the job (default: 60)"
    )
    group.add_argument("--checkpoint", type=Path, required=True, metavar="FOLDER", help="use the checkpoints in FOLDER")
    return group


def _module(text: str) -> str:
    """Parse `MODULE` or `MODULE:NAME`."""
    module, colon, name = text.partition(":")
    parts = module.split(".")
    if parts[-1] == "py" or not all(map(str.isidentifier, parts)) or (colon and not name.isidentifier()):
        raise argparse.ArgumentTypeError(
            f"expected a module as an import names it, without .py, and perhaps :name, got {text}"
        )
    return text


def endpoint(text: str) -> str:
    """Parse a coordinator's endpoint, or the file that holds it."""
    try:
        check_coordinator(text, where="it")
    except SettingsError as error:
        raise argparse.ArgumentTypeError(f"expected {error.expected}, got {error.got}") from None
    return text


def _parameter(text: str) -> tuple[str, Any]:
    """Parse `NAME=VALUE`; the value is JSON if it can be read as such, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"expected name=value, got {text}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def whole(text: str) -> int:
    """Parse an integer from 1 to 4096, the bounds of a world."""
    number = int(text)
    if not 1 <= number <= 4096:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 4096, got {text}")
    return number


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser for integers of at least `least`."""

    def bounded(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} on, got {text}")
        return number

    return bounded


def positive(text: str) -> float:
    """Parse a number above 0 and up to 1e8, which is three years in seconds."""
    number = float(text)
    if not 0 < number <= _LARGEST:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and up to {_LARGEST:.0f}, got {text}")
    return number


_LARGEST = 1e8


class Interval(argparse.Action):
    """Option `--every N UNIT`, kept as a dict from units to numbers; given again, it adds or replaces a unit."""

    def __init__(
        self,
        option_strings: Sequence[str],
        dest: str,
        *,
        units: Mapping[str, Callable[[str], float]],
        default: Mapping[str, float] | None = None,
        help: str | None = None,  # noqa: A002 - as argparse calls it
    ) -> None:
        super().__init__(option_strings, dest, nargs=2, metavar=("N", "UNIT"), default=default, help=help)
        self._units = units

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Keep the number under its unit; refuse units and numbers that the option does not take."""
        text, unit = values
        if unit not in self._units:
            raise argparse.ArgumentError(self, f"expected {' or '.join(self._units)} after the number, got {unit}")
        try:
            number = self._units[unit](text)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        except ValueError:
            raise argparse.ArgumentError(self, f"expected a number of {unit}, got {text}") from None
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), unit: number})


def rate(text: str) -> float:
    """Parse a finite number of at least 0."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, got {text}")
    return number


def share(text: str) -> float:
    """Parse a number from 0 to 1."""
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"expected a share from 0 to 1, got {text}")
    return number

"""Arguments of `trainer-client`: those that several commands share, kinds of numbers, and what may not be combined.

Rules: an option that would be ignored is refused, so that nobody believes that it had an effect; and so is every
mistake that shows without a server, a file or an environment: before anything is connected to, with exit code 2.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shared.endpoints import check_coordinator
from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = [
    "USUAL_STALENESS",
    "Interval",
    "add_job",
    "add_model",
    "at_least",
    "command_named",
    "endpoint",
    "find_export_problem",
    "find_load_test_problem",
    "find_repeated",
    "find_train_problem",
    "find_unheeded",
    "positive",
    "rate",
    "refuse_usage",
    "share",
    "whole",
    "wrong_usage",
]


_N = TypeVar("_N", int, float)

#: Default limit on the staleness of gradients on parameter servers.
USUAL_STALENESS = 8

#: Suffix that a SavedModel's folder may have: a version, such as `.2` or `.v2`.
_VERSION = re.compile(r"\.v?\d+")

#: Options of `train` that change nothing without another one.
_TRAIN_NEEDS = {
    "--validate-every": "--validate",
    "--metrics-token": "--metrics-listen",
    "--insecure": "--metrics-listen",
}

#: Largest number of seconds, steps and the like: three years.
_LARGEST = 1e8


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help with the lines of examples as they are, and an action's own account of its arguments."""

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        """Return the action's `shown_arguments`, or what argparse makes of its number of arguments if it has none."""
        # For one or two arguments argparse would show "HOST [FOLDER ...]", as for any number.
        return getattr(action, "shown_arguments", "") or super()._format_args(action, default_metavar)


def command_named(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    texts: tuple[str, str, str],
) -> argparse.ArgumentParser:
    """Add and return a command, which sets `options.run`, and `options.refuse_usage` to end as wrong usage (code 2).

    `texts` are its purpose, its description, and examples.
    """
    line, full, examples = texts
    command = commands.add_parser(
        name,
        help=line,
        description=full,
        epilog=examples,
        formatter_class=_HelpFormatter,
    )
    command.set_defaults(run=run, refuse_usage=command.error)
    return command


def refuse_usage(options: argparse.Namespace, problem: str) -> None:
    """End the process with exit code 2 if there is a problem with its arguments; do nothing if it is empty."""
    if problem:
        options.refuse_usage(problem)


@contextmanager
def wrong_usage(options: argparse.Namespace) -> Iterator[None]:
    """Turn a SettingsError of the block into wrong usage, because all its settings come from the command line.

    The process then ends with exit code 2.
    """
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
    """Return `MODULE` or `MODULE:NAME` as it is; raise ArgumentTypeError otherwise, and if `.py` ends the module."""
    module, colon, name = text.partition(":")
    parts = module.split(".")
    if parts[-1] == "py" or not all(map(str.isidentifier, parts)) or (colon and not name.isidentifier()):
        raise argparse.ArgumentTypeError(
            f"expected a module as an import names it, without .py, and perhaps :name, got {text}"
        )
    return text


def endpoint(text: str) -> str:
    """Return a coordinator's endpoint, tcp:// or file:// with an absolute path; raise ArgumentTypeError otherwise."""
    try:
        check_coordinator(text, where="it")
    except SettingsError as error:
        raise argparse.ArgumentTypeError(f"expected {error.expected}, got {error.got}") from None
    return text


def _parameter(text: str) -> tuple[str, Any]:
    """Return name (an identifier) and value (JSON or else text) of `NAME=VALUE`; raise ArgumentTypeError if not so."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"expected name=value, got {text}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def whole(text: str) -> int:
    """Parse an integer from 1 to 4096, the bounds of a world.

    Raise ArgumentTypeError for another integer, and ValueError for anything else; argparse makes both wrong usage.
    """
    number = int(text)
    return _fitting(number, text, is_fit=1 <= number <= 4096, expected="a number from 1 to 4096")


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser for integers of at least `least`.

    It raises ArgumentTypeError for a smaller integer, and ValueError for anything else.
    """

    def bounded(text: str) -> int:
        number = int(text)
        return _fitting(number, text, is_fit=number >= least, expected=f"a whole number from {least} on")

    return bounded


def positive(text: str) -> float:
    """Parse a number above 0 and up to 1e8.

    Raise ArgumentTypeError for another number, and ValueError for anything else.
    """
    number = float(text)
    return _fitting(number, text, is_fit=0 < number <= _LARGEST, expected=f"a number above 0 and up to {_LARGEST:.0f}")


def rate(text: str) -> float:
    """Parse a finite number of at least 0.

    Raise ArgumentTypeError for another number, and ValueError for anything else.
    """
    number = float(text)
    return _fitting(number, text, is_fit=0 <= number < math.inf, expected="a number from 0 on")


def share(text: str) -> float:
    """Parse a number from 0 to 1.

    Raise ArgumentTypeError for another number, and ValueError for anything else.
    """
    number = float(text)
    return _fitting(number, text, is_fit=0 <= number <= 1, expected="a share from 0 to 1")


def _fitting(number: _N, text: str, *, is_fit: bool, expected: str) -> _N:
    """Return the number; raise ArgumentTypeError, which argparse prints as wrong usage, unless it is fit."""
    if not is_fit:
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text}")
    return number


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
        """Keep the number under its unit; raise ArgumentError for units and numbers that the option does not take."""
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


# --- what a command line may not combine ---


def find_repeated(flag: str, names: Sequence[str]) -> str:
    """Return the problem if a name is given twice, else ""; `flag` is the option that it names."""
    twice = [name for at, name in enumerate(names) if name in names[:at]]
    return f"argument {flag}: expected each name once, got {twice[0]} twice" if twice else ""


def find_unheeded(options: argparse.Namespace, needed: Mapping[str, str]) -> str:
    """Return the problem if an option is given without the one that it needs, else ""; both by their flags."""
    for flag, other in needed.items():
        if _is_given(options, flag) and not _is_given(options, other):
            return f"argument {flag}: expected {other} with it, because without it changes nothing"
    return ""


def _is_given(options: argparse.Namespace, flag: str) -> bool:
    """Return whether an option was given; 0 counts as given.

    None, an empty text or list, and a flag that is off do not. Of a tuple, the first entry decides.
    """
    value = getattr(options, flag.removeprefix("--").replace("-", "_"))
    if isinstance(value, tuple):  # an address, and what may come with it
        value = value[0]
    # Not by its truth: `--seed 0` is given, and 0 == False, so that only `is` tells a flag that is off from it.
    return value not in (None, "", []) and value is not False


def find_train_problem(options: argparse.Namespace) -> str:
    """Return the first problem with the arguments of `train`, such as an option that would be ignored; "" if none."""
    if options.epochs is None and options.steps is None and options.max_time is None:
        return "one of --epochs, --steps and --max-time is needed, or training would have no end"
    judges = options.validate or []
    if options.stream in judges:
        return f"argument --validate: expected a stream for evaluation, got {options.stream}, which is trained on"
    if len(options.validate_every or {}) > 1:
        return "argument --validate-every: expected epochs or steps, got both"
    return (
        find_repeated("--validate", judges)
        or find_unheeded(options, _TRAIN_NEEDS)
        or _find_served_problem(options)
        or (find_export_problem(str(options.export)) if options.export is not None else "")
    )


def _find_served_problem(options: argparse.Namespace) -> str:
    """Return the first problem of an option with parameter servers; "" if there is none, or with another strategy."""
    if options.strategy != "parameter-server":
        return ""
    for flag in ("epochs", "steps"):
        if str(getattr(options, flag)).startswith("+"):
            return (
                f"argument --{flag}: expected a number that is the same for all workers, got {getattr(options, flag)}: "
                "write how many there are in all"
            )
    if "steps" in (options.validate_every or {}):
        return (
            "argument --validate-every: expected epochs with --strategy parameter-server, got steps: workers take no "
            "steps together"
        )
    staleness = USUAL_STALENESS if options.staleness is None else options.staleness
    if (options.pull_every or 1) > staleness + 1:
        return (
            f"argument --pull-every: expected at most {staleness + 1}, one more than --staleness, got "
            f"{options.pull_every}: later gradients would be refused, because a worker's own count as well"
        )
    return ""


def find_export_problem(path: str) -> str:
    """Return the problem with an exported model's path; "" if its suffix is .keras, a version such as .2, or none."""
    name = path.rstrip("/").rpartition("/")[2].lstrip(".")
    suffix = name[name.rfind(".") :] if "." in name else ""
    if suffix in ("", ".keras") or _VERSION.fullmatch(suffix):
        return ""
    return (
        f"argument --export: expected a file that ends in .keras, or the name of a SavedModel's folder, got {path}: "
        f"{suffix} is neither"
    )


def find_load_test_problem(options: argparse.Namespace) -> str:
    """Return the first problem with an option of `load-test` that the mode, --feed or its lack makes useless, or ""."""
    in_drain = options.mode == "drain", "the mode train with it, because drain simulates no steps"
    with_feed = bool(options.feed), "no --feed with it, because that job has its own"
    conflicts = {"--step-ms": in_drain, "--min-utilisation": in_drain, "--workers": with_feed, "--seed": with_feed}
    for flag, (is_ignored, expected) in conflicts.items():
        if is_ignored and _is_given(options, flag):
            return f"argument {flag}: expected {expected}"
    return find_unheeded(options, {"--stream": "--feed", "--keys": "--feed"})

"""What several commands of `trainer-client` ask alike: the user's module, the job, and kinds of numbers."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer_client.runs.model_module import ModelModule

__all__ = ["add_job", "add_model", "at_least", "command_named", "model_module", "positive", "whole"]


def command_named(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    texts: tuple[str, str, str],
) -> argparse.ArgumentParser:
    """A command, with what it is for, in a line and in full, and examples of it."""
    line, full, examples = texts
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser(name, help=line, description=full, epilog=examples, formatter_class=raw)
    command.set_defaults(run=run)
    return command


def add_model(command: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The user's module; the group, for what else is said of it."""
    group = command.add_argument_group("model")
    group.add_argument(
        "--model", required=True, metavar="MODULE[:NAME]", help="your module, and NAME if its model is not called model"
    )
    group.add_argument(
        "--param",
        action="append",
        default=[],
        type=_parameter,
        metavar="NAME=VALUE",
        help="a parameter of the module's functions",
    )
    return group


def add_job(command: argparse.ArgumentParser) -> None:
    """The running job, and the checkpoints."""
    command.add_argument("--feed", required=True, metavar="ENDPOINT", help="the running job's coordinator")
    command.add_argument("--keys", default="", metavar="FOLDER", help="keys of the job")
    command.add_argument(
        "--timeout-seconds", type=positive, default=60.0, metavar="S", help="how long to wait for the job (60)"
    )
    command.add_argument("--checkpoint", type=Path, required=True, metavar="FOLDER", help="folder of FeedCheckpoint")


def model_module(options: argparse.Namespace, names: dict[str, str]) -> ModelModule:
    """The module that `add_model` asked for; `names` are other names of its pieces."""
    from trainer_client.runs.model_module import ModelModule  # noqa: PLC0415 - so that --help is quick

    sys.path.insert(0, "")  # the user's modules are in the current folder
    return ModelModule(options.model, dict(options.param), names)


def _parameter(text: str) -> tuple[str, Any]:
    """A name and its value, which is JSON if it can be read as such, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"expected name=value, got {text}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def whole(text: str) -> int:
    """A number from 1 on that a message can say."""
    number = int(text)
    if not 1 <= number <= 4096:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 4096, got {text}")
    return number


def at_least(least: int) -> Callable[[str], int]:
    """The kind of whole numbers from there on."""

    def bounded(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} on, got {text}")
        return number

    return bounded


def positive(text: str) -> float:
    """A number above 0."""
    number = float(text)
    if not 0 < number <= 1e6:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return number

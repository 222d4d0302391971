"""Checks of what a command line may not combine: they refuse before anything is connected to, with exit code 2.

Rules: pure. An option that would be ignored is refused, so that nobody believes that it had an effect; and so is every
mistake that shows without a server, a file or an environment.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

__all__ = [
    "USUAL_STALENESS",
    "find_export_problem",
    "find_load_test_problem",
    "find_repeated",
    "find_train_problem",
    "find_unheeded",
]

#: Default limit on the staleness of gradients on parameter servers.
USUAL_STALENESS = 8

#: Suffix that a SavedModel's folder may have: a version, such as `.2` or `.v2`.
_VERSION = re.compile(r"\.v?\d+")


def find_repeated(flag: str, names: Sequence[str]) -> str:
    """Return the problem if a name is given twice, else ""."""
    twice = [name for at, name in enumerate(names) if name in names[:at]]
    return f"argument {flag}: expected each name once, got {twice[0]} twice" if twice else ""


def find_unheeded(options: argparse.Namespace, needed: Mapping[str, str]) -> str:
    """Return the problem if an option is given without the one that it needs, else ""; both by their flags."""
    for flag, other in needed.items():
        if _is_given(options, flag) and not _is_given(options, other):
            return f"argument {flag}: expected {other} with it, because without it changes nothing"
    return ""


def _is_given(options: argparse.Namespace, flag: str) -> bool:
    """Return whether an option was given; 0 counts as given."""
    value = getattr(options, flag.removeprefix("--").replace("-", "_"))
    return value is not None and value is not False and value not in ("", [])  # 0 is given


def find_train_problem(options: argparse.Namespace) -> str:
    """Return the problem with the arguments of `train`, or "" if there is none."""
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


_TRAIN_NEEDS = {
    "--validate-every": "--validate",
    "--metrics-targets": "--metrics-listen",
    "--metrics-token": "--metrics-listen",
    "--insecure": "--metrics-listen",
}


def _find_served_problem(options: argparse.Namespace) -> str:
    """Return the problem with options that parameter servers cannot serve, or "" if there is none."""
    if options.strategy != "parameter-server":
        return ""
    for flag in ("epochs", "steps"):
        if str(getattr(options, flag) or "").startswith("+"):
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
    """Return the problem with the path of an exported model, or "" if it names one of the two kinds."""
    name = path.rstrip("/").rpartition("/")[2].lstrip(".")
    suffix = name[name.rfind(".") :] if "." in name else ""
    if suffix in ("", ".keras") or _VERSION.fullmatch(suffix):
        return ""
    return (
        f"argument --export: expected a file that ends in .keras, or the name of a SavedModel's folder, got {path}: "
        f"{suffix} is neither"
    )


def find_load_test_problem(options: argparse.Namespace) -> str:
    """Return the problem with the arguments of `load-test`, or "" if there is none."""
    if options.mode == "drain":
        for flag in ("--step-ms", "--min-utilisation"):
            if _is_given(options, flag):
                return f"argument {flag}: expected the mode train with it, because drain simulates no steps"
    if options.feed:
        for flag in ("--workers", "--seed"):
            if _is_given(options, flag):
                return f"argument {flag}: expected no --feed with it, because that job has its own"
    return find_unheeded(options, {"--stream": "--feed", "--keys": "--feed"})

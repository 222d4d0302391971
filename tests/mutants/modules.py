"""Which modules get mutants: the pure ones, as they say of themselves, and the shells around them."""

from __future__ import annotations

from pathlib import PurePosixPath

from tests.test_architecture import FILES, PURE_FILES

__all__ = ["KINDS", "modules_of"]

KINDS = ("pure", "shells")

#: Folders and modules that are no part of a running job: demonstrations, measurements, commands.
_NOT_RUNNING = frozenset(("__init__", "__main__", "cli", "commands", "demo", "load_test"))


def modules_of(kind: str, only: str = "") -> list[str]:
    """The files of a kind, from the root; of those only one file or what is in one folder, if asked for."""
    pure = kind == "pure"
    return [
        name
        for name in FILES
        if (name in PURE_FILES) == pure
        and not _NOT_RUNNING & {PurePosixPath(name).stem, *PurePosixPath(name).parts}
        and (not only or name == only or name.startswith(only.rstrip("/") + "/"))
    ]

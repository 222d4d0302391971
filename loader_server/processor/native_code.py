"""Native code that a user's own code brings, which may choose its loops by the processor without anybody knowing.

Rules: packages are judged by their lists of files; nothing is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.installed import has_native_code, required_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shared.logs import Log

__all__ = ["native_code_lines", "native_names", "warn_of_unproved_code"]

#: Packages that the limits of a level reach (see `levels`), as tests show.
_LIMITED = frozenset(("numpy", "soxr"))


def native_names(packages: Iterable[str], compiled: Iterable[str]) -> list[str]:
    """Return the packages with native code that no limit of ours reaches, and these compiled modules; sorted.

    What a package without native code requires counts as well, as its work is done there. Raise importlib's
    PackageNotFoundError if a package is not installed.
    """
    found, seen, ahead = set(compiled), set(_LIMITED), list(packages)
    while ahead:
        name = ahead.pop()
        if name in seen:
            continue
        seen.add(name)
        if has_native_code(name):
            found.add(name)
        else:
            ahead.extend(required_by(name))
    return sorted(found)


def warn_of_unproved_code(native: Mapping[str, list[str]], log: Log) -> None:
    """Log a warning for each transform or source whose native code the job's processor level may not reach."""
    for user, names in native.items():
        log.warning(
            "native code may not keep to the job's processor level, so machines need equal processor features as well; "
            "a transform that is sure of its bytes declares processor_safe=True",
            used_by=user,
            code=", ".join(names),
        )


def native_code_lines(native_code: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a line for each transform or source whose native code the job's processor level may not reach."""
    for user, names in native_code.items():
        yield f"native code of {user} may not keep to the job's processor level: {', '.join(names)}"

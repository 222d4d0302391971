"""Files that list samples, such as manifests: what tells them from others, noted in the index and compared later.

Rules: what such a list says is kept in the index, so a list with other content is refused, whatever its size. One that
was only touched or copied is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xxhash

from shared.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["absent_list", "list_facts", "refuse_other_list"]

_BLOCK_BYTES = 2**20


def list_facts(path: str, base: Path, what: str) -> dict[str, Any]:
    """What the index's origin says of a list, which messages call `what`; DataError where it cannot be read."""
    place = base / path
    try:
        status = place.stat()
        digest = _digest(place)
    except OSError as error:
        raise absent_list(place, what, error) from None
    return {"path": path, "bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "digest": digest}


def refuse_other_list(facts: dict[str, Any], base: Path, what: str, index: Path) -> None:
    """Refuse a list that is no longer what was indexed."""
    place = base / facts["path"]
    try:
        status = place.stat()
        same = (status.st_size, status.st_mtime_ns) == (facts["bytes"], facts["mtime_ns"])
        if same or (status.st_size == facts["bytes"] and _digest(place) == facts["digest"]):
            return
    except OSError as error:
        raise absent_list(place, what, error) from None
    raise DataError(
        expected=f"the {what} that the index was made from ({facts['bytes']} bytes)",
        got=f"another one ({status.st_size} bytes)",
        where=f"{place}, index {index}",
        remedy=f"The index was made from another {what}: run loader-server index.",
    )


def _digest(place: Path) -> str:
    state = xxhash.xxh3_128()
    with place.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            state.update(block)
    return state.hexdigest()


def absent_list(place: Path, what: str, error: OSError) -> DataError:
    """What is raised where a list cannot be read."""
    return DataError(
        expected=f"a {what} that can be read",
        got=f"{error.strerror or type(error).__name__}",
        where=str(place),
        remedy=f"Mend `paths` of the stream, which are relative to the job file, or put the {what} there.",
    )

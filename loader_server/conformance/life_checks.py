"""The rules about a source's life: opening, other processes, closing, and data that change."""

from __future__ import annotations

import contextlib
import gc
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from loader_server.conformance.case import (
    ExaminedSource,
    NotTried,
    Violation,
    content_of,
    contents_elsewhere,
    read_all,
    require,
)
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LIFE_CHECKS"]


def _opening_again(examined: ExaminedSource) -> None:
    """Opening again gives the same samples.

    Raise a Violation for other fields, bytes, contents or names. Errors of the source pass through.
    """
    again = examined.open()
    require(again.fields == examined.source.fields, "other fields")
    for sample, raw in zip(examined.numbers, read_all(again, examined.numbers), strict=True):
        require(raw == examined.raw[sample], f"sample {sample} has other bytes")
        require(content_of(again.decode(sample, raw)) == examined.contents[sample], f"sample {sample} is another one")
        require(again.name(sample) == examined.source.name(sample), f"sample {sample} has another name")
    again.close()


def _elsewhere(examined: ExaminedSource) -> None:
    """A new process that gets name and settings makes the same of every sample.

    Raise a Violation for the first that differs in a spawned process. Errors of the source pass through, from there
    too.
    """
    _, index = examined.indexed(1, 0)
    # Not forked: it would inherit what this process has read and opened, and a source may lean on that.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        got = pool.submit(contents_elsewhere, examined.case.spec, index, examined.numbers).result()
    for sample, content in zip(examined.numbers, got, strict=True):
        require(content == examined.contents[sample], f"sample {sample} differs there")


def _nothing_open(examined: ExaminedSource) -> None:
    """Nothing is left open.

    Raise a Violation with files that are open only after a source was used and closed. Errors of the source pass
    through.
    """
    gc.collect()
    # Counted after a collection: garbage of earlier checks must not close files in between.
    before = _open_files()
    source = examined.open()
    for sample, raw in zip(examined.numbers, read_all(source, examined.numbers), strict=True):
        source.decode(sample, raw)
    source.close()
    del source
    gc.collect()
    left = _open_files() - before
    require(not left, f"after close() these are still open: {sorted(left)[:5]}")


def _open_files() -> set[str]:
    files = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed by now
            files.add(f"{descriptor.name} {descriptor.readlink()}")
    return files


def _changed_data(examined: ExaminedSource) -> None:
    """Data that changed since they were indexed are refused.

    Raise a Violation if the same data have two stamps, changed data keep theirs, or using them raises neither DataError
    nor OSError; raise NotTried if the case cannot change its data. Other errors pass through.
    """
    if examined.case.change is None:
        raise NotTried("no way to change these data was given")
    _ = examined.contents  # opened and read once, so that a refusal below is due to the change
    before = examined.case.spec.make().stamp()
    require(before == examined.case.spec.make().stamp(), "the same data have two stamps")
    examined.case.change()
    require(not before or before != examined.case.spec.make().stamp(), "the changed data have the stamp of the old")
    try:
        source = examined.open()
        read_all(source, examined.numbers)
    except (DataError, OSError):
        return
    raise Violation("the changed data were opened and read")


#: In this order: the last one changes the data.
LIFE_CHECKS: tuple[Callable[[ExaminedSource], None], ...] = (_opening_again, _elsewhere, _nothing_open, _changed_data)

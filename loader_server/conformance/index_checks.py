"""The rules for what is known of a source without reading samples: its index, its survey, and its settings.

Rules: checks are as in `checks`: a function whose docstring begins with its title.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.conformance.case import ExaminedSource, NotTried, Violation, require
from loader_server.index.folder import open_index
from shared.errors import SettingsError
from shared.settings.tables import read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["INDEX_CHECKS"]

_REASON = re.compile(r"[a-z][a-z0-9_]*")


def _same_index(examined: ExaminedSource) -> None:
    """The index is the same with 1 process and with 3, and however large the pieces are.

    Raise a Violation if fingerprint, rows, bad rows or columns differ. Errors of making it pass through.
    """
    # Pieces of 1 and 3 rows end at other rows than the source's own, so what depends on a piece's end shows.
    first, place = examined.indexed(1, 0)
    for processes, rows in ((1, 1), (1, 3), (3, 2)):
        report, other = examined.indexed(processes, rows)
        how = f"with {processes} processes and pieces of {rows} rows"
        require(report.fingerprint == first.fingerprint, f"another fingerprint {how}")
        require((report.rows, report.bad) == (first.rows, first.bad), f"other rows, or other bad ones, {how}")
        require(_columns(place) == _columns(other), f"other columns {how}")


def _columns(index: Path) -> dict[str, bytes]:
    columns = index / open_index(index).meta.folder
    return {path.name: path.read_bytes() for path in sorted(columns.iterdir())}


def _rows_count(examined: ExaminedSource) -> None:
    """Every row is a sample or a bad row, and there are as many as the survey says.

    Raise a Violation with both counts if they differ. What making the index and the survey raise passes through.
    """
    report, _ = examined.indexed(1, 0)
    total = examined.surveyed().total
    require(total == report.rows, f"the survey says {total} rows, the pieces have {report.rows}")


def _plain_facts(examined: ExaminedSource) -> None:
    """What the survey says may be written as JSON, and a process gets settings and pieces.

    Raise a Violation if JSON gives back other values for the survey's `origin` or `about`. What the survey raises, and
    a TypeError for values that JSON cannot hold, pass through.
    """
    inventory = examined.surveyed()
    for facts in (inventory.origin, inventory.about):
        require(json.loads(json.dumps(facts)) == facts, f"{facts!r} is not what JSON gives back")


def _lengths(examined: ExaminedSource) -> None:
    """Lengths in the index are those of the decoded samples.

    Raise a Violation for the first that is missing or differs. Errors of the source pass through.
    """
    lengths = examined.source.lengths
    widths = {f"{field.key}_width": field.key for field in examined.source.fields if field.is_wide}
    for sample, values in examined.decoded.items():
        for key, column in lengths.items():
            got = _length_under(key, values, widths)
            require(got is not None, f'sample {sample} has no "{key}", of which the index has a length')
            require(got == column[sample], f'sample {sample}: "{key}" is {column[sample]} in the index, {got} decoded')


def _length_under(key: str, values: Mapping[str, Any], widths: Mapping[str, str]) -> int | None:
    """Return the length of a sample's value under a key, or along the second axis of the value whose width it is.

    Return None if the sample has no such value.
    """
    wide = values.get(widths.get(key, ""))
    if wide is not None and np.ndim(wide) > 1:
        return int(np.shape(wide)[1])
    return _length_of(values[key]) if key in values else None


def _length_of(value: Any) -> int:
    """Return the steps of an array, the characters of a text or the bytes of bytes; of a number, its whole part."""
    return int(value) if np.ndim(value) == 0 and not isinstance(value, str | bytes) else len(value)


def _padded_have_lengths(examined: ExaminedSource) -> None:
    """Every padded field has its length in the index.

    Raise a Violation with the first key that has none. Errors of the source pass through.
    """
    for key in (key for field in examined.source.fields for key in field.length_keys):
        require(key in examined.source.lengths, f'the index has no length of "{key}"')


def _bad_rows(examined: ExaminedSource) -> None:
    """Bad rows are named with their place and the reason.

    Raise a Violation also if the reason is no word in small letters or the counts are not the case's; raise NotTried if
    there is no bad row and the case gives no counts. Errors of the source pass through.
    """
    report, _ = examined.indexed(1, 0)
    for row in report.bad:
        require(row.where and row.line >= 0 and row.detail, f"{row} lacks a place or a detail")
        require(_REASON.fullmatch(row.reason), f"the reason {row.reason!r} is no word in small letters")
    expected = examined.case.bad
    if expected is None and not report.bad:
        raise NotTried("these data have no bad row")
    require(expected in (None, report.bad_counts), f"expected the bad rows {expected}, got {report.bad_counts}")


def _unknown_setting(examined: ExaminedSource) -> None:
    """An unknown setting is refused, and the nearest named.

    Take the first name of more than three letters without its last. Raise a Violation if it is accepted, or refused
    without the right name in the message; raise NotTried if no setting has such a name.
    """
    kind = type(examined.case.spec.settings)
    names = [setting.name for setting in fields(kind) if len(setting.name) > 3]
    if not names:
        raise NotTried("it has no setting with a name that could be mistyped")
    wrong = names[0][:-1]
    try:
        read_table(kind, {wrong: 1}, "a check")
    except SettingsError as error:
        require(names[0] in str(error), f'"{wrong}" is refused, but "{names[0]}" not named: {error}')
    else:
        raise Violation(f'"{wrong}" is accepted as a setting')


#: The checks in their order.
INDEX_CHECKS: tuple[Callable[[ExaminedSource], None], ...] = (
    *(_same_index, _rows_count, _plain_facts, _lengths, _padded_have_lengths, _bad_rows, _unknown_setting),
)

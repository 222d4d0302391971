"""Why no index is made: too many bad rows, no good row, a row that killed a process, lengths that cannot be measured.

Rules: each says what to do; about bad rows: how many for each reason, the first of them, and where all are listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.index.bad_rows import first_bad_rows
from loader_server.index.commit import keep_refused
from shared.bad_limit import counted_reasons
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from loader_server.index.draft import Draft
    from loader_server.index.request import IndexRequest
    from loader_server.sources.source import BadRow, Inventory, Source

__all__ = ["is_refused", "process_died", "refuse_bad", "refuse_measuring", "refuse_too_many"]

#: Bad rows that an error shows.
_SHOWN_BAD_ROWS = 10


def is_refused(request: IndexRequest, bad: Mapping[str, int], rows: int) -> bool:
    """Whether data with this many bad rows are refused."""
    count = sum(bad.values())
    return bool(count and request.strict) or request.max_bad.is_exceeded(count, rows)


def refuse_too_many(request: IndexRequest, inventory: Inventory, draft: Draft) -> None:
    """Stop as soon as it is certain."""
    bad, limit = draft.journal.bad, request.max_bad
    if limit.is_exceeded(sum(bad.values()), inventory.total):
        mended = "mend them, or raise max_bad in [job]"
        raise _too_bad(request, inventory, draft, f"at most {limit} of the rows to be bad (max_bad)", mended)


def refuse_bad(request: IndexRequest, inventory: Inventory, draft: Draft) -> None:
    """Refuse data after all rows were looked at: no good row, too many bad ones, or any at all if strict."""
    if not draft.journal.samples:
        raise _too_bad(request, inventory, draft, "at least one good row", "mend them")
    if request.strict and draft.journal.bad:
        raise _too_bad(
            request, inventory, draft, "only good rows, as --strict asks", "mend them, or leave --strict out"
        )


def _too_bad(request: IndexRequest, inventory: Inventory, draft: Draft, expected: str, remedy: str) -> DataError:
    """The error: bad rows by reason, the first of them, and the file that lists all found so far."""
    draft.close()
    bad, rows = draft.journal.bad, draft.journal.rows
    among = f"{inventory.total}" if rows == inventory.total else f"the first {rows} rows of {inventory.total}"
    counts = counted_reasons(bad) if bad else "no rows at all"
    first = first_bad_rows(draft.folder, _SHOWN_BAD_ROWS)
    shown = "; ".join(_once_each(first))
    listed = f"All are in {keep_refused(request.folder, draft.folder)}: {remedy}" if bad else "Name other data"
    return DataError(
        expected=expected,
        got=f"{sum(bad.values())} bad of {among} ({counts})",
        where=", ".join(str(facts.get("path")) for facts in inventory.origin) or f'source = "{request.spec.name}"',
        remedy=f"The first: {shown}. {listed}." if bad else f"{listed}.",
    )


def _once_each(rows: Iterable[BadRow]) -> Iterator[str]:
    """Yield each detail once, with the first row that has it, and how many more of these rows have it as well."""
    alike: dict[tuple[str, str], list[BadRow]] = {}
    for row in rows:
        alike.setdefault((row.reason, _without_place(row)), []).append(row)
    for first, *others in alike.values():
        more = f" (and {len(others)} more of the first {sum(map(len, alike.values()))})" if others else ""
        yield f"{first.where}, line {first.line}: {first.reason}: {first.detail}{more}" + _what_to_do(first)


def _what_to_do(row: BadRow) -> str:
    """Return a row's remedy in brackets, if it has one."""
    return f" ({row.remedy})" if row.remedy else ""


def _without_place(row: BadRow) -> str:
    """Return a row's detail without paths and numbers, in which rows differ that have one and the same fault."""
    words = row.detail.split()
    return " ".join(word for word in words if "/" not in word and not any(letter.isdigit() for letter in word))


def refuse_measuring(request: IndexRequest, source: Source) -> None:
    """Refuse undeclared transforms of samples that cannot be read while indexing."""
    if request.measuring is not None and not source.measurable:
        raise DataError(
            expected="transforms that declare their outputs",
            got="one that has to be measured",
            where=f'source = "{request.spec.name}"',
            remedy="Declare it with @transform(…): no sample of this source is looked at while indexing.",
        )


def process_died(request: IndexRequest, done: int) -> DataError:
    """The error if a process died while it probed rows; `done` rows were finished before."""
    return DataError(
        expected="every file to be readable or refused",
        got="one that ended the process which read it, or too little memory",
        where=f'source = "{request.spec.name}" below {request.spec.base}, row {done + 1} of all or soon after',
        remedy="Find and remove that file: index with processes = 1 and part of the rows.",
    )

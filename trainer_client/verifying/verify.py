"""Implementation of `trainer-client verify`: reads, reads again in parts, compares, and prints the outcome.

Rules: the outcome goes to standard output, progress to standard error. The exit code is 0 if all that was compared is
equal, `DIFFERS` if not.
"""

from __future__ import annotations

import json
import random
import secrets
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table

from trainer_client.progress_bar import progress_bar
from trainer_client.verifying.digests import CutPart, Difference, EpochDigests, cut_plan, differences, digest_of
from trainer_client.verifying.epoch_reading import EpochsOfJob, NotComparableError, read_epochs, read_part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.progress import Progress

__all__ = ["DIFFERS", "VerifyOrder", "verify"]

#: Exit code if batches differ.
DIFFERS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOrder:
    """Options of the command line."""

    source: EpochsOfJob
    #: A digest, the endpoint of another job, or "".
    against: str
    #: Number of cuts of each epoch when it is read again; 0: it is not read again.
    cuts: int
    as_json: bool


@dataclass(slots=True, kw_only=True)
class _Comparison:
    """Outcome of reading and comparing."""

    epochs: list[EpochDigests]
    #: Parts of each epoch that was read again.
    parts: dict[int, list[CutPart]]
    #: Differences to the second reading, and to the other job.
    of_cuts: list[Difference]
    of_other: list[Difference]
    #: The digest compared with, and its plan if that is known.
    other_digest: str | None
    other_plan: str | None

    @property
    def digest(self) -> str:
        return digest_of(self.epochs)

    @property
    def is_equal(self) -> bool:
        return self.other_digest in (None, self.digest) and not self.of_cuts and not self.of_other


def verify(order: VerifyOrder) -> int:
    """Read and compare as ordered, and print the outcome; return 0 if all is equal, else `DIFFERS`.

    Raise NotComparableError if the request or the other job cannot be compared, ProtocolError if batches are missing or
    out of order, and LostError, RefusedError, EndedError, MachineError and SettingsError as `read_epochs` does.
    ClosedError of `_compare` passes through.
    """
    with progress_bar() as progress:
        outcome = _compare(order, progress)
    if order.as_json:
        print(json.dumps(_document(order, outcome)))
    else:
        _print_table(order, outcome)
    return 0 if outcome.is_equal else DIFFERS


def _compare(order: VerifyOrder, progress: Progress) -> _Comparison:
    """Read as ordered, and return the comparison with a second reading, another job or a digest.

    Raise NotComparableError, ProtocolError, LostError, RefusedError, EndedError, MachineError and SettingsError as
    `verify` does. ValueError of `differences` and ClosedError of `read_epochs` pass through.
    """
    epochs = read_epochs(order.source, _noter(progress, "reading"))
    outcome = _Comparison(epochs=epochs, parts={}, of_cuts=[], of_other=[], other_digest=None, other_plan=None)
    if order.cuts:
        _read_again(order, outcome, _noter(progress, "reading again"))
    if "://" in order.against:
        others = read_epochs(replace(order.source, endpoint=order.against), _noter(progress, "reading the other"))
        _refuse_other_group(order, epochs, others)
        outcome.of_other = differences(epochs, others)
        outcome.other_digest, outcome.other_plan = digest_of(others), others[0].plan_digest
    elif order.against:
        outcome.other_digest = order.against
    return outcome


def _read_again(order: VerifyOrder, outcome: _Comparison, note: Callable[[int, int], None]) -> None:
    """Read each epoch again in parts, cut at random places, and note parts and differences.

    Raise NotComparableError if the group has changed since, and the other errors of `read_part`, such as
    ProtocolError, LostError and RefusedError.
    """
    draws = random.Random(secrets.randbits(64))  # noqa: S311 - no secret depends on where an epoch is cut
    for whole in outcome.epochs:
        again = EpochDigests(whole.epoch, whole.group, whole.plan_digest)
        again.batches.extend([0] * len(whole.batches))
        parts = outcome.parts[whole.epoch] = cut_plan(len(whole.batches), whole.group, order.cuts, draws)
        for part in parts:
            for number, digest in read_part(order.source, whole, part):
                again.batches[number] = digest
                note(number + 1, len(whole.batches))
        outcome.of_cuts += differences([whole], [again])


def _refuse_other_group(order: VerifyOrder, here: Sequence[EpochDigests], there: Sequence[EpochDigests]) -> None:
    """Raise NotComparableError if the other job reads in another group."""
    if here[0].group != there[0].group:
        raise NotComparableError(
            expected=f"a job that reads in groups of {here[0].group}, as {order.source.endpoint} does",
            got=f"one that reads in groups of {there[0].group}, so its batches come in another order",
            where=order.against,
            remedy="Write the same group in [job] of both.",
        )


# --- output ---


def _document(order: VerifyOrder, outcome: _Comparison) -> dict[str, Any]:
    differing = [*outcome.of_cuts, *outcome.of_other]
    # A batch may differ from the second reading and from the other job, and counts once.
    differ = len({(difference.epoch, difference.number) for difference in differing})
    return {
        "digest": outcome.digest,
        "batches": sum(len(epoch.batches) for epoch in outcome.epochs),
        "cuts": sum(len(parts) - 1 for parts in outcome.parts.values()),
        "differ": differ if outcome.is_equal or differing else None,  # a digest alone does not tell how many
        "equal": outcome.is_equal,
        "stream": order.source.stream,
        "plan_digest": outcome.epochs[0].plan_digest,
        "group": outcome.epochs[0].group,
        "epochs": [
            {"epoch": epoch.epoch, "batches": len(epoch.batches), "digest": epoch.digest} for epoch in outcome.epochs
        ],
        "parts": {str(epoch): [asdict(part) for part in parts] for epoch, parts in outcome.parts.items()},
        "against": order.against or None,
        "against_digest": outcome.other_digest,
        "against_plan_digest": outcome.other_plan,
        "first": asdict(differing[0]) if differing else None,
    }


def _print_table(order: VerifyOrder, outcome: _Comparison) -> None:
    table = Table("epoch", "batches", "group", Column("plan", overflow="fold"), Column("digest", overflow="fold"))
    for epoch in outcome.epochs:
        table.add_row(str(epoch.epoch), str(len(epoch.batches)), str(epoch.group), epoch.plan_digest, epoch.digest)
    Console().print(table)
    print(f"digest {outcome.digest}")
    for line in _lines(order, outcome):
        print(line)


def _lines(order: VerifyOrder, outcome: _Comparison) -> list[str]:
    lines = []
    for epoch, parts in outcome.parts.items():
        worlds = ", ".join(f"{part.start} to {part.stop - 1} in a world of {part.world}" for part in parts)
        lines.append(f"epoch {epoch} read again in {len(parts)} parts: {worlds}")
    if order.cuts:
        lines.append(f"read again: {_verdict(outcome.of_cuts)}")
    if outcome.other_plan is not None:
        plans = "" if outcome.other_plan == outcome.epochs[0].plan_digest else f" (another plan, {outcome.other_plan})"
        lines.append(f"against {order.against}{plans}: {_verdict(outcome.of_other)}")
    elif outcome.other_digest is not None:
        is_same = outcome.other_digest == outcome.digest
        lines.append(f"against {outcome.other_digest}: {'equal' if is_same else 'differs'}")
    return lines


def _verdict(differing: Sequence[Difference]) -> str:
    if not differing:
        return "equal"
    first = differing[0]
    return (
        f"{len(differing)} batches differ, first batch {first.number} of epoch {first.epoch}: "
        f"{_named(first.here)} here, {_named(first.there)} there"
    )


def _named(digest: int | None) -> str:
    return "no such batch" if digest is None else f"{digest:016x}"


def _noter(progress: Progress, title: str) -> Callable[[int, int], None]:
    """Add a task of this title to the progress, and return a function that shows how many of how many are done."""
    task = progress.add_task(title, total=None)
    return lambda done, of: progress.update(task, completed=done, total=of, description=f"{title}: {done} of {of}")

"""What is wrong with the figures of the engines: digests that differ, batches lost or repeated, bounds not held.

Rules: pure. An engine gives `{"digest": …, "batches": …, "lost_node": CASE}`, with a case of `{"digest": …, "gap_s": …,
"lost": …, "repeated": …}`, or `{"error": …}`. A coordinator that moved, or was lost, is another case, and so is a pod
that was evicted; the first also says `found_s`. An engine whose job file names other paths of data gives the digest of
one machine itself, as `reference`, because plans depend on these paths. `scale` says how soon a job had the right
number of workers, by how many changes, and how many of these went back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Expected", "faults_of"]

_UNDISTURBED = "undisturbed"
_CASES = ("lost_node", "moved_coordinator", "lost_coordinator", "evicted_pod")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What one machine gave, and the bounds."""

    digest: str
    batches: int
    longest_gap_s: float
    found_within_s: float
    #: How soon a job has the right number of workers, and by how many changes.
    right_within_s: float
    most_changes: int


def faults_of(engines: Mapping[str, Mapping[str, Any]], expected: Expected) -> list[str]:
    """Return a sentence for each thing that is wrong."""
    return [f"{name}, {fault}" for name, engine in engines.items() for fault in _of_engine(engine, expected)]


def _of_engine(engine: Mapping[str, Any], expected: Expected) -> Iterator[str]:
    if "error" in engine:
        yield f"it failed: {engine['error']}"
        return
    expected = replace(expected, digest=engine.get("reference", expected.digest))
    if engine["batches"] != expected.batches:
        yield f"{_UNDISTURBED}: {engine['batches']} batches instead of {expected.batches}"
    yield from (f"{_UNDISTURBED}: {fault}" for fault in _of_digest(engine, expected))
    if not engine.get(_CASES[0]):
        yield f"{_CASES[0]}: not measured"
    for case in _CASES:
        yield from (f"{case}: {fault}" for fault in _of_case(engine.get(case, {}), expected))
    if "submitted" in engine:
        yield from (f"submitted: {fault}" for fault in _of_digest(engine["submitted"], expected))
    if "scale" in engine:
        if engine["scale"]["right_after_s"] > expected.right_within_s:
            yield f"scale: right after {engine['scale']['right_after_s']:g} s, more than {expected.right_within_s:g} s"
        yield from (f"scale: {fault}" for fault in _of_scale(engine["scale"], expected))
        yield from (f"scale back: {fault}" for fault in _of_scale(engine["scale"]["back"], expected))


def _of_scale(scale: Mapping[str, Any], expected: Expected) -> Iterator[str]:
    if scale["changes"] > expected.most_changes:
        yield f"{scale['changes']} changes, more than {expected.most_changes}"
    if scale["reversals"]:
        yield f"{scale['reversals']} changes went back"


def _of_case(case: Mapping[str, Any], expected: Expected) -> Iterator[str]:
    if not case:
        return
    yield from _of_digest(case, expected)
    for what in ("lost", "repeated"):
        if case.get(what) != 0:
            yield f"{case.get(what)} batches {what}"
    if case["gap_s"] > expected.longest_gap_s:
        yield f"a gap of {case['gap_s']:g} s, more than {expected.longest_gap_s:g} s"
    if case.get("found_s", 0.0) > expected.found_within_s:
        yield f"found after {case['found_s']:g} s, more than {expected.found_within_s:g} s"


def _of_digest(case: Mapping[str, Any], expected: Expected) -> Iterator[str]:
    if case["digest"] != expected.digest:
        yield f"digest {case['digest']} instead of {expected.digest}"

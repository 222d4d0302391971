"""Figures of a load test: of one run, of several together, against limits and against an older test.

Rules: pure; faults add up over repeats, every other figure is the median of the repeats; a figure's name ends in its
unit.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainer_client.load_test.conductor import Measured

__all__ = [
    "BETTER",
    "TITLES",
    "Change",
    "Figures",
    "LoadLimits",
    "broken",
    "changes",
    "curves_of",
    "differences",
    "figure_rows",
    "figures_of",
    "limits_text",
    "settings_text",
    "shown",
    "together",
]

Figures = dict[str, Any]

#: Faults, of which none is allowed.
_FAULTS = ("errors", "lost", "repeated")

#: Direction of each figure: larger is better (+1) or smaller is (-1).
BETTER = {
    **dict.fromkeys(_FAULTS, -1),
    "batches_per_s": 1,
    "rows_per_s": 1,
    "mb_per_s": 1,
    "utilisation": 1,
    "wait_p50_ms": -1,
    "wait_p99_ms": -1,
    "wait_p999_ms": -1,
    "wait_max_ms": -1,
    "harness_cores": -1,
    "loader_cores": -1,
}


#: Titles of all figures, in the order of reports.
TITLES = {
    "trainers": "trainers",
    "batches": "batches",
    "errors": "errors",
    "lost": "batches lost",
    "repeated": "batches repeated",
    "utilisation": "accelerator utilisation",
    "wait_p50_ms": "wait for a batch, p50 (ms)",
    "wait_p99_ms": "wait for a batch, p99 (ms)",
    "wait_p999_ms": "wait for a batch, p99.9 (ms)",
    "wait_max_ms": "wait for a batch, longest (ms)",
    "batches_per_s": "batches a second",
    "rows_per_s": "rows a second",
    "mb_per_s": "MB a second",
    "harness_cores": "cores used by the trainers",
    "loader_cores": "cores used by the loaders",
    "seconds": "seconds measured",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLimits:
    """Limits on the figures of a test; None: no limit."""

    max_wait_p99_ms: float | None = None
    min_utilisation: float | None = None
    min_batches_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a figure since an older test."""

    name: str
    before: float
    now: float

    @property
    def better(self) -> bool | None:
        """Return whether the change is for the better, or None if both values are equal."""
        return None if self.now == self.before else (self.now > self.before) == (BETTER[self.name] > 0)

    @property
    def verdict(self) -> str:
        """Return "better", "worse" or "equal"."""
        return {True: "better", False: "worse", None: "equal"}[self.better]

    @property
    def percent(self) -> float | None:
        """Return the change in percent, or None if the older value is 0."""
        return 100 * (self.now / self.before - 1) if self.before else None


def figures_of(measured: Measured, trainers: int) -> Figures:
    """Return the figures of one run by name; None for those that were not measured: utilisation, or loaders' cores."""
    waits, wall_s = measured.waits, measured.wall_s
    assert measured.audit is not None
    return {
        "trainers": trainers,
        "batches": measured.steps,
        "errors": len(measured.errors),
        "lost": measured.audit.lost,
        "repeated": measured.audit.repeated,
        "utilisation": _rounded(measured.utilisation, 4),
        "wait_p50_ms": _ms(waits.quantile_us(0.5)),
        "wait_p99_ms": _ms(waits.quantile_us(0.99)),
        "wait_p999_ms": _ms(waits.quantile_us(0.999)),
        "wait_max_ms": _ms(waits.max_us),
        "batches_per_s": _rounded(measured.steps / wall_s, 1),
        "rows_per_s": _rounded(measured.rows / wall_s, 0),
        "mb_per_s": _rounded(measured.nbytes / wall_s / 1e6, 2),
        "harness_cores": _rounded(measured.harness_cpu_s / wall_s, 3),
        "loader_cores": None if measured.loader_cpu_s is None else _rounded(measured.loader_cpu_s / wall_s, 3),
        "seconds": _rounded(wall_s, 2),
    }


def curves_of(measured: Measured) -> dict[str, Any]:
    """Return the curves of one run: waits by quantile and second, and utilisations; and its first 20 errors."""
    return {
        "wait_curve_ms": [(round(share, 9), _ms(time_us)) for share, time_us in measured.waits.curve()],
        "by_second": [
            {
                "second": second,
                "batches": waits.total,
                "wait_p50_ms": _ms(waits.quantile_us(0.5)),
                "wait_p99_ms": _ms(waits.quantile_us(0.99)),
                "wait_max_ms": _ms(waits.max_us),
            }
            for second, waits in sorted(measured.by_second.items())
        ],
        "utilisations": [round(share, 4) for _, share in sorted(measured.utilisations.items())],
        "errors": measured.errors[:20],
    }


def _ms(time_us: int) -> float:
    return round(time_us / 1000, 3)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def together(runs: Sequence[Figures]) -> Figures:
    """Return the figures of at least one repeat, combined: sums of faults, and medians of all others.

    A figure that no repeat measured is None.
    """
    return {name: _combined(name, [run[name] for run in runs]) for name in runs[0]}


def _combined(name: str, values: Sequence[Any]) -> Any:
    """Return a figure of several repeats: the sum of a fault, the median of others; None if never measured."""
    measured = [value for value in values if value is not None]
    if not measured:
        return None
    # A median would hide a batch that was lost in one repeat of three.
    return sum(measured) if name in _FAULTS else statistics.median(measured)


def broken(figures: Figures, limits: LoadLimits) -> list[str]:
    """Return a sentence for each fault, and for each limit that the figures break; empty if all is kept.

    A limit whose figure was not measured counts as broken.
    """
    problems = [f"{figures[name]} {name}, expected none" for name in _FAULTS if figures[name]]
    most, p99_ms = limits.max_wait_p99_ms, figures["wait_p99_ms"]
    if most is not None and p99_ms > most:
        problems.append(f"wait_p99_ms {p99_ms:g}, expected at most {most:g}")
    for name, least in (("utilisation", limits.min_utilisation), ("batches_per_s", limits.min_batches_per_s)):
        got = figures[name]
        if least is not None and (got is None or got < least):
            problems.append(f"{name} {'not measured' if got is None else f'{got:g}'}, expected at least {least:g}")
    return problems


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Return the change of each figure with a direction that both tests measured; none if there is no such figure."""
    return [
        Change(name, before[name], now[name])
        for name in BETTER
        if isinstance(before.get(name), int | float) and isinstance(now.get(name), int | float)
    ]


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the settings in which two tests differ, as text: "name value then, value now, …".

    The text is empty if they have the same settings.
    """
    differing = [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]
    return ", ".join(f"{name} {before.get(name)} then, {now.get(name)} now" for name in differing)


def settings_text(document: Mapping[str, Any]) -> str:
    """Return the settings of a report that have a value, as text: "name value, name value"."""
    return ", ".join(f"{name} {value}" for name, value in document["settings"].items() if value not in ("", None))


def limits_text(document: Mapping[str, Any]) -> str:
    """Return what limited a report's test, in words; of repeats that differ, each once; "unknown" in older reports."""
    return ", or ".join(dict.fromkeys(run.get("limit", "unknown") for run in document["runs"])) or "unknown"


def figure_rows(document: Mapping[str, Any]) -> list[list[str]]:
    """Return a report's table of figures as rows of cells, the heads first; each repeat of several adds a column."""
    repeats = [run["figures"] for run in document["runs"]] if len(document["runs"]) > 1 else []
    heads = ["figure", "all together" if repeats else "value"]
    heads += [f"repeat {number}" for number, _ in enumerate(repeats, 1)]
    columns = (document["figures"], *repeats)
    return [heads, *([title, *(shown(column.get(name)) for column in columns)] for name, title in TITLES.items())]


def shown(value: object) -> str:
    """Return a number as text: ten digits at most, commas between thousands; "-" for None, `str` of anything else."""
    if value is None:
        return "-"
    return f"{value:,.10g}" if isinstance(value, int | float) else str(value)

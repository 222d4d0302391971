"""What a dashboard is made of: panels with their queries, in rows.

Rules: a panel's title is a question, or for a single value what the value is; its text says how to read it. Variables
stand in the expressions as Grafana has them: `$job`, `$stream`, `$rank`, `$worker`, `$__rate_interval`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["CALM", "SELECTORS", "Kind", "Panel", "Query", "Row"]

#: What the dashboard's variables choose, by what stands for it in queries.
SELECTORS = {
    "@any": 'job=~"$job"',
    "@job": 'job="$job"',
    "@stream": 'job="$job", stream=~"$stream"',
    "@trainer": 'job="$job", stream=~"$stream", rank=~"$rank"',
    "@worker": 'job="$job", worker=~"$worker"',
    "@build": 'job="$job", stream=~"$stream", worker=~"$worker"',
}

_SHORT = re.compile("|".join(SELECTORS))

#: The kinds of panels: curves, one value, what holds when, a spread over time, and a table.
Kind = Literal["timeseries", "stat", "state-timeline", "heatmap", "table"]

#: No thresholds: a value has the colour of its curve, or none.
CALM: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression, and the legend of its curves; in a table, the name of its column.

    In `short`, `@job` and the like stand for the selectors of SELECTORS.
    """

    short: str
    legend: str

    @property
    def expr(self) -> str:
        """Return the expression as Grafana has it."""
        return _SHORT.sub(lambda found: SELECTORS[found[0]], self.short)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A question, its answer, and how to read it."""

    title: str
    unit: str
    about: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    stacked: bool = False
    most: float | None = None
    #: From which value on which colour; below the first all is well.
    thresholds: tuple[tuple[float, str], ...] = CALM
    #: The section of the runbook that says what to do; empty if no alert is about it.
    runbook: str = ""
    #: Of a single value: whether its name is shown and not its number.
    named: bool = False
    #: Of a table: the column by which its queries are joined, and the unit of each column that has one.
    joined: str = ""
    units: dict[str, str] = field(default_factory=dict)
    #: How wide and high it is, in cells of Grafana's grid, which has 24 in a row.
    size: tuple[int, int] = (8, 8)

    @property
    def links(self) -> list[dict[str, Any]]:
        """Return the link to the runbook's section, if there is one."""
        if not self.runbook:
            return []
        return [
            {"title": f"Runbook: {self.runbook}", "url": f"${{runbook}}#{self.runbook.lower()}", "targetBlank": True}
        ]


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that belong together."""

    title: str
    panels: tuple[Panel, ...]

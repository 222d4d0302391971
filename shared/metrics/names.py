"""Declarations of metrics, and their registry: a metric registers itself in the module where its number is read.

Rules: pure. A metric is declared once: name, kind, labels, the roles that expose it, its meaning, and what to do about
it. Names start with `stoker_` and end in their unit where they have one; counters end in `_total`. Labels here are
those of the samples; job, role, worker and rank come with the scrape target (see scrape_targets). Anything that may
have many values (a sample, a batch number, an address) is never a label. This module must not know prometheus_client,
nor which metrics there are, but for those that all processes have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from shared.wire.message_parts import Role

__all__ = ["BUILD_INFO", "GARBAGE", "METRICS", "WAIT_BOUNDS_S", "Declarations", "Kind", "Metric"]

Kind = Literal["counter", "gauge", "histogram"]

#: Histogram bounds of waits: from a batch that was ready to a restarted machine, with fractions of a step between.
WAIT_BOUNDS_S = (0.0001, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Declaration of a metric; `what` and `remedy` together are its help text."""

    name: str
    kind: Kind
    roles: tuple[Role, ...]
    what: str
    remedy: str
    labels: tuple[str, ...]

    @property
    def help_text(self) -> str:
        """Return what the metric counts and what to do about it, as Prometheus shows it."""
        return f"{self.what} {self.remedy}"


#: Metrics of all imported modules, by name.
METRICS: dict[str, Metric] = {}


class Declarations:
    """Factory of metrics that processes of some roles expose."""

    def __init__(self, *roles: Role) -> None:
        self._roles = roles

    def counter(self, name: str, what: str, remedy: str, labels: tuple[str, ...] = ()) -> Metric:
        """Declare and return a counter; raise AssertionError if its name is taken."""
        return self._declare("counter", name, what, remedy, labels)

    def gauge(self, name: str, what: str, remedy: str, labels: tuple[str, ...] = ()) -> Metric:
        """Declare and return a gauge; raise AssertionError if its name is taken."""
        return self._declare("gauge", name, what, remedy, labels)

    def histogram(self, name: str, what: str, remedy: str, labels: tuple[str, ...] = ()) -> Metric:
        """Declare and return a histogram; raise AssertionError if its name is taken."""
        return self._declare("histogram", name, what, remedy, labels)

    def _declare(self, kind: Kind, name: str, what: str, remedy: str, labels: tuple[str, ...]) -> Metric:
        if name in METRICS:
            raise AssertionError(f"{name} is declared twice")
        metric = METRICS[name] = Metric(
            name=name, kind=kind, roles=self._roles, what=what, remedy=remedy, labels=labels
        )
        return metric


_everyone = Declarations("coordinator", "worker", "trainer")

GARBAGE = _everyone.counter(
    "stoker_garbage_messages_total",
    "Frames that are not messages of this protocol.",
    "Zero is normal; if it grows, something else talks to this port: shut it out.",
)
BUILD_INFO = _everyone.gauge(
    "stoker_build_info",
    "Always 1; its labels have the versions of Stoker, of its protocol, of Python and of numpy that the process runs.",
    "Several versions in one job: a rolling restart is under way, or has stopped half way.",
    ("version", "protocol", "python", "numpy"),
)

"""What the coordinator said about what limits the job, and for how long it held.

Rules: pure. A trainer never works out itself what limits the job: it sees only its own waits. Each heartbeat's answer
may bring the limit anew; it counts for the time since the answer before, so silence of the coordinator counts for
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.stations.limit import Gains, JobLimit, gain_words, limit_words

if TYPE_CHECKING:
    from shared.wire.messages import Limited

__all__ = ["HeardLimits", "limit_of_span", "limit_text", "verdict_of"]


@dataclass(slots=True)
class HeardLimits:
    """The latest answer, and for how many seconds each limit was heard; replaced as a whole, for other threads."""

    #: Longest time between two answers that counts.
    most_s: float
    #: The latest answer; None before the first.
    latest: Limited | None = None
    heard_s: float = float("-inf")
    #: By limit: seconds since the start, and the latest answer that named it.
    seconds: dict[str, float] = field(default_factory=dict)
    answers: dict[str, Limited] = field(default_factory=dict)

    def hear(self, answer: Limited, now_s: float) -> None:
        """Take in an answer that came now."""
        over_s = min(now_s - self.heard_s, self.most_s)
        self.answers = {**self.answers, answer.limit: answer}
        self.seconds = {**self.seconds, answer.limit: self.seconds.get(answer.limit, 0.0) + over_s}
        self.latest, self.heard_s = answer, now_s

    def window_gain(self, now_s: float) -> int | None:
        """Return by how many thousandths more batches a second would come with twice the window; None if unknown.

        It is unknown too once the coordinator has been silent for some heartbeats.
        """
        return self.latest.window_gain if self.latest is not None and self._is_fresh(now_s) else None

    def limit_now(self, now_s: float) -> str:
        """Return the limit of the latest answer; empty before the first one, and while the coordinator is silent."""
        return self.latest.limit if self.latest is not None and self._is_fresh(now_s) else ""

    def of_span(self, before: dict[str, float], over_s: float, now_s: float) -> Limited | None:
        """Return the limit of the last `over_s` seconds, in which `seconds` have grown from `before`; None if unknown.

        It is the one that was heard for longest, where "nobody" counts only if nothing else was heard; or the latest
        one, if that is fresh and the time is shorter than `most_s`. It is unknown if limits were heard for less than
        half of the time.
        """
        spans = {limit: seconds - before.get(limit, 0.0) for limit, seconds in self.seconds.items()}
        if self._is_fresh(now_s) and over_s < self.most_s:
            return self.latest
        if not spans or sum(spans.values()) < over_s / 2:
            return None
        return self.answers[limit_of_span(spans)]

    def _is_fresh(self, now_s: float) -> bool:
        return now_s - self.heard_s < self.most_s


def limit_of_span(seconds: dict[str, float]) -> str:
    """Return the limit with most seconds, "nobody" only if no other has any; raise ValueError if there is none."""
    return max(seconds, key=lambda limit: (limit != "nobody" and seconds[limit] > 0, seconds[limit]))


def verdict_of(answer: Limited) -> JobLimit:
    """Return what an answer says, as the model of stations has it; its gains are None unless all of them are known."""
    gains = (answer.loaders_gain, answer.worker_gain, answer.window_gain)
    known = [gain / 1000 for gain in gains if gain is not None]
    return JobLimit(answer.limit, answer.who, gains=Gains(*known) if len(known) == len(gains) else None)


def limit_text(answer: Limited) -> str:
    """Return an answer in words: where the limit lies and what would be gained, as "reads in workers; gain unknown"."""
    verdict = verdict_of(answer)
    return f"{limit_words(verdict)}; {gain_words(verdict.gains)}"

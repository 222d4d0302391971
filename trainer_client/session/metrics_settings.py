"""What `connect` says of a feed's metrics: whether they are served, where, and to whom.

Rules: as for loaders, metrics beyond loopback need a token, or that the user says they may be read openly.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shared.metrics.listening import Listening, ListeningWords, listening_of
from trainer_client.session.call_checks import whole

__all__ = ["NO_METRICS", "MetricsSettings"]

_WORDS = ListeningWords(listen="metrics_listen", file="metrics_token =", insecure="metrics_insecure = True")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Where to serve metrics (None: nowhere), and the folder to announce it in."""

    listening: Listening | None = None
    targets: str | Path | None = None

    @classmethod
    def of(
        cls,
        *,
        port: int | None,
        listen: str | None,
        token: str | Path | None,
        insecure: bool,
        targets: str | Path | None,
    ) -> MetricsSettings:
        """Return what the arguments of `connect` say; they serve metrics if they name a port or an address."""
        if port is None and not listen:
            return NO_METRICS
        port = 0 if port is None else whole(port, "metrics_port", "connect", most=2**16 - 1)
        file = Path(token) if token is not None else None
        return cls(listening=listening_of(listen or "", port, file, insecure=insecure, words=_WORDS), targets=targets)


NO_METRICS = MetricsSettings()

"""Settings of a feed's metrics from `connect`: whether they are served, where, and to whom.

Rules: as for loaders, metrics beyond loopback need a token, or the user's permission for everybody to read them.
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
    """The address to serve metrics at (None: nowhere), and the folder to announce it in."""

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
        """Return the settings for these arguments of `connect`; NO_METRICS if neither port nor address is given.

        Raise SettingsError for an invalid port or address, or if anyone beyond this host could read without a token.
        """
        if port is None and not listen:
            return NO_METRICS
        port = 0 if port is None else whole(port, "metrics_port", "connect", most=2**16 - 1)
        file = Path(token) if token is not None else None
        return cls(listening=listening_of(listen or "", port, file, insecure=insecure, words=_WORDS), targets=targets)


NO_METRICS = MetricsSettings()

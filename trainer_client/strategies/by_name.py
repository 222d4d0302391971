"""Which strategy a name means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_client.strategies.single import Single

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer_client.strategies.placement import Placement

__all__ = ["STRATEGIES"]

#: By the name that the command line has for them.
STRATEGIES: dict[str, Callable[[], Placement]] = {"single": Single}

"""Options of a strategy, and which strategy uses which of them.

Rules: pure. An option that a strategy would ignore is refused, so that nobody believes it had an effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shared.errors import SettingsError

if TYPE_CHECKING:
    from trainer_client.training.strategies.choosing.all_reduce import AllReduce
    from trainer_client.training.strategies.choosing.variable_devices import VariablesOn

__all__ = ["HEEDED", "StrategyOptions"]

#: The options that each strategy uses.
HEEDED: dict[str, frozenset[str]] = {
    "single": frozenset(),
    "mirrored": frozenset({"replicas", "all_reduce", "combine"}),
    "multi-worker": frozenset({"replicas", "all_reduce", "combine"}),
    "central": frozenset({"replicas", "variables", "combine"}),
    "async": frozenset({"replicas", "variables", "combine"}),
    "parameter-server": frozenset({"staleness", "pull_every", "server_memory"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOptions:
    """A strategy and its options; None: not given."""

    name: str = "single"
    #: How many replicas this process has.
    replicas: int | None = None
    all_reduce: AllReduce | None = None
    combine: Literal["mean", "sum"] | None = None
    variables: VariablesOn | None = None
    #: Gradients are refused if more than this many batches were applied since their values were pulled.
    staleness: int | None = None
    #: Steps from one pull to the next.
    pull_every: int | None = None
    #: How many MiB a parameter server may hold.
    server_memory: float | None = None

    def refuse_unheeded(self) -> None:
        """Raise SettingsError for an option that this strategy would ignore."""
        for option in sorted(frozenset().union(*HEEDED.values())):
            if getattr(self, option) is not None and option not in HEEDED[self.name]:
                heeding = ", ".join(name for name, heeded in HEEDED.items() if option in heeded)
                flag = "--" + option.replace("_", "-")
                raise SettingsError(
                    expected=f"{flag} with one of the strategies {heeding}", got=f"--strategy {self.name}", where=flag,
                    remedy="Leave it out, or take another strategy.",
                )  # fmt: skip

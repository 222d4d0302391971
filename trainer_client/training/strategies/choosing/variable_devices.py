"""On which devices variables lie that all towers of a process share.

Rules: pure. Towers are on devices of one kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["VARIABLES_ON", "LeastLoaded", "VariablesOn", "places_of_variables"]

VariablesOn = Literal["auto", "cpu", "gpu", "balanced"]
VARIABLES_ON: tuple[VariablesOn, ...] = ("auto", "cpu", "gpu", "balanced")

#: From so many towers on, updates that come at any time would keep the GPUs that hold variables from computing.
_MANY_TOWERS = 4


def places_of_variables(
    asked: VariablesOn, devices: Sequence[str], *, asynchronous: bool = False
) -> tuple[tuple[str, ...], str]:
    """The devices that variables are spread over, and what was taken, with the reason if it was not asked for."""
    gpus = tuple(one for one in devices if one.startswith("GPU"))
    taken, why = asked, ""
    if asked == "gpu" and not gpus:
        taken, why = "cpu", ", because no tower is on a GPU"
    elif asked == "auto" and not gpus:
        taken, why = "cpu", ", where the towers are"
    elif asked == "auto" and asynchronous and len(devices) >= _MANY_TOWERS:
        taken, why = "cpu", f", because {len(devices)} towers update when they like"
    elif asked == "auto":
        taken = "balanced"
    places = {"cpu": ("CPU:0",), "gpu": gpus[:1], "balanced": tuple(devices)}
    return places[taken], taken + why


class LeastLoaded:
    """Gives each variable the device that has the fewest bytes so far, the first of them if several have."""

    def __init__(self, devices: Sequence[str]) -> None:
        self.bytes_on = dict.fromkeys(devices, 0)

    def place(self, nbytes: int) -> str:
        """Where a variable of this size goes."""
        device = min(self.bytes_on, key=self.bytes_on.__getitem__)
        self.bytes_on[device] += nbytes
        return device

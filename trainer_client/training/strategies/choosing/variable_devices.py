"""The devices of the variables that all towers of a process share.

Rules: pure. Towers are on devices of one kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["VARIABLES_ON", "LeastLoaded", "VariablesOn", "places_of_variables"]

VariablesOn = Literal["auto", "cpu", "gpu", "balanced"]
VARIABLES_ON: tuple[VariablesOn, ...] = ("auto", "cpu", "gpu", "balanced")

#: With at least this many towers, asynchronous updates would keep the GPUs that hold variables from computing.
_MANY_TOWERS = 4


def places_of_variables(
    asked: VariablesOn, devices: Sequence[str], *, asynchronous: bool = False
) -> tuple[tuple[str, ...], str]:
    """Return the devices that variables are spread over, and a phrase on the choice.

    The phrase has the reason, if it is not what was asked for. `gpu` falls back to the CPU if no tower is on a GPU.
    """
    gpus = tuple(device for device in devices if device.startswith("GPU"))
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
    """A placement by size: each variable goes to the device with the fewest bytes, the first if several have."""

    def __init__(self, devices: Sequence[str]) -> None:
        self.bytes_on = dict.fromkeys(devices, 0)

    def place(self, nbytes: int) -> str:
        """Return the device for a variable of this size, and count its bytes there."""
        device = min(self.bytes_on, key=self.bytes_on.__getitem__)
        self.bytes_on[device] += nbytes
        return device

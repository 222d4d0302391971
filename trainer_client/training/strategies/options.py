"""Options of a strategy: which strategy uses which of them, and what is taken for them on the devices that are there.

Rules: pure. An option that a strategy would ignore is refused, so that nobody believes it had an effect. TensorFlow
would replace some choices in silence, so they are made here: a choice that cannot work with these devices falls back to
another, which is then named; one that cannot work on any devices is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ALL_REDUCES", "HEEDED", "VARIABLES_ON", "AllReduce", "ChosenAllReduce", "LeastLoaded", "StrategyOptions",
    "VariablesOn", "between_processes", "places_of_variables", "within_process",
]  # fmt: skip

AllReduce = Literal["auto", "nccl", "ring", "hierarchical", "cpu", "gpu"]
ALL_REDUCES: tuple[AllReduce, ...] = ("auto", "nccl", "ring", "hierarchical", "cpu", "gpu")

VariablesOn = Literal["auto", "cpu", "gpu", "balanced"]
VARIABLES_ON: tuple[VariablesOn, ...] = ("auto", "cpu", "gpu", "balanced")

#: The options that each strategy uses.
HEEDED: dict[str, frozenset[str]] = {
    "single": frozenset(),
    "mirrored": frozenset({"replicas", "all_reduce", "combine"}),
    "multi-worker": frozenset({"replicas", "all_reduce", "combine"}),
    "central": frozenset({"replicas", "variables", "combine"}),
    "async": frozenset({"replicas", "variables", "combine"}),
    "parameter-server": frozenset({"staleness", "pull_every", "server_memory"}),
}

#: TensorFlow's hierarchical copies go over two groups of devices, and are made for machines with eight.
_LEAST_FOR_HIERARCHY = 8

#: With at least this many towers, asynchronous updates would keep the GPUs that hold variables from computing.
_MANY_TOWERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOptions:
    """A strategy and its options; None: not given."""

    name: str = "single"
    #: How many replicas this process has.
    replicas: int | None = None
    all_reduce: AllReduce | None = None
    combine: Literal["mean", "sum"] | None = None
    variables: VariablesOn | None = None
    #: Gradients are refused if more than this many batches were applied since their values were pulled: at 0, only one
    #: worker at a time gets through.
    staleness: int | None = None
    #: Steps from one pull to the next.
    pull_every: int | None = None
    #: How many MiB a parameter server may hold.
    server_memory: float | None = None

    def refuse_unheeded(self) -> None:
        """Raise SettingsError for an option that is given and that this strategy would ignore."""
        for option in sorted(frozenset().union(*HEEDED.values())):
            if getattr(self, option) is not None and option not in HEEDED[self.name]:
                heeding = ", ".join(name for name, heeded in HEEDED.items() if option in heeded)
                flag = "--" + option.replace("_", "-")
                raise SettingsError(
                    expected=f"{flag} with one of the strategies {heeding}", got=f"--strategy {self.name}", where=flag,
                    remedy="Leave it out, or take another strategy.",
                )  # fmt: skip


# --- the all-reduce ---


class ChosenAllReduce(NamedTuple):
    """The all-reduce that is used, and why it is not the one that was asked for, if so."""

    name: AllReduce
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name}, because {self.why}" if self.why else self.name


def within_process(asked: AllReduce, devices: Sequence[str]) -> ChosenAllReduce:
    """Return the all-reduce for replicas of one process on devices of these kinds (CPU, GPU).

    Raise SettingsError for `ring`, and for `hierarchical` on fewer than eight devices. `nccl` and `gpu` fall back to
    `cpu` unless all replicas are on GPUs. `auto` is `nccl` for several replicas that are all on GPUs, and else `cpu`.
    """
    if asked == "ring":
        raise _refused(
            "nccl, hierarchical, cpu, gpu or auto", "ring", "TensorFlow has no ring within one process. Leave it out, "
            "or start a process for each device with --strategy multi-worker.",
        )  # fmt: skip
    if asked == "hierarchical" and len(devices) < _LEAST_FOR_HIERARCHY:
        raise _refused(
            f"{_LEAST_FOR_HIERARCHY} devices or more, over which it copies in two groups", str(len(devices)),
            "Leave --all-reduce out.",
        )  # fmt: skip
    if asked == "auto":
        return ChosenAllReduce("nccl" if _are_gpus(devices) and len(devices) > 1 else "cpu")
    return _unless_on_cpu(asked, "cpu", devices)


def between_processes(asked: AllReduce, devices: Sequence[str]) -> ChosenAllReduce:
    """Return the all-reduce between the processes of a cluster, whose devices here are of these kinds.

    Raise SettingsError for `hierarchical`, `cpu` and `gpu`, which work within a process only. `nccl` falls back to
    `ring` unless all are on GPUs. `auto` is `nccl` if all are, and else `ring`.
    """
    if asked in ("hierarchical", "cpu", "gpu"):
        raise _refused(
            "nccl, ring or auto", asked, "The others reduce within one process: leave --all-reduce out, or take "
            "--strategy mirrored.",
        )  # fmt: skip
    if asked == "auto":
        return ChosenAllReduce("nccl" if _are_gpus(devices) else "ring")
    return _unless_on_cpu(asked, "ring", devices)


def _unless_on_cpu(asked: AllReduce, fallback: AllReduce, devices: Sequence[str]) -> ChosenAllReduce:
    """Return what was asked for, or the fallback, with the reason, if it needs GPUs and a replica is on a CPU."""
    if asked in ("nccl", "gpu") and not _are_gpus(devices):
        kinds = " and ".join(f"{devices.count(kind)} x {kind}" for kind in sorted(set(devices)))
        return ChosenAllReduce(fallback, f"{asked} needs all replicas on GPUs, and they are on {kinds}")
    return ChosenAllReduce(asked)


def _are_gpus(devices: Sequence[str]) -> bool:
    return set(devices) == {"GPU"}


def _refused(expected: str, got: str, remedy: str) -> SettingsError:
    return SettingsError(expected=expected, got=got, where="--all-reduce", remedy=remedy)


# --- the devices of variables that all towers share ---


def places_of_variables(
    asked: VariablesOn, devices: Sequence[str], *, asynchronous: bool = False
) -> tuple[tuple[str, ...], str]:
    """Return the devices that variables are spread over, and a phrase on the choice.

    Towers are on devices of one kind. `gpu` is the first GPU, and falls back to the CPU if no tower is on a GPU. `auto`
    is the CPU without GPUs, and for four or more asynchronous towers; else `balanced`, which is all towers' devices.
    The phrase has the reason for a fallback, and for a choice of the CPU by `auto`.
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
    return {"cpu": ("CPU:0",), "gpu": gpus[:1], "balanced": tuple(devices)}[taken], taken + why


class LeastLoaded:
    """A placement by size: each variable goes to the device with the fewest bytes, the first if several have."""

    def __init__(self, devices: Sequence[str]) -> None:
        self.bytes_on = dict.fromkeys(devices, 0)

    def place(self, nbytes: int) -> str:
        """Return the device with the fewest bytes for a variable of this size, and count its bytes there."""
        device = min(self.bytes_on, key=self.bytes_on.__getitem__)
        self.bytes_on[device] += nbytes
        return device

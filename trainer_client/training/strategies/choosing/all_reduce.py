"""The choice of an all-reduce, by what was asked for and the devices that are there.

Rules: pure. TensorFlow would replace some choices in silence, so it is decided here: a choice that cannot work with
these devices falls back to another, which is then named; one that cannot work on any devices is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ALL_REDUCES", "AllReduce", "ChosenAllReduce", "between_processes", "within_process"]

AllReduce = Literal["auto", "nccl", "ring", "hierarchical", "cpu", "gpu"]
ALL_REDUCES: tuple[AllReduce, ...] = ("auto", "nccl", "ring", "hierarchical", "cpu", "gpu")

#: TensorFlow's hierarchical copies go over two groups of devices, and are made for machines with eight.
_LEAST_FOR_HIERARCHY = 8


class ChosenAllReduce(NamedTuple):
    """The all-reduce that is used, and why it is not the one that was asked for, if so."""

    name: AllReduce
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name}, because {self.why}" if self.why else self.name


def within_process(asked: AllReduce, devices: Sequence[str]) -> ChosenAllReduce:
    """Return the all-reduce for replicas of one process on devices of these kinds (CPU, GPU).

    Raise SettingsError for `ring`, and for `hierarchical` on too few devices. `nccl` and `gpu` fall back to `cpu`
    unless all replicas are on GPUs.
    """
    gpus = len(devices) > 0 and all(kind == "GPU" for kind in devices)
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
        return ChosenAllReduce("nccl" if gpus and len(devices) > 1 else "cpu")
    if asked in ("nccl", "gpu") and not gpus:
        return ChosenAllReduce("cpu", f"{asked} needs all replicas on GPUs, and they are on {_kinds(devices)}")
    return ChosenAllReduce(asked)


def between_processes(asked: AllReduce, devices: Sequence[str]) -> ChosenAllReduce:
    """Return the all-reduce between the processes of a cluster, whose devices here are of these kinds.

    Raise SettingsError for one that works within a process only. `nccl` falls back to `ring` unless all are on GPUs.
    """
    gpus = len(devices) > 0 and all(kind == "GPU" for kind in devices)
    if asked in ("hierarchical", "cpu", "gpu"):
        raise _refused(
            "nccl, ring or auto", asked, "The others reduce within one process: leave --all-reduce out, or take "
            "--strategy mirrored.",
        )  # fmt: skip
    if asked == "nccl" and not gpus:
        return ChosenAllReduce("ring", f"nccl needs all replicas on GPUs, and they are on {_kinds(devices)}")
    return ChosenAllReduce("nccl" if asked == "auto" and gpus else "ring" if asked == "auto" else asked)


def _kinds(devices: Sequence[str]) -> str:
    return " and ".join(f"{devices.count(kind)} x {kind}" for kind in sorted(set(devices)))


def _refused(expected: str, got: str, remedy: str) -> SettingsError:
    return SettingsError(expected=expected, got=got, where="--all-reduce", remedy=remedy)

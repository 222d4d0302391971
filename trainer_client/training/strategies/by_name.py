"""The strategy that the command line asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_client.training.strategies.asynchronous import Asynchronous
from trainer_client.training.strategies.central import Central
from trainer_client.training.strategies.mirrored import Mirrored
from trainer_client.training.strategies.multi_worker import MultiWorker
from trainer_client.training.strategies.single import Single
from trainer_client.training.strategies.towers.devices import tower_devices

if TYPE_CHECKING:
    from trainer_client.training.loop.placement import Placement
    from trainer_client.training.strategies.options import StrategyOptions

__all__ = ["placement_of"]


def placement_of(options: StrategyOptions) -> Placement:
    """Return the strategy that the options name, with this process's devices set up for it."""
    sums = options.combine == "sum"
    if options.name == "mirrored":
        return Mirrored(tower_devices(options.replicas), options.all_reduce or "auto", sums=sums)
    if options.name == "central":
        return Central(tower_devices(options.replicas), options.variables or "auto", sums=sums)
    if options.name == "async":
        return Asynchronous(tower_devices(options.replicas), options.variables or "auto", sums=sums)
    if options.name == "multi-worker":
        return MultiWorker(options.replicas, options.all_reduce or "auto", sums=sums)
    return Single()

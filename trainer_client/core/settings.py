"""The core's settings: who the trainer is, how far ahead it asks, and its timeouts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.wire.topics.work_messages import VERIFY, VERIFY_WANTS

if TYPE_CHECKING:
    from trainer_client.core.stream_spec import StreamSpec
    from trainer_client.core.upcoming import Ranks

__all__ = ["CoreSettings", "SlotNumbers", "slots_for"]

#: Batches asked for ahead: one being built, some on their way, the rest to even out slow ones. Of small batches as many
#: as these bytes hold: they are built so quickly that each process wakes for a group of them, and only with many wants
#: are groups large. Batches of 0.3 MB took 7.4 to 7.8 µs of CPU a sample with 24, and 8.3 to 8.5 with 8.
_USUAL_PREFETCH = 8
_MOST_USUAL = 32
_AHEAD_BYTES = 8 * 2**20

#: How many times the start more may be asked for, and how many a feed grows to at most.
_MOST_GROWTH = 8
_MOST_GROWN = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """Identity of the trainer, and the arguments of `connect`."""

    job: str
    stream: str
    ranks: Ranks
    incarnation: int
    name: str
    #: The running system's id, which shows what workers run on this host; empty if unknown.
    boot_id: str
    #: In queue mode: what is done with the batches (empty: what the stream is for), and the most epochs.
    work: str = ""
    epochs: int | None = None
    #: Version of the elastic world that assigned the ranks; None if they are fixed.
    world_version: int | None = None
    #: Batches to prefetch for each replica at the start; None: as many as suit the size of batches.
    prefetch: int | None = None
    prefetch_bytes: int = 2**30
    shared_memory: bool = True
    verify: bool = False
    #: How many workers on other hosts to talk to.
    workers: int = 16
    #: The feed fails after this long without any worker that can build the head.
    lost_timeout_s: float = 60.0
    #: A head that has waited this long, and three times as long as a usual answer takes, is hedged.
    hedge_floor_s: float = 0.25

    @property
    def verifies(self) -> bool:
        """Return whether this is a verifier, which is served after all trainers."""
        return self.work == VERIFY


@dataclass(frozen=True, slots=True)
class SlotNumbers:
    """How many ordinary slots to make, and how many batches to ask for ahead: at the start, and at the most.

    `hands` are the slots in addition to the batches asked for ahead.
    """

    slots: int
    start: int
    most: int
    hands: int


def slots_for(settings: CoreSettings, spec: StreamSpec) -> SlotNumbers:
    """Return the numbers of slots and of batches to ask for ahead, within `prefetch_bytes`.

    There are always at least two slots and a prefetch of one, whatever their size. The setting `prefetch` counts for
    each replica; without it, the start suits the size of batches. It may grow to eight times the start, as far as
    slots are affordable. A verifier always wants VERIFY_WANTS batches, and where batches are made whole, one worker
    makes those of a shard in their order: neither grows.
    """
    replicas, largest = settings.ranks.replicas, max(spec.largest_bytes(), 1)
    usual = min(max(_USUAL_PREFETCH, _AHEAD_BYTES // largest), _MOST_USUAL)
    wanted = (settings.prefetch or usual) * replicas
    if settings.verifies:
        wanted = VERIFY_WANTS
    grows = not (settings.verifies or spec.producers)
    most = max(wanted, min(_MOST_GROWTH * wanted, _MOST_GROWN)) if grows else wanted
    hands = 4 * replicas + 2  # slots that a consumer and TensorFlow's own prefetching hold at a time, as measured
    affordable = settings.prefetch_bytes // largest - 1  # the reserve slot takes one
    slots = max(2, min(most + hands, affordable))
    start = max(1, min(wanted, slots - 1))
    return SlotNumbers(slots, start, max(start, min(most, slots - hands)), hands)

"""Checks of the arguments of `connect`, made before anything is opened.

Rules: pure. Bounds of messages are not repeated here: `shared.wire.codec` keeps them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import SettingsError
from shared.wire.topics.work_messages import MEASURE
from trainer_client.core.workers.connections import MOST_REMOTE
from trainer_client.session.call_checks import refused, text, whole

if TYPE_CHECKING:
    from trainer_client.core.upcoming import Ranks

__all__ = ["refuse_fixed_places", "refuse_nonsense", "refuse_numbers", "refuse_texts", "refuse_work"]

#: The allowed kinds of work with batches.
_WORK = ("train", "evaluate", "predict", MEASURE)


#: Numbers whose default is not None, so that None is refused for them.
_NEVER_LEFT_OPEN = ("replicas", "workers")


def refuse_numbers(**numbers: int | None) -> None:
    """Raise SettingsError for a value that is no whole number; `refuse_nonsense` checks which fit together."""
    for name, number in numbers.items():
        if number is not None or name in _NEVER_LEFT_OPEN:
            whole(number, name, "connect", least=1 if name == "epochs" else -(2**48))


def refuse_texts(**texts: str | None) -> None:
    """Raise SettingsError for a value that is no string; None is allowed except for the endpoint and the stream."""
    for name, value in texts.items():
        if value is not None or name in ("endpoint", "stream"):
            text(value, name, "connect")


def refuse_work(work: str | None) -> None:
    """Raise SettingsError for an unknown kind of work; None is allowed."""
    if work is not None and work not in _WORK:
        raise refused(f"work, one of {', '.join(map(repr, _WORK))}", work, "connect")


#: Prefetching more than this takes memory and gains nothing.
_MOST_PREFETCH = 1024

#: The largest world that a message can state.
_MOST_RANKS = 4096

#: The length of `elastic`: least and most.
_LIMITS = 2


def refuse_nonsense(ranks: Ranks, prefetch: int | None, workers: int) -> None:
    """Raise SettingsError for ranks outside their world, or a prefetch or number of workers out of its bounds."""
    if not 0 <= ranks.rank <= ranks.world - ranks.replicas or ranks.replicas < 1:
        got = f"rank {ranks.rank}, replicas {ranks.replicas}, world {ranks.world}"
        raise _nonsense("rank >= 0 and rank + replicas <= world", got, "Ranks count from 0; world counts all ranks.")
    if prefetch is not None and not 1 <= prefetch <= _MOST_PREFETCH:
        raise _nonsense(f"prefetch from 1 to {_MOST_PREFETCH}", str(prefetch), "Leave it out: 8 is usual.")
    if not 1 <= workers <= MOST_REMOTE:
        raise _nonsense(f"workers from 1 to {MOST_REMOTE}", str(workers), "Leave it out: 16 is usual.")


def refuse_fixed_places(ranks: Ranks, rank: int | None, elastic: tuple[int, int]) -> None:
    """Raise SettingsError for invalid limits of an elastic world, or for fixed ranks beside valid ones."""
    is_pair = isinstance(elastic, tuple | list) and len(elastic) == _LIMITS
    least, most = (whole(limit, "elastic", "connect") for limit in elastic) if is_pair else (0, 0)
    if not 1 <= least <= most <= _MOST_RANKS:
        expected = f"elastic=(least, most), from 1 to {_MOST_RANKS}"
        raise _nonsense(expected, f"elastic={elastic}", "Write (2, 4), for example.")
    if rank is not None or ranks.world > ranks.replicas:
        got = f"rank {ranks.rank} of {ranks.world}, and elastic={elastic}"
        remedy = (
            "Leave rank and world out: the coordinator gives them. A strategy over several processes cannot change its "
            "world: leave elastic out, and have all of them started anew."
        )
        raise _nonsense("either fixed ranks or elastic", got, remedy)


def _nonsense(expected: str, got: str, remedy: str) -> SettingsError:
    return SettingsError(expected=expected, got=got, where="connect", remedy=remedy)

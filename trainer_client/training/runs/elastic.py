"""`run_elastic`: a training function that is called anew in each world of an elastic run.

Rules: an error of a training function while its world ends counts as the world's end: an exchange of gradients fails
when a partner dies, some seconds before the coordinator knows. Nobody leaves a run that is done before all are done.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from shared.errors import RefusedError, WorldChangedError
from shared.silence import GONE_AFTER
from trainer_client.connecting import connect
from trainer_client.feed import Feed

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run_elastic"]

_T = TypeVar("_T")

#: How many heartbeat timeouts after the death of a partner the coordinator knows of it.
_KNOWN_AFTER = GONE_AFTER + 3

#: How long a process that is to be started anew may take to leave an exchange in which it may be stuck.
_LEAVING_S = 30.0


def run_elastic(
    train: Callable[[Feed], _T],
    endpoint: str,
    *,
    elastic: tuple[int, int],
    new_process: bool = False,
    **settings: Any,
) -> _T | None:
    """Call a training function anew in each world of an elastic run, until it returns in all of its trainers.

    Args:
        train: The function, which is called with the feed. It restores the newest checkpoint first, as
            `FeedCheckpoint` does, so it goes on where the last one was committed.
        endpoint: As for `connect`.
        elastic: The least and the most trainers.
        new_process: Whether the process ends with exit code 75 when trainers came or went, to be started again, instead
            of calling `train` again: for strategies that cannot be made twice.
        **settings: Other arguments of `connect`.

    Returns:
        What `train` returned; None if the run ended without this trainer, as for a spare that was never needed.

    Raises:
        SettingsError: As `connect`, or `train` itself.
        LostError: As `connect`, or another rank is lost at the end. Errors of `train` that no change of the world
            explains are raised as they are.
        StokerError: As `connect`, or the feed's own error.
        RefusedError: As `connect`.

    Example:
        >>> def train(feed):
        ...     for batch in feed:
        ...         pass
        ...     return feed.epoch
        >>> trainer_client.run_elastic(train, endpoint, stream="elastic", elastic=(1, 2))
        1
    """
    feed = _placed(partial(connect, endpoint, elastic=elastic, **settings))
    while feed is not None:
        log = feed._session.log.bind(world=feed.world)
        log.info("a world begins")
        # The end of `train` is not the end of the run: `end_together` waits until all trainers are done.
        feed._session.ends_later = True
        with feed, _End(feed, armed=new_process):
            try:
                result = train(feed)
                feed._session.results.end_together()
            except Exception as error:  # a lost partner makes exchanges raise nearly anything
                if not _is_end_of_world(feed, error):
                    raise
                log.info("a world ends", error=str(error))
            else:
                return result
        # What cannot be made twice in one process, such as Horovod's communicators, gets a new one: this code tells
        # whatever started the process to start it again.
        if new_process:
            raise SystemExit(WorldChangedError.exit_code)
        feed = _placed(partial(_join_next, feed))
    return None


def _join_next(feed: Feed) -> Feed:
    join = feed._session.join_next
    assert join is not None
    return Feed(join())


def _placed(join: Callable[[], Feed]) -> Feed | None:
    """Return the feed of the next world; None if the run ended without us; other errors of joining are passed on."""
    try:
        return join()
    except RefusedError as error:
        if error.code != "ended":
            raise
    return None


def _is_end_of_world(feed: Feed, error: Exception) -> bool:
    """Return whether the error comes from the end of the feed's world; this may wait for the coordinator.

    It waits only for an error that may be of an exchange; with any other, the world has to be known to be over now.
    """
    if isinstance(error, WorldChangedError):
        return True
    # An exchange fails some seconds before the coordinator knows that the partner is dead, so its errors are waited
    # out; with any other error, the world is over only if that is known now.
    return feed._session.wait_for_change(_KNOWN_AFTER if _may_be_of_exchange(error) else 0)


def _may_be_of_exchange(error: Exception) -> bool:
    """Return whether the error may be that of an exchange whose partner died.

    Gloo, NCCL, Horovod and JAX raise RuntimeErrors then. ConnectionErrors and all of TensorFlow's count as well.
    """
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, ConnectionError | RuntimeError) or "tensorflow" in packages


class _End:
    """A watchdog that ends a process which does not leave a world that is over, whatever it is stuck in.

    It does nothing unless it is armed.
    """

    def __init__(self, feed: Feed, *, armed: bool) -> None:
        self._feed = feed
        self._armed = armed
        self._left = threading.Event()

    def __enter__(self) -> None:
        if self._armed:
            threading.Thread(target=self._watch, name="stoker-elastic", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._left.set()

    def _watch(self) -> None:
        session = self._feed._session
        while not self._left.is_set():
            if session.wait_for_change(1):
                if not self._left.wait(_LEAVING_S):
                    # Harder than SystemExit, which a thread that is stuck in an exchange would never see.
                    os._exit(WorldChangedError.exit_code)
            elif session.error is not None and not isinstance(session.error, WorldChangedError):
                return  # the feed is lost for another reason, and hears of no change any more

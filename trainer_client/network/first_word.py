"""Whether a coordinator answers, asked before anything is done that takes long or takes a rank from somebody."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import zmq

from shared.endpoints import check_coordinator
from shared.errors import LostError
from shared.logs import Log
from shared.silence import Silence
from shared.system.limits import refuse_small_limits_of_client
from shared.wire import messages as m
from shared.wire.refusals import error_of
from trainer_client.network.coordinator_client import CoordinatorClient

if TYPE_CHECKING:
    from shared.keys import ClientKeys

__all__ = ["nobody_answers", "wait_for_coordinator"]

#: How long to wait for a coordinator in silence, how often to ask, and after how long to connect anew.
_SAYS_SO_AFTER_S = 5.0
_PAUSE_S = 0.1
_SILENT_S = 2.0


def wait_for_coordinator(endpoint: str, keys: ClientKeys | None, timeout_s: float) -> None:
    """Return once the coordinator says something.

    Raises:
        LostError: It says nothing for so long.
        RefusedError: It does not let us in.

    """
    check_coordinator(endpoint, where="connect")
    refuse_small_limits_of_client()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    client = CoordinatorClient(context, endpoint, keys)
    try:
        answer = _ask(client, endpoint, timeout_s)
    finally:
        client.close()
        context.term()
    if isinstance(answer, m.Refused):
        raise error_of(answer, f"coordinator at {endpoint}")


def _ask(client: CoordinatorClient, endpoint: str, timeout_s: float) -> m.Message:
    began_s, is_told, silence = time.monotonic(), False, Silence()
    while (waited_s := time.monotonic() - began_s) < timeout_s:
        if waited_s > _SAYS_SO_AFTER_S and not is_told:
            is_told = True
            Log("trainer").warning("no coordinator answers yet: it goes on asking", endpoint=endpoint)
        if silence.lose_patience(time.monotonic(), _SILENT_S):
            client.renew()
        client.send(m.StatusQuery())
        if client.socket.poll(int(1000 * _PAUSE_S)):
            for answer in client.read():
                return answer
    raise nobody_answers(endpoint, client.problem or "no answer", timeout_s)


def nobody_answers(endpoint: str, got: str, timeout_s: float) -> LostError:
    """Return the error for a coordinator that is not there, or does not say why it lets nobody in."""
    return LostError(
        expected=f"a coordinator that answers within {timeout_s:g} s",
        got=got,
        where=endpoint,
        remedy="Start the loaders (`loader-server run job.toml`), correct the endpoint, or allow more time with "
        "connect_timeout_s.",
    )

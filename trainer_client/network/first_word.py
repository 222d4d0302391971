"""Check that a coordinator answers, before anything that takes long or takes a rank from another trainer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import zmq

from shared.endpoints import check_coordinator
from shared.errors import LostError
from shared.logs import Log
from shared.silence import Silence
from shared.system.system_errors import refuse_small_limits_of_client
from shared.wire import messages as m
from shared.wire.refusing import error_of
from trainer_client.network.coordinator_client import CoordinatorClient

if TYPE_CHECKING:
    from shared.keys import ClientKeys

__all__ = ["nobody_answers", "wait_for_coordinator"]

#: After how long to log that no coordinator answers, how often to ask, and after how long to replace the connection.
_SAYS_SO_AFTER_S = 5.0
_PAUSE_S = 0.1
_SILENT_S = 2.0


def wait_for_coordinator(endpoint: str, keys: ClientKeys | None, timeout_s: float) -> None:
    """Return once the coordinator answers.

    Raises:
        LostError: No answer came within `timeout_s`.
        RefusedError: The coordinator refused us.

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
    """Return the error for a coordinator that does not answer in time; `got` is its last word, or "no answer"."""
    return LostError(
        expected=f"a coordinator that answers within {timeout_s:g} s",
        got=got,
        where=endpoint,
        remedy="Start the loaders (`loader-server run job.toml`), correct the endpoint, or allow more time with "
        "connect_timeout_s.",
    )

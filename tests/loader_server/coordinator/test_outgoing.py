"""What the coordinator sends: promises, and lists of workers that a later one makes needless."""

from __future__ import annotations

import pytest

from loader_server.coordinator.events import Send
from loader_server.coordinator.outgoing import drop_older_members, is_promise
from shared.wire import messages as m
from tests.shared.wire.examples import EXAMPLES


def test_of_several_lists_for_one_peer_the_last_goes_out() -> None:
    first, second, other = m.Members(version=1, workers=()), m.Members(version=2, workers=()), m.Noted()
    orders = [Send(b"a", first), Send(b"b", first), Send(b"a", other), Send(b"a", second)]
    assert drop_older_members(orders) == [Send(b"b", first), Send(b"a", other), Send(b"a", second)]
    assert drop_older_members([]) == []


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message.kind)
def test_leases_places_and_attachments_to_a_queue_are_promises(message: m.Message) -> None:
    is_queue = isinstance(message, m.Attached) and message.work is not None
    assert is_promise(message) == (message.kind in ("Leases", "Placed") or is_queue)

"""A wait for other ranks ends only if the coordinator says nothing for longer than is borne."""

from __future__ import annotations

import pytest

from shared.errors import LostError
from trainer_client.network.awaited_answers import SilentWait

ENDPOINT = "tcp://127.0.0.1:7400"


def test_whoever_hears_the_coordinator_waits_on():
    silence = SilentWait(2.0)
    for look in range(100):
        silence.look(look // 4, 0.5, ENDPOINT)


def test_silence_ends_the_wait_after_as_many_looks_as_are_borne():
    silence = SilentWait(2.0)
    for _ in range(5):
        silence.look(7.0, 0.5, ENDPOINT)
    with pytest.raises(LostError, match=r"expected a word of the coordinator within 2 s, .*, got none"):
        silence.look(7.0, 0.5, ENDPOINT)

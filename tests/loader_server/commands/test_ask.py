"""A question to a coordinator."""

from __future__ import annotations

import time

import pytest

from loader_server.commands.ask import ask_coordinator
from shared.errors import LostError
from shared.wire import messages as m
from tests.support.ends import Ends
from tests.support.unheard import expect_unheard_ctrl_c
from tests.support.worker_end import nobody


def ask(endpoint: str, timeout_s: float) -> m.Status:
    return ask_coordinator(endpoint, m.StatusQuery(), m.Status, keys=None, timeout_s=timeout_s)


def test_ctrl_c_just_before_it_waits_is_heeded() -> None:
    with Ends() as ends:
        ends.answers[m.StatusQuery] = lambda _: []
        expect_unheard_ctrl_c(lambda: ask(ends.endpoint, 100.0), once=lambda: ends.heard)
    with nobody() as endpoint:
        expect_unheard_ctrl_c(lambda: ask(endpoint, 100.0))


def test_no_answer_is_waited_for_as_long_as_was_said() -> None:
    with Ends() as ends:
        ends.answers[m.StatusQuery] = lambda _: []
        began_s = time.monotonic()
        with pytest.raises(LostError, match=r"answers within 0\.7 s, got no answer"):
            ask(ends.endpoint, 0.7)
        assert time.monotonic() - began_s >= 0.7

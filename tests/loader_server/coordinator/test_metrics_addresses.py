"""Where trainers serve metrics: the port is theirs to say, the host is that of their connection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from loader_server.coordinator.service import Coordinator
from tests.support.coordinator import progress


@pytest.mark.parametrize(
    ("told", "kept"), [("0.0.0.0:9300", "10.0.0.8:9300"), ("10.0.0.9:9300", ""), ("127.0.0.1:9300", ""), ("", "")]
)
def test_a_trainer_cannot_send_scrapers_to_another_host(told: str, kept: str) -> None:
    heard: list[Any] = []
    state = SimpleNamespace(handle=lambda event, _now_s: heard.append(event) or [])
    identity = SimpleNamespace(bytes=b"me", get={"Peer-Address": "10.0.0.8"}.get)
    Coordinator._decide(SimpleNamespace(_state=state), identity, progress(0, 0, 5, metrics=told), 0.0)  # type: ignore[arg-type]
    assert heard[0].message.metrics == kept

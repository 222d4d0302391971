"""The parent of one machine's loaders."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import trainer_client
from tests.support.loaders import running, wait_until, write_job

if TYPE_CHECKING:
    from pathlib import Path


def test_a_child_that_a_nameless_signal_ends_is_started_again(tmp_path: Path) -> None:
    """Real-time signals have numbers only."""
    with running(write_job(tmp_path, samples=20), workers=1) as loaders:
        loaders.workers()[0].send_signal(signal.SIGRTMIN + 5)
        cause = f'"cause": "signal {signal.SIGRTMIN + 5}"'
        wait_until(lambda: cause in loaders.text(), "the supervisor says how it ended")
        with trainer_client.connect(loaders.endpoint) as feed:
            assert len(list(feed)) > 0

"""A worker's log lines about wants: details at debug, and what went wrong always, each with its trainer and batch."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from loader_server.worker.want_log import WantLog
from shared.logs import Log
from shared.wire import messages as m
from tests.shared.wire.examples import EXAMPLES
from tests.support.in_memory import memory_want
from tests.support.log_lines import Lines

SESSION: Any = SimpleNamespace(fields={"stream": "train", "trainer": "gpu1:7", "rank": 3, "run": "7"})
WANT = memory_want(3, epoch=2)
(PUSHED,) = (example for example in EXAMPLES if isinstance(example, m.Pushed))
(UNBUILT,) = (example for example in EXAMPLES if isinstance(example, m.Unbuilt))


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_details_are_for_debug_and_what_went_wrong_is_for_all(level: int) -> None:
    with Lines(level) as lines:
        log = WantLog(Log("worker", job="digits", worker="vm-1"))
        log.note_accepted(SESSION, WANT)
        log.note_pushed(SESSION, WANT, PUSHED)
        log.note_refused(SESSION, WANT, UNBUILT)
        log.note_no_trial(SESSION, WANT, OSError("no child"))
        log.note_exhausted(SESSION, WANT, MemoryError())
        log.note_defect(SESSION, WANT, ZeroDivisionError())
    details = ["want is accepted", "batch is pushed", "want is refused"] if level == logging.DEBUG else []
    wrong = ["samples cannot be tried", "memory or descriptors ran out over one batch", "defect while building"]
    assert lines.events == details + wrong
    about = {"job": "digits", "worker": "vm-1", **SESSION.fields, "epoch": 2, "number": 3, "attempt": WANT.attempt}
    for record in lines.records:
        assert about.items() <= record.fields.items()  # type: ignore[attr-defined]

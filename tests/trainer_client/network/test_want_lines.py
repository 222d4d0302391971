"""A trainer's debug lines about wants."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from shared.logs import Log
from shared.wire import messages as m
from tests.shared.wire.examples import EXAMPLES
from tests.support.log_lines import Lines
from trainer_client.network.want_lines import WantLines

BY_KIND = {type(example): example for example in EXAMPLES}
WORKER = "tcp://10.0.0.7:1"


def lines_at(level: int) -> Lines:
    with Lines(level) as lines:
        told = WantLines(Log("trainer", run="7"))
        for example in EXAMPLES:
            told.note_sent(WORKER, example)
            told.note_heard(WORKER, example)
    return lines


def test_each_want_and_each_answer_is_a_line_at_debug() -> None:
    lines = lines_at(logging.DEBUG)
    events = {m.Want: "batch is asked for", m.Pushed: "batch came", m.Unbuilt: "want was refused"}
    events[m.Cancelled] = "want was cancelled"
    assert lines.events == [events[type(example)] for example in EXAMPLES if type(example) in events]
    for kind, event in events.items():
        for fields, example in zip(lines.fields(event), [one for one in EXAMPLES if type(one) is kind], strict=True):
            assert (fields["run"], fields["worker"], fields["slot"]) == ("7", WORKER, example.ticket.slot)
            assert fields.get("number") == getattr(example, "number", None)


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_nothing_is_written_otherwise(level: int) -> None:
    assert lines_at(level).events == []


def test_why_a_want_was_refused_is_said() -> None:
    refusal = replace(BY_KIND[m.Unbuilt], code="failed", got="no file")
    with Lines(logging.DEBUG) as lines:
        WantLines(Log("trainer")).note_heard(WORKER, refusal)
    (fields,) = lines.fields("want was refused")
    assert (fields["code"], fields["got"]) == ("failed", "no file")

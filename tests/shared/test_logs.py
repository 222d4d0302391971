"""Log lines: JSON for machines, words for people, fields that are bound once."""

from __future__ import annotations

import io
import json
import logging

from shared.logs import Log, start_logging


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_json_lines_for_machines():
    out = io.StringIO()
    start_logging(stream=out)
    Log("worker", job="digits").bind(worker="w1").warning("sample masked", sample=3, path=b"x", text="line\nbreak")
    (line,) = out.getvalue().splitlines()
    said = json.loads(line)
    assert said.pop("at").endswith("+00:00")
    assert said == {
        "level": "warning",
        "event": "sample masked",
        "job": "digits",
        "worker": "w1",
        "sample": 3,
        "path": "b'x'",
        "text": "line\nbreak",
    }


def test_words_at_a_terminal():
    out = Terminal()
    start_logging(stream=out)
    log = Log("worker", worker="w1")
    log.info("serving", endpoint="tcp://127.0.0.1:1")
    log.error("feed stops", error="no coordinator")
    first, second = out.getvalue().splitlines()
    assert first[8:] == "  serving  worker=w1 endpoint=tcp://127.0.0.1:1"
    assert second[8:] == "  error: feed stops  worker=w1 error=no coordinator"


def test_binding_makes_another_log():
    out = io.StringIO()
    start_logging(stream=out)
    log = Log("x", rank=0)
    log.bind(rank=1)
    log.info("e")
    assert json.loads(out.getvalue())["rank"] == 0


def test_levels_and_starting_twice():
    out = io.StringIO()
    start_logging(stream=io.StringIO())
    start_logging(level="warning", stream=out)
    Log("x").info("not this")
    Log("x").debug("nor this")
    Log("x").warning("this")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["this"]


def test_nothing_is_configured_without_being_asked(caplog):
    with caplog.at_level("INFO", "stoker"):
        logging.getLogger("stoker").propagate = True
        Log("x", rank=2).info("seen", n=1)
    assert caplog.records[0].getMessage() == "seen  rank=2 n=1"
    assert caplog.records[0].fields == {"rank": 2, "n": 1}

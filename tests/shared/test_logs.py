"""Log lines: JSON for machines, words for people, fields that are bound once."""

from __future__ import annotations

import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.logs import Log, logfmt, start_logging


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
    assert second[8:] == '  error: feed stops  worker=w1 error="no coordinator"'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("tcp://127.0.0.1:1", "tcp://127.0.0.1:1"),
        (0.25, "0.25"),
        ("größe/ü", "größe/ü"),
        (("a", 1), "\"('a', 1)\""),
        ("", '""'),
        ("no coordinator", '"no coordinator"'),
        ("a=b", '"a=b"'),
        ('say "no"', '"say \\"no\\""'),
        ("c:\\tmp", '"c:\\\\tmp"'),
        ("first\nsecond\tthird\r", '"first\\nsecond\\tthird\\r"'),
        ("a\x00b\u2028c\x85d", '"a\\u0000b\\u2028c\\u0085d"'),
        ("\xa0", '"\\u00a0"'),
        (None, "null"),
        ("null", "null"),
        (True, "true"),
    ],
)
def test_a_value_is_quoted_if_it_could_be_misread(value, text):
    assert logfmt(value) == text


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(), max_size=4))
def test_any_fields_can_be_read_back_from_one_line(fields):
    line = " ".join(f"{key}={logfmt(value)}" for key, value in fields.items())
    assert len(line.splitlines()) <= 1
    found, rest = {}, line
    while rest:
        key, _, rest = rest.partition("=")
        if rest.startswith('"'):
            found[key], end = json.JSONDecoder().raw_decode(rest)
        else:
            end = len(rest.partition(" ")[0])
            found[key] = rest[:end]
        assert rest[end : end + 1] in {"", " "}
        rest = rest[end + 1 :]
    assert found == fields


def test_who_asks_whether_details_are_written_is_told():
    start_logging(stream=io.StringIO())
    assert not Log("x").is_debugged
    start_logging(level="debug", stream=io.StringIO())
    assert Log("x").is_debugged


def test_binding_makes_another_log():
    out = io.StringIO()
    start_logging(stream=out)
    log = Log("x", rank=0)
    log.bind(rank=1)
    log.info("e")
    log.bind(rank=None, run="7").info("e")
    first, second = map(json.loads, out.getvalue().splitlines())
    assert first["rank"] == 0
    assert "rank" not in second
    assert second["run"] == "7"


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

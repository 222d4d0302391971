from __future__ import annotations

import logging

import pytest

from loader_server.building.fallbacks import FALLBACK_REASONS, Fallbacks


def raised() -> ValueError:
    def broken_on_columns() -> None:
        raise ValueError("off by one")

    with pytest.raises(ValueError, match="off by one") as caught:
        broken_on_columns()
    return caught.value


def test_each_reason_has_a_count_from_the_beginning() -> None:
    fallbacks = Fallbacks("train")
    assert fallbacks.counts == dict.fromkeys(FALLBACK_REASONS, 0)
    fallbacks.count("bad_sample")
    assert fallbacks.counts == {"bad_sample": 1, "defect": 0, "exhausted": 0, "failed": 0}


def test_a_defect_is_counted_each_time_and_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    fallbacks = Fallbacks("train")
    for _ in range(3):
        fallbacks.note_defect(raised())
    assert fallbacks.counts["defect"] == 3
    (line,) = caplog.records
    assert (line.levelno, line.fields["stream"]) == (logging.ERROR, "train")  # type: ignore[attr-defined]
    assert "broken_on_columns" in line.fields["traceback"]  # type: ignore[attr-defined]
    assert line.fields["error"] == "ValueError('off by one')"  # type: ignore[attr-defined]

"""The lines by which runs tell how they are, for people and for scripts."""

from __future__ import annotations

import json
import math

import pytest

from trainer_client.training.runs.printed_lines import judged_json, judged_line, part_line, spell_time

VALUES = {"loss": math.nan, "error": 0.25, "rows": 300.0}


def test_what_is_no_number_is_null_in_json():
    def refuse(name):
        raise ValueError(name)

    line = json.loads(judged_json("dev", 11, 1, VALUES), parse_constant=refuse)
    assert line == {"stream": "dev", "step": 11, "epoch": 1, "values": {"loss": None, "error": 0.25, "rows": 300.0}}


def test_people_read_the_same():
    assert judged_line("dev", 11, 1, VALUES) == "dev at step 11, after 1 epochs: loss nan, error 0.2500 (300 samples)"


@pytest.mark.parametrize(("seconds", "said"), [(0.9, "0:00:00"), (61, "0:01:01"), (90_061, "25:01:01")])
def test_hours_may_be_more_than_24(seconds, said):
    assert spell_time(seconds) == said


@pytest.mark.parametrize(("batches", "words"), [(0, "0 batches were"), (1, "1 batch was"), (2, "2 batches were")])
def test_a_process_that_took_part_says_how_many_batches_it_evaluated(batches, words):
    assert part_line("dev", 11, 1, batches) == f"dev at step 11, after 1 epochs: {words} evaluated here"

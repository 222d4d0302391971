"""The report: a document that can be kept and compared, the same in Markdown, and a page that needs nothing else."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree as ET

import pytest

from shared.errors import SettingsError
from tests.trainer_client.load_test.report.test_figures import measured
from trainer_client.load_test.report.document import FORMAT, markdown, read_report, write_report
from trainer_client.load_test.report.figures import LoadLimits, broken, curves_of, figures_of, together
from trainer_client.load_test.report.page import page


def document(*, runs=1, limits=LoadLimits(), trainers=2, **how):  # noqa: B008
    made = [{"figures": figures_of(measured(**how), trainers), **curves_of(measured(**how))} for _ in range(runs)]
    figures = together([run["figures"] for run in made])
    return {
        "format": FORMAT,
        "mode": "train",
        "at": "2026-01-02T03:04:05+00:00",
        "settings": {"trainers": trainers, "step_ms": 120.0, "feed": ""},
        "seed": 0,
        "machine": {"processor": "A <fast> one", "cores": 2},
        "versions": {"python": "3.11"},
        "figures": figures,
        "broken": broken(figures, limits),
        "runs": made,
    }


def test_the_markdown_has_every_figure_and_the_machine():
    text = markdown(document())
    assert "| accelerator utilisation | 0.9 |" in text
    assert "Machine: processor A <fast> one, cores 2." in text
    assert "feed" not in text
    assert "Compared" not in text


def test_repeats_stand_beside_each_other():
    assert "| figure | all together | repeat 1 | repeat 2 |" in markdown(document(runs=2))


def test_a_comparison_says_what_became_better_and_which_settings_differ():
    text = markdown(document(), document(trainers=5, compute_s=8.0))
    assert "| accelerator utilisation | 0.8 | 0.9 | +12.5 %, better |" in text
    assert "trainers 5 then, 2 now" in text
    assert "differ" not in markdown(document(), document(compute_s=8.0))


def test_broken_limits_stand_in_text_and_page():
    made = document(limits=LoadLimits(min_utilisation=0.95))
    assert "Limits broken: utilisation 0.9, expected at least 0.95." in markdown(made)
    assert "Not kept:" in page(made, None)
    assert "Not kept:" not in page(document(), None)


def test_what_was_written_can_be_read_and_compared(tmp_path):
    made = document()
    paths = write_report(tmp_path / "new" / "folder", made, None)
    assert [path.name for path in paths] == ["report.json", "report.md", "report.html"]
    assert read_report(paths[0]) == json.loads(json.dumps(made))
    assert markdown(made, read_report(paths[0])).count("equal") == 12


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99, "figures": {}}', '{"format": 1}'])
def test_anything_else_is_refused_with_a_remedy(tmp_path, text):
    (tmp_path / "old.json").write_text(text)
    with pytest.raises(SettingsError, match="--report FOLDER"):
        read_report(tmp_path / "old.json")


@pytest.mark.parametrize(
    "change",
    [
        {"figures": None}, {"settings": []}, {"runs": None}, {"runs": []}, {"runs": [{}]}, {"runs": ["a"]},
        {"runs": [{"figures": {"batches_per_s": None}, "wait_curve_ms": []}]},
        {"runs": [{"figures": {"batches_per_s": 5}, "wait_curve_ms": [[1]]}]},
        {"runs": [{"figures": {"batches_per_s": 5}, "wait_curve_ms": [0.1]}]},
    ],
)  # fmt: skip
def test_a_report_that_lacks_a_part_is_refused_before_the_test_begins(tmp_path, change):
    (tmp_path / "old.json").write_text(json.dumps(document() | change))
    with pytest.raises(SettingsError, match=r"expected a report\.json of a load test, format 1, got one with"):
        read_report(tmp_path / "old.json")


def test_a_report_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="No such file"):
        read_report(tmp_path / "none.json")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="--report"):
        write_report(tmp_path / "file", document(), None)


@pytest.mark.parametrize("old", [None, document(trainers=5)])
@pytest.mark.parametrize("how", [{}, {"runs": 3}, {"compute_s": 0.0, "utilisations": {}}])
def test_the_page_is_whole_and_loads_nothing(how, old):
    text = page(document(**how), old)
    ET.fromstring(re.sub(r"<!doctype html>|<meta[^>]*>", "", text))  # every tag is closed, every text escaped
    assert "A &lt;fast&gt; one" in text
    assert not re.search(r"https?:|src=|href=|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text
    assert text.count("<svg") == (3 if "compute_s" in how else 4)
    assert ("Compared with" in text) == (old is not None)


def test_a_test_in_which_nothing_was_read_still_has_a_page():
    made = document(steps=0)
    made["runs"][0] |= {"by_second": [], "wait_curve_ms": [(0.0, 0.0)], "utilisations": []}
    assert "<svg" in page(made, None)


def test_what_limited_a_test_is_in_all_forms_and_repeats_that_differ_are_told():
    made = document(runs=3)
    for run, limit in zip(
        made["runs"], ("reads in workers; gain unknown", "trainers; <b>", "trainers; <b>"), strict=True
    ):
        run["limit"] = limit
    assert "What limits it: reads in workers; gain unknown, or trainers; <b>." in markdown(made)
    assert "reads in workers; gain unknown, or trainers; &lt;b&gt;.</p>" in page(made, None)
    assert "What limits it: unknown." in markdown(document()), "a report of an older release"

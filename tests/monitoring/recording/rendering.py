"""Recorded series as test files of promtool: what the rules look at, and which alerts fired when.

Of what was recorded only the metrics that rules name are kept, every 15 seconds, equal values in short. When the rules
change, the same recordings can be rendered anew.
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

from tests.monitoring.recording.scenes import SCENES
from tests.support.monitoring import FOLDER, metrics_named, rules_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["RECORDED", "STEP_S", "render"]

#: Where the test files are.
RECORDED = FOLDER / "recorded"
#: The time between two recorded values.
STEP_S = 15

#: A target's own name, which no rule looks at.
_LEFT_OUT = ("instance", "__name__")
_SHORTENED_FROM = 3

#: What promtool calls no value, and the end of a series.
_MISSING, _STALE = "_", "stale"

#: When each alert fired first, in seconds from the beginning.
_FIRST = f'min by (alertname, severity) (min_over_time(timestamp(ALERTS{{alertstate="firing"}})[1h:{STEP_S}s]))'


def render(path: Path) -> None:
    """Write the test file of a recorded scene, and fill in which alerts promtool finds, and when.

    Raise AssertionError if that is not what the scene is to show.
    """
    recorded = json.loads(path.read_text())
    assert not recorded["error"], f"{path}: {recorded['error']}"
    file = RECORDED / f"{path.stem}.yml"
    RECORDED.mkdir(exist_ok=True)
    file.write_text(_text(recorded, []))
    fired = _fired(file)
    file.write_text(_text(recorded, fired))
    scene = SCENES[recorded["scene"]]
    names = [labels for labels, _ in fired]
    if not scene.alert:
        assert not fired, f"{path.stem}: {fired}"
        return
    first_s = min(at_s for labels, at_s in fired if f'"{scene.alert}"' in labels)
    took_s = first_s - _began_s(recorded)
    print(f"{path.stem}: {names}, after {took_s} s of at most {scene.within_s:g}")
    assert took_s <= scene.within_s, f"{path.stem}: {took_s} s"


def _began_s(recorded: dict[str, Any]) -> int:
    """Return when the trouble began, in seconds from the beginning of the recording."""
    return round(recorded["began_s"] - recorded["started_s"])


def _text(recorded: dict[str, Any], fired: Sequence[tuple[str, float]]) -> str:
    scene = SCENES[recorded["scene"]]
    whole_s = STEP_S * int((recorded["ended_s"] - recorded["started_s"]) // STEP_S)
    lines = [
        f"# {scene.about[0].upper()}{scene.about[1:]}.",
        f"# Real processes, scraped by a real Prometheus on two shared cores, {recorded['date']}.",
        f"# Made by `python -m tests.monitoring.recording {recorded['scene']}`.",
    ]
    if scene.alert:
        lines.append(
            f"# The trouble begins at {_began_s(recorded)} s; {scene.alert} is to fire within {scene.within_s:g} s."
        )
    lines += [
        "rule_files:",
        "  - ../rules.yml",
        "  - ../alerts.yml",
        "",
        f"evaluation_interval: {STEP_S}s",
        "group_eval_order: [stoker, stoker_alerts]",
        "",
        "tests:",
        f"  - name: {scene.about}",
        f"    interval: {STEP_S}s",
        "    input_series:",
        *_series(recorded),
        "    promql_expr_test:",
        "      # When each alert fired first, in seconds.",
        f"      - expr: '{_FIRST}'",
        f"        eval_time: {whole_s}s",
    ]
    if not fired:
        lines.append("        exp_samples: []")
    else:
        lines.append("        exp_samples:")
        for labels, at_s in fired:
            lines += [f"          - labels: '{{{labels}}}'", f"            value: {at_s:g}"]
    return "\n".join(lines) + "\n"


def _series(recorded: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of all series that the rules look at."""
    named = metrics_named(rules_text())
    origin_s = recorded["started_s"]
    count = 1 + int((recorded["ended_s"] - origin_s) // STEP_S)
    for series in sorted(recorded["series"], key=lambda series: sorted(series["metric"].items())):
        labels = dict(series["metric"])
        if labels["__name__"] not in named or labels["__name__"].startswith("stoker:"):
            continue
        values = [_MISSING] * count
        for at_s, value in series["values"]:
            place = round((at_s - origin_s) / STEP_S)
            if 0 <= place < count:
                values[place] = _short(value)
        _mark_ends(values)
        shown = ", ".join(f'{key}="{value}"' for key, value in sorted(labels.items()) if key not in _LEFT_OUT)
        yield f"      - series: '{labels['__name__']}{{{shown}}}'"
        yield f'        values: "{" ".join(_runs(values))}"'


def _mark_ends(values: list[str]) -> None:
    """Let a series end where it was not scraped any more, or promtool takes its last value for five minutes more."""
    for place in range(1, len(values)):
        if values[place] == _MISSING and values[place - 1] not in (_MISSING, _STALE):
            values[place] = _STALE


def _short(value: str) -> str:
    """Return a value with at most three places behind the point."""
    return f"{float(value):.3f}".rstrip("0").rstrip(".")


def _runs(values: Sequence[str]) -> Iterator[str]:
    """Yield the values, equal ones in a row as promtool's `VxN`: V and N more of it, or N of what is missing."""
    place = 0
    while place < len(values):
        value = values[place]
        length = 1
        while place + length < len(values) and values[place + length] == value:
            length += 1
        if length < _SHORTENED_FROM:
            yield from [value] * length
        else:
            yield f"_x{length}" if value == _MISSING else f"{value}x{length - 1}"
        place += length


def _fired(file: Path) -> list[tuple[str, float]]:
    """Return the labels of each alert that fires in a test file that expects none, and when it does."""
    done = subprocess.run(
        ["promtool", "test", "rules", file.name], cwd=file.parent, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return []
    output = done.stdout + done.stderr
    found = re.findall(r"\{(.*?)\} ([\d.E+]+)", output.partition("got:")[2])
    assert found, output
    return sorted((labels, float(at_s)) for labels, at_s in found)

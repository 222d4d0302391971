"""Play scenes and record them.

    python -m tests.monitoring.recording SCENE --raw FOLDER     plays it, and writes what Prometheus kept as JSON
    python -m tests.monitoring.recording --render FOLDER        makes test files for promtool from all of that

Playing takes up to twenty minutes a scene; several can be played at a time, each by a process of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.monitoring.recording.rendering import STEP_S, render
from tests.monitoring.recording.scenes import SCENES
from tests.monitoring.recording.stage import Stage


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.monitoring.recording")
    parser.add_argument("scene", nargs="?", choices=SCENES)
    parser.add_argument("--raw", type=Path, help="where to put what was recorded")
    parser.add_argument("--render", type=Path, help="where that lies")
    options = parser.parse_args()
    if options.render is not None:
        for path in sorted(options.render.glob("*.json")):
            render(path)
        return 0
    _record(options.scene, options.raw)
    return 0


def _record(name: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f"stoker-{name}-") as work, Stage(Path(work)) as stage:
        error = ""
        try:
            SCENES[name].play(stage)
        except AssertionError as failure:
            error = str(failure)
            (folder / f"{name}.failed").write_text(_logs(Path(work)) + error)
        ended_s = time.time()
        series = stage.prometheus.ask(
            "query_range",
            query='{job="recorded"}',
            start=str(stage.started_s),
            end=str(ended_s),
            step=str(STEP_S),
        )["result"]
        recorded = {
            "scene": name,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "error": error,
            "started_s": stage.started_s,
            "ended_s": ended_s,
            "began_s": stage.began_s,
            "fired_s": stage.fired_s,
            "series": series,
        }
        (folder / f"{name}.json").write_text(json.dumps(recorded))
    print(name, error or "recorded", file=sys.stderr)


def _logs(work: Path) -> str:
    return "".join(path.read_text()[-20000:] for path in sorted(work.glob("*.log")) if path.name != "prometheus.log")


if __name__ == "__main__":
    sys.exit(main())

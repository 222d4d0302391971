"""Draws what `batch_quality` measured: waste against the number of shapes.

python -m tests.benchmarks.batch_quality --json > quality.json
python -m tests.benchmarks.batch_quality_plot quality.json docs/batch_quality.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

_NAMES = {
    "stoker": ("Stoker, 16 shapes", "tab:red", "o"),
    "stoker_auto": ('Stoker, shapes = "auto"', "tab:orange", "o"),
    "tf_bucket": ("tf.data bucket_by_sequence_length", "tab:blue", "s"),
    "lhotse": ("Lhotse 1.33", "tab:green", "^"),
    "returnn_laplace": ("RETURNN laplace", "tab:purple", "v"),
}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """One panel a list, one rank; fewer shapes are to the left, less waste is below."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    lists = list(dict.fromkeys(row["list"] for row in rows))
    for axes, name in zip(figure.subplots(1, len(lists), squeeze=False)[0], lists, strict=True):
        for policy, (label, color, marker) in _NAMES.items():
            mine = [row for row in rows if row["list"] == name and row["policy"] == policy and row["ranks"] == 1]
            points = [(row["shapes"], 100 * row["waste"]) for row in mine]
            axes.scatter(*zip(*points, strict=True), label=label, color=color, marker=marker, s=60)
        axes.set_xscale("log", base=2)
        axes.set_xticks([16, 32, 64, 128, 256, 512], labels=["16", "32", "64", "128", "256", "512"])
        axes.set_xlabel("tensor shapes that the accelerator meets")
        axes.set_ylabel("cells that are padding, %")
        axes.set_ylim(bottom=0)
        axes.set_title(name)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text().splitlines()[-1])["rows"], Path(sys.argv[2]))

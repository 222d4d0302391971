"""Every format's source beside the usual reader of that format: samples a second, and CPU a sample of all processes.

    python -m tests.benchmarks.sources [--json] [--only FORMAT …] [--rounds 5] [--index-scale 0.1]

Rules: one worker, one trainer, the same data; first and later epochs apart. The formats are the modules of this folder
that have `rows(folder, rounds)`. A peer that is not installed is named as left out. Without --only, indexing is
measured too. With --json there is one JSON object on the last line, and nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks import indexing, sources
from tests.benchmarks.sources.remote import fetched_share

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.sources.row import Row

__all__ = ["formats", "main"]

_HEAD = "| format | side | epoch | samples/s | CPU µs a sample | ratio |\n|---|---|---|--:|--:|--:|"


def formats() -> dict[str, Callable[[Path, int], list[Row]]]:
    """What measures each format, by its module's name."""
    names = [one.name for one in pkgutil.iter_modules(sources.__path__) if not one.name.startswith(("_", "test_"))]
    modules = {name: importlib.import_module(f"{sources.__name__}.{name}") for name in names}
    return {name: module.rows for name, module in modules.items() if hasattr(module, "rows")}


def _line(row: Row) -> str:
    start = f"| {row.format} | {row.side} | {row.epoch} |"
    if row.left_out:
        return f"{start} left out: {row.left_out} | | |"
    return f"{start} {row.samples_per_s:.0f} | {row.cpu_us_per_sample:.1f} | {row.ratio:.2f} |"


def _indexing(scale: float) -> dict[str, Any]:
    found: dict[str, Any] = {"scale": scale}
    for part in indexing.PARTS:
        found |= indexing.measured(scale, part)
    return found


def main() -> None:
    """Measure, and print."""
    known = formats()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    parser.add_argument("--only", nargs="*", choices=known, default=[], metavar="FORMAT", help=", ".join(known))
    parser.add_argument("--rounds", type=int, default=5, help="passes of each side")
    parser.add_argument("--index-scale", type=float, default=0.1, help="a part of the rows that indexing is tried with")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.only or known:
        with tempfile.TemporaryDirectory(prefix=f"stoker-{name}-") as folder:
            found = known[name](Path(folder), options.rounds)
        rows += found
        if not options.json:
            print("\n".join([_HEAD, *map(_line, found)]), flush=True)
    tokens = [row.ratio for row in rows if row.format == "tokens" and row.side == "stoker" and row.epoch == "later"]
    said = {
        "rows": [asdict(row) for row in rows],
        "tokens_ratio": tokens[0] if tokens else None,
        "index": {} if options.only else _indexing(options.index_scale),
        "remote_bytes_ratio": fetched_share(),
    }
    print(json.dumps({**said, "load_15_min": round(os.getloadavg()[2], 2)}), flush=True)


if __name__ == "__main__":
    main()

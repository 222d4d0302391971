"""A Ray of several nodes on this machine, until standard input ends; run by the interpreter that has Ray.

    python -m tests.fleet.ray_nodes FOLDER 3

The line that it prints once all are there is JSON: the addresses. Each line that it then reads starts one more node,
which it confirms by a line. Each node has a folder for temporary files of its own, `FOLDER/node-1` and so on, and all
but the first, the head, have the label `pool=loaders`; Ray's own files are in `FOLDER/ray`. Nodes have no
`node_ip_address`, with which Ray hangs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

__all__ = ["main"]

#: How many workers a node has room for.
_CORES = 4


def main() -> None:
    """Start the nodes, and end them when the input ends."""
    from ray.cluster_utils import Cluster

    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    (folder / "ray").mkdir()
    os.environ["RAY_TMPDIR"] = str(folder)  # Ray adds its own name to it
    cluster = Cluster()
    try:
        for number in range(1, 1 + count):
            _add_node(cluster, folder, number)
        print(json.dumps({"address": cluster.address, "dashboard": cluster.webui_url}), flush=True)
        for number, _ in enumerate(sys.stdin, 1 + count):
            _add_node(cluster, folder, number)
            print("{}", flush=True)
    finally:
        cluster.shutdown()


def _add_node(cluster: Any, folder: Path, number: int) -> None:
    own = folder / f"node-{number}"
    own.mkdir()
    os.environ["TMPDIR"] = str(own)  # inherited by all that runs on the node
    labels = {} if number == 1 else {"pool": "loaders"}
    cluster.add_node(num_cpus=_CORES, labels=labels, include_dashboard=number == 1)


if __name__ == "__main__":
    main()

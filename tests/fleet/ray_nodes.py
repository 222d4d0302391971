"""A Ray of several nodes on this machine, until standard input ends; run by the interpreter that has Ray.

    python -m tests.fleet.ray_nodes FOLDER 3

The last line that it prints at its start is JSON: the address. Each node has a folder for temporary files of its own,
`FOLDER/node-1` and so on; Ray's own files are in `FOLDER/ray`. Without `node_ip_address`, with which it hangs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

__all__ = ["main"]

#: How many workers a node has room for.
CORES = 4


def main() -> None:
    """Start the nodes, and end them when the input ends."""
    from ray.cluster_utils import Cluster

    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    (folder / "ray").mkdir()
    os.environ["RAY_TMPDIR"] = str(folder)  # Ray adds its own name to it
    cluster = Cluster()
    try:
        for number in range(1, 1 + count):
            own = folder / f"node-{number}"
            own.mkdir()
            os.environ["TMPDIR"] = str(own)  # inherited by all that runs on the node
            cluster.add_node(num_cpus=CORES, include_dashboard=False)
        print(json.dumps({"address": cluster.address}), flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()

"""What a job's samples are on this processor: run as a program, with a job file, it prints a digest of each stream.

It builds each sample of each stream for two epochs, as workers do, and tells the builder fingerprint as well. So the
same program can run on the processor itself and on an emulated one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import xxhash

ROOT = Path(__file__).resolve().parents[2]


def digests(path: str) -> dict[str, dict[str, Any]]:
    """Return the digest of all samples of each stream, and what workers are compared by."""
    from loader_server.job_file import read_job
    from loader_server.stream import Stream

    job = read_job(path)
    found = {}
    for name in job.recipes:
        stream, state = Stream(job, name), xxhash.xxh3_128()
        for epoch in range(2):
            for sample, raw in enumerate(stream.source.read(range(stream.samples))):
                values = stream.values(epoch, sample, raw)
                for key in sorted(values):
                    state.update(values[key].tobytes())
        found[name] = {
            "samples": state.hexdigest(),
            "builder": stream.builder,
            "steady": stream.steady,
            "processor": stream.builder_parts()["processor"],
            "unproved": stream.unproved_code,
        }
        stream.close()
    return found


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    print(json.dumps(digests(sys.argv[1])))

"""How long it takes to end iterators of tf.data on a busy machine, tuned by TensorFlow and not.

    python -m tests.benchmarks.iterator_ends [--iterators 10] [--age-s 6] [--json]

Rules: TensorFlow alone, no feed: what `trainer_client.tf.private_api` avoids. Iterators are read a little, grow old,
and are dropped one by one while other processes keep both cores busy. The last line is one JSON object: the slowest end
in seconds, and how many took more than half a second, on one device and over the two of a strategy. It may take
minutes.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tests.support.two_devices import mirrored
from trainer_client.tf.private_api import untune_devices, untuned

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUSY = 4
_SLOW_S = 0.5


def _numbers() -> Iterator[int]:
    yield from range(10**9)


def _pipeline() -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(_numbers, output_signature=tf.TensorSpec((), tf.int64))


def _one_device(*, tuned: bool) -> Any:
    return iter((_pipeline() if tuned else untuned(_pipeline())).prefetch(2))


def _two_devices(*, tuned: bool) -> Any:
    data = (_pipeline() if tuned else untuned(_pipeline())).prefetch(2)
    spread = mirrored().distribute_datasets_from_function(lambda _context: data)
    if tuned:
        return iter(spread)
    with untune_devices():
        return iter(spread)


def ended(make: Any, count: int, age_s: float, *, tuned: bool) -> dict[str, float]:
    """Ends of so many iterators, after they were read and have grown old."""
    gc.freeze()  # what is there already needs no looking through
    iterators = [make(tuned=tuned) for _ in range(count)]
    for iterator in iterators:
        for _ in range(3):
            next(iterator)
    del iterator
    time.sleep(age_s)
    took_s = []
    while iterators:
        began_s = time.monotonic()
        iterators.pop()
        gc.collect()
        took_s.append(time.monotonic() - began_s)
    return {"worst_s": round(max(took_s), 3), "slow": sum(one > _SLOW_S for one in took_s), "of": count}


def main() -> None:
    """Measure and say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterators", type=int, default=10)
    parser.add_argument("--age-s", type=float, default=6.0)
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        for _ in range(_BUSY):
            stack.callback(subprocess.Popen([sys.executable, "-c", "while True: pass"]).kill)
        for name, make, count in (
            ("one_device", _one_device, options.iterators),
            ("two_devices", _two_devices, max(1, options.iterators // 3)),
        ):
            for tuned in (False, True):
                key = f"{name}_{'tuned' if tuned else 'untuned'}"
                found[key] = ended(make, count, options.age_s, tuned=tuned)
                if not options.json:
                    print(key, found[key], flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

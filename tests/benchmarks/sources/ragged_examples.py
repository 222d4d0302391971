"""The Examples that the benchmarks of record files read: a ragged list of floats, 1 000 on average, and a label.

Rules: the same for every format, from a seed; further features are the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.support.example_protos import Example

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["ragged_examples"]


def ragged_examples(seed: int, count: int, texts: Mapping[str, bytes] | None = None) -> Iterator[bytes]:
    """So many of them, with these texts in each."""
    random = np.random.default_rng(seed)
    for number in range(count):
        made = Example()
        feature = made.features.feature
        feature["audio"].float_list.value.extend(random.random(random.integers(200, 1800), np.float32))
        feature["label"].int64_list.value.append(number)
        for key, text in (texts or {}).items():
            feature[key].bytes_list.value.append(text)
        yield made.SerializeToString()

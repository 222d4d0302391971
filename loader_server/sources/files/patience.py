"""Reading samples although a disk or a mount fails for a moment.

Rules: a read that fails is tried again after pauses, from the sample that failed; a file that is not the indexed one
fails at once. How long a read may take is `read_ahead`'s business.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shared.errors import ReadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["read_patiently"]

#: Pauses between attempts to read a file: hiccups of disks and network mounts last about that long.
_READ_PAUSES_S = (0.05, 0.2, 0.8)


def read_patiently(
    read: Callable[[Sequence[int]], Iterable[bytes]], samples: Sequence[int], begin: Callable[[int], object]
) -> list[bytes]:
    """Read samples, saying which before each. If the disk fails, go on from that sample after a pause; a file that is
    not the indexed one fails at once.
    """
    raw: list[bytes] = []
    failed_at, pauses_s = -1, iter(_READ_PAUSES_S)
    while len(raw) < len(samples):
        try:
            _read_on(read, samples, begin, raw)
        except OSError as error:
            if len(raw) != failed_at:
                failed_at, pauses_s = len(raw), iter(_READ_PAUSES_S)
            pause_s = next(pauses_s, None)
            if pause_s is None:
                raise ReadError(
                    expected="to read the sample",
                    got=f"{type(error).__name__}: {error}",
                    where=str(error.filename or f"sample {samples[len(raw)]}"),
                    remedy="Check the disk or mount on all loader machines; a running job goes on from its checkpoint.",
                ) from error
            time.sleep(pause_s)
    return raw


def _read_on(
    read: Callable[[Sequence[int]], Iterable[bytes]],
    samples: Sequence[int],
    begin: Callable[[int], object],
    raw: list[bytes],
) -> None:
    """Append what is still to be read, by one call for all of it; each sample's bytes come when it is its turn."""
    left = samples[len(raw) :]
    begin(left[0])
    answers = iter(read(left))
    raw.append(next(answers))
    for sample in left[1:]:
        begin(sample)
        raw.append(next(answers))

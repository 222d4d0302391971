"""Reading samples although a disk or a mount fails for a moment.

Rules: a read that fails is retried after pauses, from the sample that failed; a file that is not the indexed one fails
at once. How long a read may take is decided by `read_ahead`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shared.errors import ReadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["read_patiently"]

#: Back-off between attempts to read a file: hiccups of disks and network mounts last about that long.
_READ_PAUSES_S = (0.05, 0.2, 0.8)


def read_patiently(
    read: Callable[[Sequence[int]], Iterable[bytes]], samples: Sequence[int], begin: Callable[[int], object]
) -> list[bytes]:
    """Return the bytes of these samples; `begin` is called with each sample's number before it is read.

    On an OSError, go on from that sample after a pause, beginning it again, and raise a ReadError once a sample has
    failed four times in a row. Any other error of `read`, such as the ReadError for a file that is not the indexed one,
    passes through at once.
    """
    raw: list[bytes] = []
    # The place in `samples` that failed last, and the pauses that are left for it.
    failed_at, pauses_s = -1, iter(_READ_PAUSES_S)
    while len(raw) < len(samples):
        try:
            _read_on(read, samples[len(raw) :], begin, raw)
        except OSError as error:
            # Another sample than the last time failed, so there was progress: the pauses begin anew.
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
    """Append the bytes of these samples, of which there is at least one, to `raw`, by one call of `read`.

    `read` gives each sample's bytes in turn. Errors of `read` and `begin` pass through; what was read before is in
    `raw`, and is not read again.
    """
    # Each sample is begun before its bytes are asked for, because a read that hangs is blamed on the one begun last.
    # The first is begun before `read` is called: a source that reads all at once does so there.
    begin(samples[0])
    pieces = iter(read(samples))
    raw.append(next(pieces))
    for _, piece in zip(map(begin, samples[1:]), pieces, strict=True):
        raw.append(piece)

"""Whether a failure means that this process has run out of something, and says nothing about the data.

Rules: pure. The causes of an error count as well.
"""

from __future__ import annotations

import errno

__all__ = ["is_exhaustion"]

#: No descriptors left in this process, none left in the system, no memory.
_NUMBERS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


def is_exhaustion(error: BaseException | None) -> bool:
    """Whether descriptors or memory ran out: a fresh process may have some again."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _NUMBERS):
            return True
        error = error.__cause__
    return False

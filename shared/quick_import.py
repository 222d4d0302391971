"""Imports what is large with less work: TensorFlow in four fifths of its time.

While thousands of modules are made Python looks for garbage again and again, where there is none. Rules: it goes on to
look for garbage once the import is done, or has failed.
"""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["quick_import"]


@contextlib.contextmanager
def quick_import() -> Iterator[None]:
    """Import in this block; whatever is garbage then is looked for afterwards."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()

"""Fast imports of large packages: TensorFlow takes four fifths of the usual time, and the process ends sooner.

While thousands of modules are loaded, Python collects garbage again and again, although there is none.

Rules: garbage collection is on again once the import is done, or has failed; objects that exist by then are never
examined again. That would take TensorFlow's million objects several times in each process, once more as it ends: a
second in all.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["quick_import"]


@contextlib.contextmanager
def quick_import() -> Iterator[None]:
    """Suspend garbage collection during the imports of this block; afterwards collect only objects made later.

    If nothing was imported, objects made before stay collectable; if collection was off already, it stays off.
    """
    collecting, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            if len(sys.modules) > modules:  # else nothing was imported, and objects made here may become garbage
                gc.freeze()
            gc.enable()

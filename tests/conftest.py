"""What holds for all tests."""

from __future__ import annotations

import gc
import signal

# A shell lets what it runs in the background ignore Ctrl-C, and so would every process that these tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What collecting made (TensorFlow, thousands of tests) stays to the end: do not look through it for garbage."""
    gc.collect()
    gc.freeze()

"""What holds for all tests."""

from __future__ import annotations

import gc
import logging
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# A shell lets what it runs in the background ignore Ctrl-C, and so would every process that these tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What collecting made (TensorFlow, thousands of tests) stays to the end: do not look through it for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Put back what a command changed that ran in this process: its log went to a stream that pytest closes."""
    logger = logging.getLogger("stoker")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before

"""What holds for all tests."""

from __future__ import annotations

import gc
import logging
import signal
import sys
from typing import TYPE_CHECKING

import hypothesis
import pytest

from shared.quick_import import quick_import
from tests.support.lean_graphs import forget_origins
from tests.support.lean_keras import lean_keras

if TYPE_CHECKING:
    from collections.abc import Generator

# A shell lets what it runs in the background ignore Ctrl-C, and so would every process that these tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run: what failed yesterday fails today. `--hypothesis-profile search` looks for others.
# How long drawing them takes is the machine's matter.
SLOW_IS_FINE = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=SLOW_IS_FINE)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile("suite")

#: What waits comes first and what computes last, because modules that run side by side are taken from both ends: so
#: there is always work for all cores, and nothing long is left for the end. What is short lies between.
WAITS = ("tests/faults/", "tests/end_to_end/", "tests/release/", "tests/conformance/")
COMPUTES = ("tests/trainer_client/",)


#: Where modules are found. Each job's folder comes before, and every import would look through all of them.
_PATH = sys.path[:]

#: How many objects more there are before anybody looks for garbage; Python's own number is 700.
_GARBAGE = 20_000


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Some test modules need TensorFlow, and what is collected stays: there is no garbage."""
    with quick_import(), lean_keras():
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what waits first and what computes last, and change no order otherwise."""
    items.sort(key=lambda item: item.nodeid.startswith(COMPUTES) - item.nodeid.startswith(WAITS))


def pytest_collection_finish() -> None:
    """What collecting made (TensorFlow, thousands of tests) stays to the end: do not look through it for garbage.

    Tests that trace graphs spend a seventh of their time on looking for more of it as often as Python does by itself.
    """
    if "tensorflow" in sys.modules:
        forget_origins()
    gc.freeze()
    gc.set_threshold(_GARBAGE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Leave things as they were. No fixture does it, because ten thousand tests would each set it up.

    A command that ran in this process changed the log, which went to a stream that pytest closes. A test's tiny models
    are lent to the next one, and the folders of its jobs stay on the path, but not for the next module.
    """
    logger = logging.getLogger("stoker")
    before = (logger.handlers[:], logger.level, logger.propagate)
    try:
        return (yield)
    finally:
        is_last = nextitem is None or nextitem.path != item.path
        logger.handlers[:], logger.level, logger.propagate = before
        if (models := sys.modules.get("tests.support.tiny_models")) is not None:
            models.take_back()
            if is_last:
                models.forget()
        if is_last:
            sys.path[:] = _PATH
            if item.nodeid.startswith(COMPUTES):
                _settle()


def _settle() -> None:
    """Let what a module left go, as far as it is garbage, and what stays never be looked through again.

    Later tests that wait for garbage would go through all that was traced before them, for a fifth of a second each
    time. What nobody refers to goes all the same; only circles that are closed later, of what is there now, stay.
    """
    gc.collect()
    gc.freeze()

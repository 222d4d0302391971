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
from tests.support.lean_keras import lean_keras

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

# A shell lets what it runs in the background ignore Ctrl-C, and so would every process that these tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run: what failed yesterday fails today. `--hypothesis-profile search` looks for others.
# How long drawing them takes is the machine's matter.
SLOW_IS_FINE = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=SLOW_IS_FINE)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile("suite")

#: What waits or computes the longest comes first, so that nothing long is left for the end, when only one process would
#: still have work.
SLOW = (
    "tests/faults/",
    "tests/trainer_client/core/test_simulated_worlds.py",
    "tests/trainer_client/tf/",
    "tests/trainer_client/test_callbacks.py",
    "tests/trainer_client/test_early_stop.py",
    "tests/trainer_client/test_validation.py",
    "tests/conformance/",
    "tests/end_to_end/",
    "tests/release/",
    "tests/trainer_client/load_test/",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Some test modules need TensorFlow, and what is collected stays: there is no garbage."""
    with quick_import(), lean_keras():
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow tests first, and change no order otherwise."""
    items.sort(key=lambda item: not item.nodeid.startswith(SLOW))


def pytest_collection_finish() -> None:
    """What collecting made (TensorFlow, thousands of tests) stays to the end: do not look through it for garbage."""
    gc.freeze()


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Put back what a command changed that ran in this process: its log went to a stream that pytest closes."""
    logger = logging.getLogger("stoker")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture(autouse=True)
def models_taken_back() -> Iterator[None]:
    """A test's tiny models are lent to the next one."""
    yield
    if (models := sys.modules.get("tests.support.tiny_models")) is not None:
        models.take_back()


@pytest.fixture(autouse=True, scope="module")
def models_forgotten() -> Iterator[None]:
    """Not to the next module."""
    yield
    if (models := sys.modules.get("tests.support.tiny_models")) is not None:
        models.forget()

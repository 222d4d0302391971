"""Signals that do not interrupt what the main thread waits for, as if they had come just before it began to wait."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["expect_unheard_ctrl_c"]


def _always() -> bool:
    return True


def expect_unheard_ctrl_c(
    wait: Callable[[], object], once: Callable[[], object] = _always, within_s: float = 60.0
) -> None:
    """Another thread takes a Ctrl-C after `once` holds; `wait` is ended by it all the same, within some seconds."""

    def take() -> None:
        wait_until(once, "the main thread is about to wait")
        time.sleep(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread, began_s = threading.Thread(target=take), time.monotonic()

    def take_and_wait() -> None:
        thread.start()  # the signal cannot come before it is expected, however slow this thread is
        wait()

    with pytest.raises(KeyboardInterrupt):
        take_and_wait()
    assert time.monotonic() - began_s < within_s
    thread.join()

"""Signals that do not interrupt what the main thread waits for, as if they had come just before it began to wait."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["unheard_ctrl_c"]


@contextmanager
def unheard_ctrl_c(once: Callable[[], object], within_s: float = 10.0) -> Iterator[None]:
    """Another thread takes a Ctrl-C after `once` holds; the block ends by it all the same, within some seconds."""

    def take() -> None:
        wait_until(once, "the main thread is about to wait")
        time.sleep(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread, began_s = threading.Thread(target=take), time.monotonic()
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    assert time.monotonic() - began_s < within_s
    thread.join()

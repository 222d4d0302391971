"""Staging: a thread that makes elements ahead, so that the consumer only has to take them.

Rules: a bounded number is made ahead. The error that stops the thread is raised where the next element is asked for,
after those that were made before. A thread whose elements nobody wants any more ends after the element in hand. Before
Python shuts down it is waited for, because a thread that is inside TensorFlow then could not come back. It must not
know what it makes.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from trainer_client.tf import exit_guard

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["Staging"]


class Staging(AbstractContextManager["Staging"]):
    """Results of `make`, call after call, until it raises; `ahead` of them are made before they are asked for."""

    def __init__(self, make: Callable[[], Any], ahead: int) -> None:
        self._make = make
        self._made = SimpleQueue[tuple[Any, BaseException | None]]()
        #: Number of elements that may be made now.
        self._room = threading.Semaphore(ahead)
        self._is_over = False
        exit_guard.watch(self)
        exit_guard.enter(self)
        threading.Thread(target=self._run, name="stoker-staging", daemon=True).start()

    def wait_next(self) -> Any:
        """Wait for the next element; raise the error of `make` in its place. Do not call it again after an error."""
        element, error = self._made.get()
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback has this frame: a cycle that would keep both
        self._room.release()
        return element

    def end(self) -> None:
        """Make none after the element in hand, and drop all made ones; nobody may call `wait_next` from then on."""
        self._is_over = True
        self._room.release()  # the thread may wait for room, and ends once it finds that it is over
        self._let_go()

    def _run(self) -> None:
        """Make elements while there is room and somebody wants them; pass on the error that stops it."""
        try:
            while self._room.acquire() and not self._is_over:
                self._made.put((self._make(), None))
        except BaseException as error:  # raised again by `wait_next`, in the consumer's thread
            self._made.put((None, error))
        finally:
            if self._is_over:  # `end` has dropped what was there; this thread may have put one more since
                self._let_go()
            exit_guard.leave(self)

    def _let_go(self) -> None:
        """Drop what was made, above all an error: its traceback has a frame of ours, which has this object."""
        with suppress(Empty):
            while True:
                self._made.get_nowait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

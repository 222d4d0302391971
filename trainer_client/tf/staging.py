"""A thread that makes elements before they are asked for, so that whoever asks only takes what is there.

Rules: so many are made ahead and no more. What stops the making is raised where the next element is asked for, behind
those that were made before. A thread whose elements nobody wants any more ends when it comes back from the one in hand.
Before Python shuts down it is waited for, because a thread that is inside TensorFlow then could not come back. It must
not know what it makes.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from trainer_client.tf import exit_guard

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["Staging"]


class Staging:
    """What `make` returns, call after call, until it raises; `ahead` of them are made before they are asked for."""

    def __init__(self, make: Callable[[], Any], ahead: int) -> None:
        self._make = make
        self._made = SimpleQueue[tuple[Any, BaseException | None]]()
        #: How many may be made now.
        self._room = threading.Semaphore(ahead)
        self._is_over = False
        exit_guard.watch(self)
        exit_guard.enter(self)
        threading.Thread(target=self._run, name="stoker-staging", daemon=True).start()

    def wait_next(self) -> Any:
        """The next one; not to be called again after an error."""
        made, error = self._made.get()
        try:
            if error is not None:
                raise error
        finally:
            del error  # whose traceback has this frame
        self._room.release()
        return made

    def end(self) -> None:
        """Make no more, and let go of what was made."""
        self._is_over = True
        self._room.release()
        self._let_go()

    def _run(self) -> None:
        try:
            while self._room.acquire() and not self._is_over:
                self._made.put((self._make(), None))
        except BaseException as error:
            self._made.put((None, error))
        finally:
            if self._is_over:
                self._let_go()
            exit_guard.leave(self)

    def _let_go(self) -> None:
        """Of an error above all: its traceback has a frame of ours, which has this object."""
        with suppress(Empty):
            while True:
                self._made.get_nowait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

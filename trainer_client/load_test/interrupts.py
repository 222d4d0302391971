"""Ctrl-C and SIGTERM as something to wait for: an interruption is raised where we wait, and nowhere else.

So whatever was begun between two waits (a process, a folder) is known to the code that has to end it. A signal that
comes after the last wait is raised at the end of the block.
"""

from __future__ import annotations

import select
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from shared.commands import Terminated

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType

__all__ = ["Interrupts"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Context that holds back both signals while the block lasts; for the main thread."""

    def __enter__(self) -> Self:
        self._receiving, self._sending = socket.socketpair()
        self._sending.setblocking(False)  # noqa: FBT003 - its only parameter
        self._interruption: type[KeyboardInterrupt] | None = None
        self._before: list[Any] = [signal.signal(number, self._note) for number in _SIGNALS]
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._interruption = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        with suppress(BlockingIOError):
            self._sending.send(b"!")

    def wait(self, files: Sequence[int], timeout_s: float | None) -> list[int]:
        """Return the readable files once there are any, or after the timeout.

        Raise KeyboardInterrupt (or Terminated) as soon as a signal comes, or if one came before.
        """
        ours = self._receiving.fileno()
        # Our socket beside the files: a handler that only sets a flag would not end a `select` that Python resumes.
        ready, _, _ = select.select([*files, ours], [], [], timeout_s)
        if self._interruption is not None:
            raise self._interruption
        return [file for file in ready if file != ours]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in zip(_SIGNALS, self._before, strict=True):
            signal.signal(number, handler)
        self._receiving.close()
        self._sending.close()
        if self._interruption is not None and error is None:
            raise self._interruption

"""Ctrl-C while TensorFlow waits for a batch: without help it is noticed only once a batch arrives.

While the main thread is inside TensorFlow it runs no Python, and so no signal handler. Python still writes the signal's
number to a file descriptor at once; a thread of ours reads it there and stops the feeds, whose passes then raise and
return control to the main thread. KeyboardInterrupt must not be raised in Python that TensorFlow calls: in a pass that
the main thread reads, TensorFlow would turn it into an unknown error, and in the constructor of one of its errors into
a RuntimeError. So our handler does what Python's own does, but only once the main thread is out of such code.

A user's own handler runs in the main thread if that thread reads batches itself. Python misses a signal that arrives
just as it begins to wait, so each signal wakes whoever is waiting.

Rules: only feeds that the main thread began to watch are stopped, and only if SIGINT has Python's handler or ours (a
program that installs another decides alone). The descriptor's bytes are passed on to its previous owner. Descriptor and
handler are put back when the last feed is closed.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

__all__ = ["forget", "raise_pending", "watch"]


#: Python functions that TensorFlow calls, by name, and the files that they are in.
_CALLED = {"__init__": ("errors_impl.py", "eager/core.py"), "__call__": ("ops/script_ops.py",)}


class Interruptible(Protocol):
    """What can be stopped: the session of a feed."""

    def interrupt(self, error: BaseException, /) -> None:
        """Make blocked and later reads raise this."""

    def nudge(self) -> None:
        """Wake whoever is waiting: a signal that arrives just as Python begins to wait does not."""


class _Watcher:
    """Owns the wakeup descriptor and the handler until `restore`; both ends run in the main thread."""

    def __init__(self, feeds: Iterable[Interruptible]) -> None:
        self._feeds = feeds
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)  # noqa: FBT003 - named so by the standard library
        self._previous = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _raise_once_outside)
        self._thread = threading.Thread(target=self._run, name="stoker-interrupts", daemon=True)
        self._thread.start()

    def restore(self) -> None:
        """Put both back, unless somebody replaced them meanwhile."""
        if signal.getsignal(signal.SIGINT) is _raise_once_outside:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        found = signal.set_wakeup_fd(self._previous)
        if found != self._write.fileno():
            signal.set_wakeup_fd(found)
        self._write.close()
        self._thread.join()
        self._read.close()

    def _run(self) -> None:
        while numbers := self._read.recv(64):
            if self._previous != -1:
                with suppress(OSError):
                    os.write(self._previous, numbers)
            if signal.SIGINT in numbers:
                self._interrupt()
            for feed in list(self._feeds):
                feed.nudge()

    def _interrupt(self) -> None:
        if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _raise_once_outside):
            for feed in list(self._feeds):
                feed.interrupt(KeyboardInterrupt())


def _raise_once_outside(_number: int, frame: FrameType | None) -> None:
    outside = _outside(frame)
    if outside is frame or outside is None:
        raise KeyboardInterrupt
    _raise_on_return_to(outside)


def _outside(frame: FrameType | None) -> FrameType | None:
    """The innermost frame whose exceptions are not lost; in finalisers, and where TensorFlow calls Python, they are."""
    outside = frame
    while frame is not None:
        name, path = frame.f_code.co_name, frame.f_code.co_filename
        frame = frame.f_back
        if name == "__del__" or path.endswith(_CALLED.get(name, ())):
            outside = frame
    return outside


def _raise_on_return_to(frame: FrameType) -> None:
    """Only a trace function is called as soon as a frame resumes, be it after a return or after an exception."""
    previous = sys.gettrace()

    def trace(*_event: object) -> None:
        sys.settrace(previous)
        frame.f_trace = None
        raise KeyboardInterrupt

    frame.f_trace = trace
    sys.settrace(lambda *_event: None)


def raise_pending() -> None:
    """Let a pending Ctrl-C be raised here: entering a function is enough."""


_feeds: weakref.WeakSet[Interruptible] = weakref.WeakSet()
_watchers: list[_Watcher] = []


def watch(feed: Interruptible) -> None:
    """Stop this feed on Ctrl-C; outside the main thread nothing can be done, so nothing happens."""
    if threading.current_thread() is not threading.main_thread():
        return
    _feeds.add(feed)
    if not _watchers:
        _watchers.append(_Watcher(_feeds))


def forget(feed: Interruptible) -> None:
    """The feed is closed; with the last one, descriptor and handler go back to their previous owners."""
    _feeds.discard(feed)
    if not _feeds and _watchers and threading.current_thread() is threading.main_thread():
        _watchers.pop().restore()

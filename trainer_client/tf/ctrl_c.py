"""Ctrl-C while TensorFlow waits for a batch: without help it is noticed only once a batch arrives.

A main thread inside TensorFlow runs no Python, so no signal handler. Python still writes the signal's number to a file
descriptor at once; a thread of ours reads it there and stops the feeds, whose passes then raise and give the main
thread back. Python that TensorFlow calls is no place to raise KeyboardInterrupt in: a pass that the main thread reads
itself would make an unknown error of it, a constructor of TensorFlow's errors a RuntimeError. So our handler is
Python's own, except that it waits until the main thread is out of these.

A handler of the user's own runs in the main thread where that reads by itself. Python notices a signal too late that
comes just as it begins to wait; so whoever waits is nudged for each.

Rules: only feeds that the main thread began to watch; only where SIGINT has Python's handler or ours (whoever installs
another decides alone); the descriptor's bytes go on to its previous owner; both are put back with the last feed.
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


#: What TensorFlow calls from within: functions, and the files that they are in.
_CALLED = {"__init__": ("errors_impl.py", "eager/core.py"), "__call__": ("ops/script_ops.py",)}


class Interruptible(Protocol):
    """What is stopped: a feed."""

    def interrupt(self, error: BaseException, /) -> None:
        """Make blocked and later reads raise this."""

    def nudge(self) -> None:
        """Let whoever waits look up: a signal that comes just as Python begins to wait does not wake it."""


class _Watcher:
    """Owns wakeup descriptor and handler from start to `restore`, both in the main thread."""

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
        """Give both back, unless somebody replaced them meanwhile: then theirs stay."""
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
    """The innermost frame in which no exception is lost: in a finaliser, and where TensorFlow calls Python, it is."""
    outside = frame
    while frame is not None:
        name, path = frame.f_code.co_name, frame.f_code.co_filename
        frame = frame.f_back
        if name == "__del__" or path.endswith(_CALLED.get(name, ())):
            outside = frame
    return outside


def _raise_on_return_to(frame: FrameType) -> None:
    """A trace function is the one thing that Python calls as soon as a frame goes on, by return or by exception."""
    previous = sys.gettrace()

    def trace(*_event: object) -> None:
        sys.settrace(previous)
        frame.f_trace = None
        raise KeyboardInterrupt

    frame.f_trace = trace
    sys.settrace(lambda *_event: None)


def raise_pending() -> None:
    """Let a Ctrl-C that waits for its handler be raised here: entering a function is enough."""


_feeds: weakref.WeakSet[Interruptible] = weakref.WeakSet()
_watchers: list[_Watcher] = []


def watch(feed: Interruptible) -> None:
    """Stop this feed on Ctrl-C; outside the main thread nothing can be done, and nothing is."""
    if threading.current_thread() is not threading.main_thread():
        return
    _feeds.add(feed)
    if not _watchers:
        _watchers.append(_Watcher(_feeds))


def forget(feed: Interruptible) -> None:
    """The feed is closed; with the last one, descriptor and handler go back to their owners."""
    _feeds.discard(feed)
    if not _feeds and _watchers and threading.current_thread() is threading.main_thread():
        _watchers.pop().restore()

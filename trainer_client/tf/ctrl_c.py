"""Ctrl-C while TensorFlow waits for a batch: without help it would be handled only once a batch arrives.

While the main thread is inside TensorFlow it runs no Python, and so no signal handler. Python still writes the signal's
number to a file descriptor at once; a thread of ours reads it there and stops the feeds, whose passes then raise and
return control to the main thread. KeyboardInterrupt must not be raised in Python that TensorFlow calls: in a pass that
the main thread reads, TensorFlow would turn it into an unknown error, and in the constructor of one of its errors into
a RuntimeError. So our handler does what Python's own does, but only once the main thread is out of such code.

A Ctrl-C is pending from the moment it is heard until its KeyboardInterrupt is raised: a pass that TensorFlow opens
meanwhile must not treat it as handled, and raises it as well. A KeyboardInterrupt that Python drops, because it was
raised in a weak reference's callback (there are many while TensorFlow traces), becomes pending again, and is raised
after that callback.

A user's own handler runs in the main thread if that thread reads batches itself. Python misses a signal that arrives
just as it begins to wait, so each signal wakes all waiting readers.

Rules: only feeds that the main thread began to watch are stopped, and only if SIGINT has Python's handler, that of a
command of ours, or the one here (a program that installs another decides alone); SIGTERM counts where a command of ours
makes it act the same. The descriptor's bytes are passed on to its previous owner. Whatever was replaced is restored
when the last feed is closed.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import weakref
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from shared.commands import is_usual_ctrl_c, sigterm_is_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

__all__ = ["Interruption", "deferred", "forget", "is_pending", "raise_pending", "watch"]


#: Python functions that TensorFlow calls, by name, and the files that they are in.
_CALLED = {"__init__": ("errors_impl.py", "eager/core.py"), "__call__": ("ops/script_ops.py",)}


class Interruptible(Protocol):
    """Reader that can be stopped: the session of a feed."""

    def interrupt(self, error: BaseException, /) -> None:
        """Make blocked and later reads raise this."""

    def nudge(self) -> None:
        """Wake waiting readers: a signal that arrives just as Python begins to wait does not."""


class _Watcher:
    """Owner of what was replaced, until `restore`; it begins and ends in the main thread."""

    def __init__(self, feeds: Iterable[Interruptible]) -> None:
        self.pending = False
        self._feeds = feeds
        self._hearing = threading.RLock()  # a handler may interrupt a handler
        # Sockets and not a pipe, which `_run` could not look into without reading.
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)  # noqa: FBT003 - named so by the standard library
        self._previous = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._previous_hook, sys.unraisablehook = sys.unraisablehook, self._on_dropped
        self._previous_handler = signal.getsignal(signal.SIGINT)
        if is_usual_ctrl_c(self._previous_handler):
            signal.signal(signal.SIGINT, _raise_once_outside)
        self._thread = threading.Thread(target=self._run, name="stoker-interrupts", daemon=True)
        self._thread.start()

    def restore(self) -> None:
        """Restore what was replaced, unless somebody else replaced it meanwhile.

        The thread has ended, and its sockets are closed, when this returns.
        """
        if signal.getsignal(signal.SIGINT) is _raise_once_outside:
            signal.signal(signal.SIGINT, self._previous_handler)
        if sys.unraisablehook == self._on_dropped:
            sys.unraisablehook = self._previous_hook
        # If somebody replaced our descriptor meanwhile, theirs goes back in place.
        current = signal.set_wakeup_fd(self._previous)
        if current != self._write.fileno():
            signal.set_wakeup_fd(current)
        self._write.close()  # the thread reads an end of file, and ends
        self._thread.join()
        self._read.close()

    def _run(self) -> None:
        # Looked at and left there: `hear` reads it under its lock, in this thread or in the main one.
        while self._read.recv(1, socket.MSG_PEEK):
            self.hear()

    def hear(self) -> None:
        """Act on the signals that came, if any; called by our thread, and by the main thread, which may be faster.

        Pass the bytes on to the descriptor that was set before ours, interrupt the feeds if the signal was a Ctrl-C
        that is ours to handle and not held (`_is_held`), and wake them in any case.
        """
        # Reading the number and setting `pending` are one step: a thread that finds nothing left to read must already
        # see it as pending.
        with self._hearing:
            try:
                numbers = self._read.recv(64, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            interrupted = _interrupts(numbers) and _decides(signal.getsignal(signal.SIGINT))
            self.pending |= interrupted and signal.getsignal(signal.SIGINT) is _raise_once_outside
        if self._previous != -1:  # another descriptor was set before ours, such as asyncio's: it gets the bytes as well
            with suppress(OSError):
                os.write(self._previous, numbers)
        if interrupted and not _is_held(numbers):
            self._interrupt()
        # In any case: Python misses a signal that arrives just as the main thread begins to wait.
        for feed in list(self._feeds):
            feed.nudge()

    def _interrupt(self) -> None:
        for feed in list(self._feeds):
            feed.interrupt(KeyboardInterrupt())

    def _on_dropped(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Make a dropped KeyboardInterrupt of the main thread pending again, and pass on any other exception.

        Python cannot raise it itself, because it happened in a callback whose caller handles no exceptions.
        """
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and issubclass(unraisable.exc_type, KeyboardInterrupt):
            self.pending = True
            self._interrupt()
            frame = sys._getframe(1)  # noqa: SLF001 - public but for its name
            _raise_on_return_to(_outside(frame) or frame)
        else:
            self._previous_hook(unraisable)


def _interrupts(numbers: bytes) -> bool:
    return signal.SIGINT in numbers or (signal.SIGTERM in numbers and sigterm_is_ctrl_c())


def _decides(handler: object) -> bool:
    """Return whether SIGINT has Python's handler, a command's or one of here: another program's decides alone."""
    return is_usual_ctrl_c(handler) or handler in (_raise_once_outside, _note)


def _raise_once_outside(_number: int, frame: FrameType | None) -> None:
    """Handle SIGINT: raise KeyboardInterrupt here, or as soon as the main thread leaves code that would lose it."""
    for watcher in _watchers:
        watcher.hear()
    outside = _outside(frame)
    if outside is frame or outside is None:
        raise _interruption()
    _raise_on_return_to(outside)


def _interruption() -> KeyboardInterrupt:
    """Return the exception for a pending Ctrl-C, which is pending no longer."""
    for watcher in _watchers:
        watcher.pending = False
    return KeyboardInterrupt()


def _outside(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame whose exceptions are not lost.

    They are lost in finalisers and where TensorFlow calls Python, so the result is the caller of the outermost such
    frame, or None if it has none; without such a frame it is this frame itself.
    """
    outside = frame
    while frame is not None:
        name, path = frame.f_code.co_name, frame.f_code.co_filename
        frame = frame.f_back
        if name == "__del__" or path.endswith(_CALLED.get(name, ())):
            outside = frame
    return outside


def _raise_on_return_to(frame: FrameType) -> None:
    """Have the pending Ctrl-C raised as KeyboardInterrupt as soon as a frame resumes.

    Only a trace function is called then, be it after a return or after an exception.
    """
    # Whatever traced before goes on: a debugger, or a measurement of coverage.
    previous = sys.gettrace()

    def trace(*_event: object) -> None:
        sys.settrace(previous)
        frame.f_trace = None
        raise _interruption()

    frame.f_trace = trace
    sys.settrace(lambda *_event: None)


class Interruption:
    """Whether somebody asked to stop; with `reads_on`, only a second signal stops feeds."""

    def __init__(self, *, reads_on: bool = False) -> None:
        self.is_asked = False
        self.reads_on = reads_on
        #: Number of times that each signal came.
        self.heard: Counter[int] = Counter()


_deferring: list[Interruption] = []


@contextmanager
def deferred(*, reads_on: bool = False) -> Iterator[Interruption]:
    """Defer a first Ctrl-C in the block, so that it can leave nothing half done; yield the Interruption to ask.

    A first Ctrl-C raises KeyboardInterrupt only where a feed is read; the block may also ask the Interruption. A second
    one is raised wherever the main thread is. With `reads_on`, feeds are read on after the first. Outside the main
    thread, and where a program handles SIGINT itself, nothing is deferred.
    """
    interruption, before = Interruption(reads_on=reads_on), signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not _decides(before):
        yield interruption
        return
    _deferring.append(interruption)
    signal.signal(signal.SIGINT, _note)
    try:
        yield interruption
    finally:
        _deferring.remove(interruption)
        signal.signal(signal.SIGINT, before)


def _is_held(numbers: bytes) -> bool:
    """Return whether feeds are read on in spite of these signals: a block `deferred(reads_on=True)` hears the first.

    Count the signals for each such block.
    """
    holding = [interruption for interruption in _deferring if interruption.reads_on]
    for interruption in holding:
        interruption.heard.update(number for number in numbers if _interrupts(bytes([number])))
    # Counted by signal: a SIGTERM raises a SIGINT, which is no second request.
    return any(max(interruption.heard.values()) == 1 for interruption in holding)


def _note(number: int, frame: FrameType | None) -> None:
    """Handle SIGINT inside `deferred`: note a first one, treat a second as `_raise_once_outside` does."""
    if any(interruption.is_asked for interruption in _deferring):
        _raise_once_outside(number, frame)
    for interruption in _deferring:
        interruption.is_asked = True
    # Our thread may not have read the signal yet, and the main thread is about to read a feed.
    for watcher in _watchers:
        watcher.hear()


def is_pending() -> bool:
    """Return whether a Ctrl-C was heard whose KeyboardInterrupt is still to be raised in the main thread."""
    return any(watcher.pending for watcher in _watchers)


def raise_pending() -> None:
    """Let a pending Ctrl-C be raised here: entering a function is enough for Python to run signal handlers."""


_feeds: weakref.WeakSet[Interruptible] = weakref.WeakSet()
_watchers: list[_Watcher] = []


def watch(feed: Interruptible) -> None:
    """Stop this feed on Ctrl-C; does nothing outside the main thread, where signals cannot be watched."""
    if threading.current_thread() is not threading.main_thread():
        return
    _feeds.add(feed)
    if not _watchers:
        _watchers.append(_Watcher(_feeds))


def forget(feed: Interruptible) -> None:
    """Stop watching a closed feed; with the last one, descriptor and handlers go back to their previous owners.

    Outside the main thread they stay as they are.
    """
    _feeds.discard(feed)
    if not _feeds and _watchers and threading.current_thread() is threading.main_thread():
        _watchers.pop().restore()

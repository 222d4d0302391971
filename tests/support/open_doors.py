"""Lets everybody into the ports of a context, where a test has no guard: libzmq asks somebody, or lets nobody in."""

from __future__ import annotations

import contextlib
import threading

import zmq

__all__ = ["let_all_in"]


def let_all_in(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Until the context ends; harmless where it was done before."""
    asked = zmq.Context.shadow(context.underlying).socket(zmq.REP)  # `destroy` would close it under its thread
    asked.linger = 0
    try:
        asked.bind("inproc://zeromq.zap.01")
    except zmq.ZMQError:
        asked.close()
        return

    def answer() -> None:
        with asked, contextlib.suppress(zmq.ZMQError):
            while True:
                version, number, *_ = asked.recv_multipart()
                asked.send_multipart([version, number, b"200", b"OK", b"somebody", b""])

    threading.Thread(target=answer, daemon=True).start()

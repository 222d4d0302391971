"""A real worker with one oddity: it lies about each batch, or names another address than its own.

    python -m tests.support.odd_worker digest worker job.toml --coordinator tcp://127.0.0.1:7400
    python -m tests.support.odd_worker at=tcp://127.0.0.1:7500 worker job.toml --coordinator tcp://127.0.0.1:7400

All else is as usual: it registers with the right fingerprint, and builds what it is asked for.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from loader_server import cli, sending, worker
from shared.messages import Message, Pushed, WireShape

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LIES"]

#: What is said of a batch, by name.
LIES: dict[str, Callable[[Pushed], Pushed]] = {
    "digest": lambda said: replace(said, digest=said.digest ^ 1),
    "shape": lambda said: replace(said, shape=WireShape(said.shape.rows + 1, said.shape.lengths)),
    "dtype": lambda said: replace(said, nbytes=2 * said.nbytes),  # as if all were twice as wide
    "number": lambda said: replace(said, number=said.number + 1),
    "epoch": lambda said: replace(said, epoch=said.epoch + 1),
    "empty": lambda said: replace(said, empty=not said.empty),
}


def _lie(lie: Callable[[Pushed], Pushed]) -> None:
    encode = sending.encode

    def encode_a_lie(message: Message) -> bytes:
        return encode(lie(message) if isinstance(message, Pushed) else message)

    sending.encode = encode_a_lie


if __name__ == "__main__":
    oddity, arguments = sys.argv[1], sys.argv[2:]
    if oddity.startswith("at="):
        worker.advertised = lambda *_: oddity.removeprefix("at=")
    else:
        _lie(LIES[oddity])
    cli.main(arguments)

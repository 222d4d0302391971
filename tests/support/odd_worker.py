"""A real worker with one oddity: it lies about each batch, or names another address than its own.

    python -m tests.support.odd_worker digest worker job.toml --coordinator tcp://127.0.0.1:7400
    python -m tests.support.odd_worker at=tcp://127.0.0.1:7500 worker job.toml …
    python -m tests.support.odd_worker sealed=7501:port.txt worker job.toml …

The last one names port 7501 for sealed payloads, and writes into the file which one it is really. All else is as
usual: it registers with the right fingerprint, and builds what it is asked for.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader_server import cli
from loader_server.worker import registration, sender, service
from shared.wire.message_parts import WireShape
from shared.wire.messages import Message, Pushed

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LIES"]

#: Lies about a batch, by name.
LIES: dict[str, Callable[[Pushed], Pushed]] = {
    "digest": lambda header: replace(header, digest=header.digest ^ 1),
    "shape": lambda header: replace(header, shape=WireShape(header.shape.rows + 1, header.shape.lengths)),
    "dtype": lambda header: replace(header, nbytes=2 * header.nbytes),  # as if all were twice as wide
    "number": lambda header: replace(header, number=header.number + 1),
    "epoch": lambda header: replace(header, epoch=header.epoch + 1),
    "empty": lambda header: replace(header, empty=not header.empty),
}


def _lie(lie: Callable[[Pushed], Pushed]) -> None:
    encode = sender.encode

    def encode_a_lie(message: Message) -> bytes:
        return encode(lie(message) if isinstance(message, Pushed) else message)

    sender.encode = encode_a_lie


class _OddSender(sender.Sender):
    stated_port = 0
    file = Path()

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.file.write_text(str(self.sealed_port))
        self.sealed_port = self.stated_port


def _become(oddity: str) -> None:
    kind, _, value = oddity.partition("=")
    if kind == "at":
        registration.find_reachable_endpoint = lambda *_: value
    elif kind == "sealed":
        port, _, file = value.partition(":")
        _OddSender.stated_port, _OddSender.file = int(port), Path(file)
        service.Sender = _OddSender
    else:
        _lie(LIES[kind])


if __name__ == "__main__":
    _become(sys.argv[1])
    cli.main(sys.argv[2:])

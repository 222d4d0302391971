"""The chief's offer that other workers take part in an evaluation of the last cut, as the first server keeps it.

Rules: pure. An offer holds as long as the values of its cut are there: a later cut, another share or the chief ends it.
A message of the chief that comes after a newer one of its own counts for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire.topics import server_messages as m

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EvaluationOffer"]


class EvaluationOffer:
    """The last offer, if it was not ended."""

    def __init__(self) -> None:
        self._offer: m.OfferEvaluation | None = None
        #: The trainer that made the last offer, and the serial of its message.
        self._made_by = (0, 0)

    def take(self, message: m.OfferEvaluation) -> bool:
        """Note an offer, or its end if it names no cut; return False, and change nothing, if the message is outdated.

        It is outdated if the same trainer has sent one with a higher serial.
        """
        # What was asked twice may come late: it must not offer again what was ended since.
        trainer, serial = self._made_by
        if message.trainer == trainer and message.serial < serial:
            return False
        self._made_by = (message.trainer, message.serial)
        self._offer = message if message.cut else None
        return True

    def end(self) -> None:
        """Forget the offer, as its values are gone."""
        self._offer = None

    def answer(self, message: m.AskEvaluation, has_cut: Callable[[int], bool], over: str) -> m.OfferedEvaluation:
        """Return the answer to a worker, without an evaluation if there is none whose cut is there.

        It announces a frame unless the worker knows the evaluation. `over` is why the run is over, passed on.
        """
        offer = self._offer
        if offer is None or not has_cut(offer.cut):
            return m.OfferedEvaluation(
                serial=message.serial, cut=0, epoch=0, step=0, label="", streams=(), over=over, nbytes=0
            )
        return m.OfferedEvaluation(
            serial=message.serial, cut=offer.cut, epoch=offer.epoch, step=offer.step, label=offer.label,
            streams=offer.streams, over=over, nbytes=0 if message.known == offer.cut else offer.nbytes,
        )  # fmt: skip

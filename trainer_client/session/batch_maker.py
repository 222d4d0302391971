"""Batches made from slots: views of a slot's own bytes, copies, and stacks of small batches.

Rules: runs in the consumer's thread. A batch is a view of its slot, and the slot comes back when the last view goes. A
consumer that holds nearly all slots is first asked to let go, and then given copies: the feed never waits for it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from shared.wire.batch_layout import STRING
from shared.wire.strings import StringArray, arrays_of
from trainer_client.batch import Batch, owned

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from shared.wire.batch_layout import Layout, Tensor
    from trainer_client.network.outbox import OfferedBatch
    from trainer_client.network.receiver import Receiver

__all__ = ["BatchMaker"]

#: How long to wait for a consumer to let go of slots before it is given a copy, and how often to look.
_PATIENCE_S = 0.02
_LOOK_AGAIN_S = 0.0005


class BatchMaker:
    """The maker of one feed's batches."""

    def __init__(self, receiver: Receiver) -> None:
        #: Called in the consumer's thread when slots run short, before copies are made, so that a framework drops some.
        self.on_short_of_slots: Callable[[], None] | None = None
        #: How many batches were copied out because the consumer held too many slots.
        self.copied = 0
        self._receiver = receiver
        self._warned_of_copies = False

    def make(self, offered: OfferedBatch, settle: Callable[..., None] | None = None) -> Batch:
        """Return the batch in this item's slot; `settle`, in queue mode, reports its outcome.

        It views the slot, or holds a copy if the consumer keeps nearly all slots or the slot is the reserve. Errors of
        `on_short_of_slots` pass through.
        """
        layout = self._layout_of(offered)
        data = self._bytes_of(offered, layout)
        return Batch(arrays_of(layout, data), data, offered.header, settle, self._receiver, offered.built_by)

    def _layout_of(self, offered: OfferedBatch) -> Layout:
        layout = self._receiver.spec.layout(offered.header.shape)
        assert layout is not None
        return layout

    def _bytes_of(self, offered: OfferedBatch, layout: Layout) -> NDArray[np.uint8]:
        """Return the slot's bytes, which keep the slot lent as long as they live, or a copy of them.

        It is a copy if the slot is the reserve, or if the consumer holds nearly all slots. Errors of
        `on_short_of_slots` pass through.
        """
        receiver = self._receiver
        data = receiver.memory.slot(offered.slot)[: layout.nbytes]
        # The reserve slot serves one head after another, so a consumer that keeps its batches must never hold it.
        copied = offered.slot == receiver.stream.slots.reserve or not self._make_room()
        return data.copy() if copied else owned(data, offered)

    def stack(self, offered_batches: Sequence[OfferedBatch], keys: Collection[str]) -> dict[str, NDArray[np.generic]]:
        """Return an array for each of these keys, with the batches (all of one shape) along a new first axis.

        Keys that batches lack are left out. A single batch is not copied, unless slots run short or its slot is the
        reserve. Several are copied, and their slots may come back at once. Errors of `on_short_of_slots` pass through.
        """
        layout = self._layout_of(offered_batches[0])
        if len(offered_batches) == 1:
            data = self._bytes_of(offered_batches[0], layout)
            stacked = {key: array[None] for key, array in layout.arrays(data).items() if key in keys}
            return stacked | {t.key: _stacked_strings(t, [data]) for t in layout.strings if t.key in keys}
        payloads = [self._receiver.memory.slot(offered.slot) for offered in offered_batches]
        return {
            tensor.key: _stacked_strings(tensor, payloads) if tensor.dtype == STRING else _stack_of(tensor, payloads)
            for tensor in layout.tensors
            if tensor.key in keys
        }

    def _make_room(self) -> bool:
        """Ask a consumer that holds nearly all slots to let go; return False if this batch has to be copied out.

        Return True at once if it holds fewer. Without a framework to ask (`on_short_of_slots`, whose errors pass
        through), the batch is copied at once, else after 20 ms; copies are counted.
        """
        outbox, most = self._receiver.outbox, max(1, self._receiver.stream.slots.slots - 2)
        if not outbox.holds_more_than(most):  # the batch at hand counts as held
            return True
        if self.on_short_of_slots is not None:
            self.on_short_of_slots()
            until_s = time.monotonic() + _PATIENCE_S
            while outbox.holds_more_than(most) and time.monotonic() < until_s:
                time.sleep(_LOOK_AGAIN_S)
            if not outbox.holds_more_than(most):
                return True
        self._count_copy(most)
        return False

    def _count_copy(self, most: int) -> None:
        self.copied += 1
        if not self._warned_of_copies:
            self._warned_of_copies = True
            self._receiver.log.warning("batches are copied out, because the consumer keeps many", kept=most)


def _stack_of(tensor: Tensor, payloads: Sequence[NDArray[np.uint8]]) -> NDArray[np.generic]:
    raw = np.empty((len(payloads), tensor.nbytes), np.uint8)
    for place, payload in zip(raw, payloads, strict=True):
        place[:] = tensor.lies_in(payload)
    return raw.view(tensor.dtype).reshape(len(payloads), *tensor.shape)


def _stacked_strings(tensor: Tensor, payloads: Sequence[NDArray[np.uint8]]) -> NDArray[np.object_]:
    """Return the strings of several batches as bytes; of packed rows, as many for each row as the fullest one has."""
    batches = [StringArray(tensor.lies_in(payload), tensor.shape).as_bytes() for payload in payloads]
    widths = {batch.shape[1:] for batch in batches}
    if len(widths) == 1:
        return np.stack(batches)
    stacked = np.full((len(batches), batches[0].shape[0], max(widths)[0]), b"", object)
    for place, batch in zip(stacked, batches, strict=True):
        place[:, : batch.shape[1]] = batch
    return stacked

"""Rows of embedding tables before any gradient has met them, and the server that each row belongs to.

Rules: pure. A row depends on the table's seed, its name and the id, and on nothing else: not on when or by whom it is
asked for, how many servers there are, or which rows there were before. Words come from our own hash, so a library's
next version changes no table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shared.hashing import Words, hashed, key_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shared.wire.message_parts import TableForm

__all__ = ["initial_rows", "key_of_table", "servers_of"]

#: The key under which ids are hashed to find a row's server.
_SERVER_KEY = 0


def initial_rows(form: TableForm, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return a row of `form.dim` numbers for each id, in order; they depend on nothing but the form and the id."""
    shape = (len(ids), form.dim)
    if form.initializer == "constant":
        return np.full(shape, form.first, np.float32)
    key = key_of_table(form)
    # The hash of an id is where its row's numbers begin; so far apart that rows do not share any.
    words: Words = np.add(hashed(ids, key)[:, np.newaxis], np.arange(form.dim, dtype=np.uint64), dtype=np.uint64)
    if form.initializer == "uniform":
        drawn = form.first + (form.second - form.first) * _fractions(hashed(words, key))
    else:  # normal, by the transform of Box and Muller
        radius = np.sqrt(-2.0 * np.log(_fractions(hashed(words, key))))
        drawn = form.first + form.second * radius * np.cos(2 * np.pi * _fractions(hashed(words, ~key)))
    return drawn.astype(np.float32)


def key_of_table(form: TableForm) -> int:
    """Return the 64-bit key of a table's words, which is made of its seed and name."""
    return key_of(form.seed, form.name)


def _fractions(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    # 52 bits and a half, so that neither 0, whose logarithm is infinite, nor 1 is among them.
    fractions: NDArray[np.float64] = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return fractions


def servers_of(ids: NDArray[np.int64], servers: int) -> NDArray[np.int64]:
    """Return the number of the server, of so many, that holds each id's row."""
    numbers: Words = hashed(ids, _SERVER_KEY) % np.uint64(servers)
    return numbers.astype(np.int64)

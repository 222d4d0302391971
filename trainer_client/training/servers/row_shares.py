"""The division of a model's variables over parameter servers, by rows.

Rules: pure. A variable with enough rows is cut over all servers, so a table may be larger than any one of them. One
that is small, or cannot be cut because its optimizer's state has another shape, goes whole to the emptiest. Every
server gets about as much, and every row is held once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import SettingsError
from shared.wire.message_parts import VariablePart

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["HeldVariable", "refuse_too_little_memory", "rows_of", "shares_of"]

#: Smaller variables stay whole: each part costs a message some bytes, and its update some calls.
_LEAST_BYTES = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldVariable:
    """A trainable variable, as far as shares depend on it."""

    shape: tuple[int, ...]
    dtype: str
    item_bytes: int
    #: Whether its rows can be updated apart from each other: not if the optimizer's state for it has another shape, as
    #: Adafactor's has.
    can_be_cut: bool = True

    @property
    def nbytes(self) -> int:
        """Size of the variable in bytes."""
        return self.item_bytes * math.prod(self.shape)


def shares_of(variables: Sequence[HeldVariable], servers: int) -> tuple[tuple[VariablePart, ...], ...]:
    """Return the parts that each server holds, in the order of variables.

    A variable of at least 64 KiB that can be cut, with a row for each server, is cut over all of them; any other goes
    whole to the emptiest.
    """
    shares: list[list[VariablePart]] = [[] for _ in range(servers)]
    filled = [0] * servers
    # Largest first, so that small variables even out what the large ones leave uneven.
    for at in sorted(range(len(variables)), key=lambda at: -variables[at].nbytes):
        variable = variables[at]
        for server, (start, stop) in _placed(variable, filled):
            shape = (stop - start, *variable.shape[1:]) if variable.shape else ()
            shares[server].append(VariablePart(at, start, shape, variable.dtype))
            filled[server] += variable.item_bytes * math.prod(shape)
    return tuple(tuple(sorted(share, key=lambda part: (part.variable, part.start))) for share in shares)


def rows_of(shape: Sequence[int]) -> int:
    """Return the number of rows of a variable, or of a part, with this shape; 0 for a scalar."""
    return shape[0] if shape else 0


def _placed(variable: HeldVariable, filled: list[int]) -> list[tuple[int, tuple[int, int]]]:
    rows, servers = rows_of(variable.shape), len(filled)
    # Cut over all servers, so a table may be larger than what one of them can hold.
    emptiest = sorted(range(servers), key=lambda server: filled[server])
    if not variable.can_be_cut or rows < servers or variable.nbytes < _LEAST_BYTES:
        return [(emptiest[0], (0, rows))]
    edges = [rows * at // servers for at in range(servers + 1)]
    return [(emptiest[at], (edges[at], edges[at + 1])) for at in range(servers)]


def refuse_too_little_memory(
    variables: Sequence[HeldVariable], shares: Sequence[Sequence[VariablePart]], copies: int, memory: int
) -> None:
    """Raise SettingsError if a share, with the optimizer's state, is larger than a server's memory, in bytes.

    `copies` is how many values each number of a variable has there, its own and the optimizer's.
    """
    largest = max(
        sum(variables[part.variable].item_bytes * math.prod(part.shape) for part in share) for share in shares
    )
    if largest * copies > memory:
        servers = "1 server" if len(shares) == 1 else f"{len(shares)} servers"
        total = copies * sum(variable.nbytes for variable in variables)
        raise SettingsError(
            expected=f"shares that fit into --server-memory, {memory / 2**20:.1f} MiB",
            got=f"one of {largest * copies / 2**20:.1f} MiB, of {total / 2**20:.1f} MiB over {servers}",
            where="--strategy parameter-server",
            remedy=f"Add parameter servers ({-(-total // memory)} at least), or give them more.",
        )

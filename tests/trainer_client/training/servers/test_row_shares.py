"""Which server holds which rows."""

from __future__ import annotations

import math

import pytest

from shared.errors import SettingsError
from shared.wire.message_parts import VariablePart
from trainer_client.training.servers.row_shares import HeldVariable, refuse_too_little_memory, shares_of


def variable(*shape, can_be_cut=True):
    return HeldVariable(shape=shape, dtype="float32", item_bytes=4, can_be_cut=can_be_cut)


def sizes(shares):
    return [sum(4 * math.prod(part.shape) for part in share) for share in shares]


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_every_row_is_held_once_and_servers_hold_as_much(servers):
    variables = [variable(100_000, 8), variable(8, 30), variable(30), variable(7001, 3), variable()]
    shares = shares_of(variables, servers)
    rows = [[] for _ in variables]
    for share in shares:
        assert share == tuple(sorted(share, key=lambda part: (part.variable, part.start)))
        for part in share:
            rows[part.variable] += range(part.start, part.start + (part.shape[0] if part.shape else 1))
            assert part.shape[1:] == variables[part.variable].shape[1:]
    assert [sorted(one) for one in rows] == [list(range(one.shape[0] if one.shape else 1)) for one in variables]
    assert max(sizes(shares)) - min(sizes(shares)) < 2000


def test_what_is_small_stays_whole_and_goes_where_there_is_room():
    shares = shares_of([variable(100, 10), variable(90, 10), variable(80, 10)], 2)
    assert shares == (
        (VariablePart(0, 0, (100, 10), "float32"),),
        (VariablePart(1, 0, (90, 10), "float32"), VariablePart(2, 0, (80, 10), "float32")),
    )


def test_what_cannot_be_cut_stays_whole():
    assert [len(share) for share in shares_of([variable(100_000, 8, can_be_cut=False)], 2)] == [1, 0]


def test_a_table_larger_than_a_server_fits_into_two_and_not_into_one():
    table = [variable(2**18, 4)]
    memory = 3 * 2**21 + 1  # a value, and two of the optimizer's, of half of it
    refuse_too_little_memory(table, shares_of(table, 2), 3, memory)
    with pytest.raises(SettingsError) as refused:
        refuse_too_little_memory(table, shares_of(table, 1), 3, memory)
    assert str(refused.value) == (
        "--strategy parameter-server: expected shares that fit into --server-memory, 6.0 MiB, got one of 12.0 MiB, "
        "of 12.0 MiB over 1 server. Add parameter servers (2 at least), or give them more."
    )

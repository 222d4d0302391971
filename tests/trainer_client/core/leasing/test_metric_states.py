"""What is done and not told yet: as many batches as a message has room for, or a piece of one."""

from __future__ import annotations

from shared.wire.message_parts import PIECE_BYTES, Lease
from shared.wire.topics.work_messages import MOST_LEASES
from trainer_client.core.leasing.metric_states import DoneLeases


def lease(number):
    return Lease(0, number, 1)


def done(*states):
    made = DoneLeases()
    for number, one in enumerate(states):
        made.add(lease(number), one)
    return made


def test_those_without_states_go_as_many_as_a_message_has_room_for():
    made = done(*[b""] * (MOST_LEASES + 1))
    assert made.take() == (tuple(map(lease, range(MOST_LEASES))), 0, b"")
    made.acknowledge(lost=False)
    assert made.take() == ((lease(MOST_LEASES),), 0, b"")
    assert not made


def test_small_states_go_together_up_to_a_piece():
    half = PIECE_BYTES // 2
    made = done(b"a" * half, b"b" * half, b"c" * half)
    assert made.take() == ((lease(0), lease(1)), 0, b"a" * half + b"b" * half)
    made.acknowledge(lost=False)
    assert made.take() == ((lease(2),), 0, b"c" * half)


def test_large_states_go_in_pieces_and_are_done_with_the_last():
    made = done(b"a" * PIECE_BYTES + b"b" * 8, b"c" * (PIECE_BYTES + 8))
    for piece in ((), 0, b"a" * PIECE_BYTES), ((lease(0),), PIECE_BYTES, b"b" * 8), ((), 0, b"c" * PIECE_BYTES):
        assert made.take() == piece
        assert made
        made.acknowledge(lost=False)
    assert made.take() == ((lease(1),), PIECE_BYTES, b"c" * 8)
    assert not made


def test_what_the_coordinator_lost_the_beginning_of_is_told_again():
    made = done(b"a" * PIECE_BYTES + b"b" * 8)
    made.take()
    made.acknowledge(lost=False)
    made.take()
    made.acknowledge(lost=True)
    assert lease(0) in made
    assert made.take() == ((), 0, b"a" * PIECE_BYTES)


def test_nothing_of_an_older_generation_is_told():
    made = done(b"a" * 8)
    made.take()
    made.clear()
    made.acknowledge(lost=True)
    assert made.take() == ((), 0, b"")

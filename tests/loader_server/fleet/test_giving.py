"""The coordinator's half: who is given a piece, in which order, and how many bytes may be under way."""

from __future__ import annotations

from collections import Counter, deque
from random import Random

import pytest

from loader_server.fleet.giving import MOST_UNREAD_BYTES, Giving
from shared.wire import messages as m
from tests.loader_server.fleet.bundles import PIECE


def wanted(offset=0):
    return m.BundleWanted(digest="", offset=offset)


def peers(due):
    return [peer for peer, _ in due]


def nothing(_peer):
    return 0


def test_hosts_are_served_in_the_order_in_which_they_asked():
    giving = Giving()
    for peer in (b"b", b"a", b"c"):
        assert giving.ask(peer, wanted())
    assert peers(giving.take_due(nothing, 0)) == [b"b", b"a", b"c"]
    assert not giving


def test_a_second_request_takes_the_place_of_the_first_and_brings_nothing_nearer():
    giving = Giving()
    giving.ask(b"a", wanted(0))
    giving.ask(b"b", wanted(0))
    assert not giving.ask(b"a", wanted(7))
    assert giving.take_due(nothing, 0) == [(b"a", wanted(7)), (b"b", wanted(0))]


def test_eight_pieces_a_turn():
    giving = Giving()
    for number in range(20):
        giving.ask(bytes([number]), wanted())
    assert [len(giving.take_due(nothing, 0)) for _ in range(4)] == [8, 8, 4, 0]


def test_who_has_not_read_waits_alone():
    giving = Giving()
    giving.ask(b"slow", wanted())
    giving.ask(b"quick", wanted())
    unread = {b"slow": 2 * PIECE, b"quick": PIECE}.__getitem__
    assert peers(giving.take_due(unread, 3 * PIECE)) == [b"quick"]
    assert peers(giving.take_due(nothing, 0)) == [b"slow"]


@pytest.mark.parametrize(("unread", "given"), [(0, 8), (PIECE, 7), (7 * PIECE, 1), (8 * PIECE - 1, 0)])
def test_all_together_have_a_bound(unread, given):
    giving = Giving()
    for number in range(20):
        giving.ask(bytes([number]), wanted())
    assert len(giving.take_due(nothing, MOST_UNREAD_BYTES - 8 * PIECE + unread)) == given


def test_so_many_hosts_may_wait_and_the_others_ask_again():
    giving = Giving()
    assert all(giving.ask(number.to_bytes(2, "big"), wanted()) for number in range(4096))
    assert not giving.ask(b"one more", wanted())
    assert b"one more" not in peers(due := giving.take_due(nothing, 0))
    assert giving.ask(b"one more", wanted())
    assert len(due) == 8


@pytest.mark.parametrize("seed", range(50))
def test_histories_bounds_hold_and_everybody_who_reads_is_served(seed):
    """Hosts that ask, read late or never; libzmq gets rid of pieces at random."""
    random, giving, unread = Random(seed), Giving(), Counter[bytes]()
    hosts = [bytes([number]) for number in range(random.randint(1, 60))]
    dead = set(random.sample(hosts, len(hosts) // 4))
    asked: deque[bytes] = deque()
    served = Counter[bytes]()
    for _ in range(600):
        for host in random.sample(hosts, random.randint(0, min(5, len(hosts)))):
            if giving.ask(host, wanted(served[host])):
                asked.append(host)
        for host, request in giving.take_due(unread.__getitem__, unread.total()):
            assert request.offset == served[host]
            asked.remove(host)
            served[host] += 1
            unread[host] += PIECE
            assert unread[host] <= 2 * PIECE
        assert unread.total() <= MOST_UNREAD_BYTES
        for host in hosts:
            if host not in dead and unread[host] and random.random() < 0.5:
                unread[host] -= PIECE
    alive = [host for host in hosts if host not in dead]
    assert all(served[host] for host in alive) or not alive

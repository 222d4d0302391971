"""Answers that nobody reads, through real sockets."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest
import zmq

from shared.fairness.unread import MARK_BYTES, UnreadAnswers, UnreadMessages
from shared.sockets import bind_router
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Sent:
    """A ROUTER that answers, and clients that need not read."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._context = context
        self._clients: list[zmq.Socket[bytes]] = []
        self.router = bind_router(context, "tcp://127.0.0.1:*", None)
        self.endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.answers = UnreadAnswers(self.router)

    def client(self) -> tuple[zmq.Socket[bytes], bytes]:
        """One that takes nothing in that it need not, and its identity."""
        dealer, identity = self._context.socket(zmq.DEALER), secrets.token_bytes(8)
        self._clients.append(dealer)
        for option, value in ((zmq.RCVHWM, 1), (zmq.RCVBUF, 4096), (zmq.LINGER, 0)):
            dealer.setsockopt(option, value)
        dealer.setsockopt(zmq.ROUTING_ID, identity)
        dealer.connect(self.endpoint)
        dealer.send(b"hello")
        assert self.router.recv_multipart() == [identity, b"hello"]
        return dealer, identity

    def close(self) -> None:
        for opened in (self.router, *self._clients):
            opened.close(linger=0)

    def is_settled(self) -> bool:
        """Whether nothing is owed any more; libzmq drops what was for one that is gone when it is asked something."""
        self.router.poll(0)
        self.answers.take_back()
        return not self.answers.is_behind()

    def fill(self, identity: bytes) -> int:
        """Answer until it is known not to read; how many bytes that took."""
        nbytes = 0
        while self.answers.reads(identity):
            assert self.answers.send(identity, [bytes(MARK_BYTES)])
            nbytes += MARK_BYTES
        return nbytes


@pytest.fixture
def sent() -> Iterator[Sent]:
    context = zmq.Context()
    made = Sent(context)
    yield made
    made.close()
    context.term()


@pytest.mark.fault(58)
def test_who_reads_nothing_is_found_out_and_others_are_not(sent: Sent) -> None:
    _, deaf = sent.client()
    _, other = sent.client()
    assert sent.fill(deaf) == sent.answers.held(deaf) == 4 * 2**20
    sent.answers.take_back()
    assert sent.answers.is_behind()
    assert sent.answers.reads(other)


@pytest.mark.fault(58)
def test_a_newcomer_is_answered_although_others_left_all_unread_that_they_may(sent: Sent) -> None:
    """The last of them a little more, because an answer is not split."""
    deaf = [sent.client()[1] for _ in range(3)]
    sent.fill(deaf[0])
    sent.answers._unread.take(deaf[1], 4 * 2**20 - 1)
    assert sent.answers.send(deaf[2], [bytes(MARK_BYTES)])
    assert not any(map(sent.answers.reads, deaf))
    assert sent.answers.reads(sent.client()[1])
    sent.answers._unread.give_back(deaf[1], 4 * 2**20 - 1)


@pytest.mark.fault(58)
def test_who_reads_again_owes_nothing(sent: Sent) -> None:
    dealer, identity = sent.client()
    sent.fill(identity)

    def is_read() -> bool:
        while dealer.poll(0):
            dealer.recv()
        sent.answers.take_back()
        return not sent.answers.is_behind()

    wait_until(is_read, "all is read")
    assert sent.answers.held(identity) == 0
    assert sent.answers.reads(identity)


def test_who_hangs_up_owes_nothing_and_is_not_there(sent: Sent) -> None:
    dealer, identity = sent.client()
    sent.fill(identity)
    dealer.close(linger=0)
    wait_until(sent.is_settled, "nothing is owed")
    wait_until(lambda: not sent.answers.send(identity, [b"x"]), "it is gone")


def test_small_answers_count_together(sent: Sent) -> None:
    dealer, identity = sent.client()
    for _ in range(9):
        sent.answers.send(identity, [bytes(MARK_BYTES // 10)])
    assert not sent.answers.is_behind()
    sent.answers.send(identity, [bytes(MARK_BYTES // 20), bytes(MARK_BYTES // 10)])
    assert sent.answers.held(identity) > MARK_BYTES
    got = [dealer.recv_multipart() for _ in range(10)]
    assert [len(frames) for frames in got] == [1] * 9 + [2]
    sent.answers.send(identity, [bytes(MARK_BYTES // 2)])
    sent.answers.forget(identity)
    sent.answers.send(identity, [bytes(MARK_BYTES // 2 + 10)])
    wait_until(sent.is_settled, "what is forgotten is not marked")


@pytest.mark.fault(58)
def test_who_asks_for_one_answer_at_a_time_may_leave_few_unread_however_large(sent: Sent) -> None:
    answers, (dealer, identity), (_, other) = UnreadMessages(sent.router), sent.client(), sent.client()
    for _ in range(16):
        assert answers.reads(identity)
        assert answers.send(identity, [b"header", bytes(2**20)])
    for _ in range(64):  # the kernel takes in some of them
        answers.take_back()
        if not answers.reads(identity):
            break
        assert answers.send(identity, [b"header", bytes(2**20)])
    assert not answers.reads(identity)
    assert answers.reads(other)

    def is_read() -> bool:
        while dealer.poll(0):
            dealer.recv_multipart()
        answers.take_back()
        return not answers.is_behind()

    wait_until(is_read, "all is read")
    assert answers.reads(identity)
    assert not answers._unread

"""Where a trainer in queue mode stands, and that it follows another one who has taken the queue back."""

from __future__ import annotations

import types

import pytest

from shared.wire.message_parts import Cursor, DoneSet, EpochDone
from trainer_client.session.epoch_account import Accounts
from trainer_client.session.lease_account import LeaseAccount

SPEC = types.SimpleNamespace(job="j", stream="s", plan_digest="p", work="train")


class Receiver:
    """Whose coordinator says that this epoch is the first that is not settled."""

    def __init__(self, epoch):
        self.spec, self.epoch = SPEC, epoch
        self.standing = types.SimpleNamespace(trained_to=None)

    def ask_state(self):
        return DoneSet((EpochDone(self.epoch, 3, (1,)), EpochDone(self.epoch + 1, 1, ())))


def account(at, queue_at):
    answer = types.SimpleNamespace(cursor=Cursor(at, 0, 1, "p"))
    receiver = Receiver(queue_at)
    return LeaseAccount(receiver, Accounts(()), answer), receiver


@pytest.mark.parametrize("queue_at", [0, 5])
def test_who_follows_reads_where_the_queue_is_and_drops_what_it_had_read(queue_at):
    leases, receiver = account(2, queue_at)
    leases._taken.append("a batch of epoch 2")
    leases._accounts._note_untrained((2, 0), 4)
    assert leases.follow()
    assert list(leases._taken) == []
    assert leases.begin_reading().epoch == queue_at
    assert receiver.standing.trained_to == (queue_at, 0)
    assert leases._accounts.staged == 0


def test_who_stands_there_already_keeps_what_it_has_read():
    leases, _ = account(2, 2)
    leases._taken.append("a batch of epoch 2")
    assert not leases.follow()
    assert leases._taken

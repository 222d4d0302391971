"""Where a trainer in queue mode stands, and that it follows another one who has taken the queue back."""

from __future__ import annotations

import re
import types
from concurrent.futures import Future
from pathlib import Path

import pytest

import trainer_client
from shared.errors import RefusedError, SettingsError
from shared.wire.message_parts import Cursor, DoneSet, EpochDone
from trainer_client.session.epoch_account import Accounts
from trainer_client.session.lease_account import LeaseAccount
from trainer_client.session.trained_cursor import TrainedCursor

SPEC = types.SimpleNamespace(job="j", stream="s", plan_digest="p", work="train")


class Receiver:
    """Whose coordinator says that this epoch is the first that is not settled."""

    def __init__(self, epoch):
        self.spec, self.epoch = SPEC, epoch
        self.standing = types.SimpleNamespace(trained_to=None)
        self.asked, self.waited_s = [], []

    def ask_state(self):
        return DoneSet((EpochDone(self.epoch, 3, (1,)), EpochDone(self.epoch + 1, 1, ())))

    def begin_asking_state(self):
        self.asked.append(Future())
        return self.asked[-1]

    def wait_for(self, answer, *, timeout_s):
        self.waited_s.append(timeout_s)
        return answer.result(0)

    def ask_batches(self, epoch, group):
        return 4


def account(at, queue_at):
    answer = types.SimpleNamespace(cursor=Cursor(at, 0, 1, "p"))
    receiver = Receiver(queue_at)
    return LeaseAccount(receiver, Accounts(()), answer), receiver


@pytest.mark.parametrize("epochs", [None, 3, "01", {}, [], [3], [[0]], [[0, 1, None]], [[0, -1, []]], [[0, 1, ["x"]]]])
def test_a_state_whose_epochs_are_none_is_refused_and_nothing_moves(epochs):
    leases, _ = account(2, 2)
    leases._taken.append("a batch of epoch 2")
    state = {"job": "j", "stream": "s", "plan_digest": "p", "work": "train", "epochs": epochs}
    for use in (leases.restore, leases.epoch_of):
        with pytest.raises(SettingsError, match="restore: expected "):
            use(state)
    assert (leases.at.epoch, list(leases._taken)) == (2, ["a batch of epoch 2"])


def test_a_restore_that_is_refused_leaves_what_was_taken_to_be_reported():
    leases, receiver = account(2, 2)
    leases._taken.append("a batch of epoch 2")

    def refuse(cursor, done):
        raise RefusedError(code="lost", expected="leases", got="none", where="here", remedy="Start anew.")

    receiver.attach = refuse
    with pytest.raises(RefusedError):
        leases.restore({"job": "j", "stream": "s", "plan_digest": "p", "work": "train", "epochs": [[1, 0, []]]})
    assert (leases.at.epoch, list(leases._taken)) == (2, ["a batch of epoch 2"])


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


def test_a_queue_answers_all_that_callers_ask_of_lockstep():
    lockstep, queue = ({name for name in dir(way) if not name.startswith("_")} for way in (TrainedCursor, LeaseAccount))
    assert lockstep <= queue
    assert lockstep > {"in_hand", "is_taken_back", "may_count_pass", "refuse_queue", "step_of_results", "take"}


def test_nobody_asks_in_which_way_batches_are_shared():
    asks = re.compile(r"\bin_queue\b|\bleases is (not )?None")
    package = Path(trainer_client.__file__).parent
    assert [path.name for path in package.rglob("*.py") if asks.search(path.read_text())] == []


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_pass_to_its_end_counts_only_where_somebody_is_seen_to_get_there(is_seen):
    leases, _ = account(2, 2)
    assert leases.may_count_pass(is_seen=is_seen) == is_seen


def test_in_a_queue_a_framework_s_elements_are_watched_and_what_needs_lockstep_is_refused():
    leases, _ = account(2, 2)
    assert leases.hand_over("elements", lambda elements, watcher: (elements, watcher)) == ("elements", leases)
    error = SettingsError(expected="a", got="b", where="c", remedy="d")
    leases.refuse_lockstep(error)
    with pytest.raises(SettingsError) as caught:
        leases.refuse_queue(error)
    assert caught.value is error
    assert leases.step_of_results(7) == 0


def test_how_much_is_done_is_what_all_trainers_did_by_the_last_answer():
    leases, receiver = account(2, 2)
    # The coordinator has not answered yet: nobody waits for it, and it is not asked twice.
    assert leases.epochs_done() == leases.epochs_done() == (2.0, None)
    (first,) = receiver.asked
    assert receiver.waited_s == [0.5, 0.0], "a coordinator that is away costs each line nothing"
    first.set_result(receiver.ask_state())
    # Two of four of epoch 2, and one of four of epoch 3, which was begun when nothing of epoch 2 was left to lease.
    assert leases.epochs_done() == (2.75, 4)
    assert leases.epochs_done() == (2.75, 4)
    assert len(receiver.asked) == 2
    receiver.asked[1].set_result(DoneSet((EpochDone(3, 0, ()),)))
    assert leases.epochs_done() == (3.0, 4)
    receiver.epoch = 1
    assert leases.follow()
    assert leases.epochs_done() == (1.0, None), "what was done before another trainer went back is not done any more"

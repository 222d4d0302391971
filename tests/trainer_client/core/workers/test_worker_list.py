"""Which workers are listed, in which order, and who is left out for a while."""

from __future__ import annotations

import pytest

from shared.errors import LostError
from shared.wire.message_parts import WorkerAddress
from tests.support.coordinator import failing
from trainer_client.core.settings import CoreSettings
from trainer_client.core.upcoming import Ranks
from trainer_client.core.workers.worker_list import WorkerList

ERROR = LostError(expected="a worker", got="none", where="there", remedy="Start one.")


def listed(number, *, incarnation=1, boot_id="elsewhere"):
    return WorkerAddress(f"w{number}", incarnation, f"tcp://host:{number}", boot_id, 0)


def settings(incarnation=7):
    ranks = Ranks(rank=0, replicas=1, world=1)
    return CoreSettings(
        job="digits", stream="train", ranks=ranks, incarnation=incarnation, name="here:1", boot_id="here"
    )


@pytest.fixture
def workers():
    return WorkerList(settings())


def test_workers_of_this_host_are_told_apart_from_the_others(workers):
    workers.update(3, [listed(1), listed(2, boot_id="here"), listed(3, boot_id="")])
    assert workers.local == ["tcp://host:2"]
    assert sorted(workers.remote) == ["tcp://host:1", "tcp://host:3"]
    assert (workers.version, len(workers), "tcp://host:1" in workers, "tcp://host:4" in workers) == (3, 3, True, False)
    assert [workers.name(endpoint) for endpoint in ("tcp://host:1", "tcp://host:4")] == ["w1", "tcp://host:4"]


def test_a_worker_that_fails_does_so_until_a_new_one_of_its_name_comes(workers):
    workers.update(1, [listed(1), listed(2)])
    workers.failing = failing("w1")
    workers.update(2, [listed(1)])
    workers.update(3, [listed(3)])
    assert workers.failing == failing("w1")
    workers.update(4, [listed(1, incarnation=2)])
    assert workers.failing is None
    workers.update(5, [])


def test_each_trainer_has_an_order_of_its_own_which_a_new_list_keeps(workers):
    workers.update(1, [listed(number) for number in range(20)])
    first = workers.remote[:]
    workers.update(2, [listed(number, incarnation=2) for number in reversed(range(30))])
    assert [endpoint for endpoint in workers.remote if endpoint in first] == first
    other = WorkerList(settings(incarnation=8))
    other.update(1, [listed(number) for number in range(20)])
    assert sorted(other.remote) == sorted(first)
    assert other.remote != first


def test_one_that_turned_us_away_is_out_until_another_incarnation_is_listed(workers):
    workers.update(1, [listed(1), listed(2)])
    workers.note_turned_away("tcp://host:1", ERROR)
    workers.note_turned_away("tcp://host:9", ERROR)
    assert [workers.is_out(f"tcp://host:{number}") for number in (1, 2, 9)] == [True, False, False]
    assert (workers.refusals(), workers.out()) == ([ERROR], {"tcp://host:1": "turned us away"})
    workers.try_again()
    workers.update(2, [listed(1), listed(2)])
    assert workers.is_out("tcp://host:1")
    workers.update(3, [listed(1, incarnation=2)])
    assert not workers.is_out("tcp://host:1")
    assert workers.refusals() == []


def test_one_that_was_given_up_may_be_tried_again_when_it_is_said(workers):
    workers.update(1, [listed(1)])
    workers.give_up("tcp://host:1", "silent")
    workers.update(2, [listed(1, incarnation=2)])
    assert workers.is_out("tcp://host:1")
    assert workers.out() == {"tcp://host:1": "silent"}
    workers.try_again()
    assert not workers.is_out("tcp://host:1")

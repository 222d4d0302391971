"""Who is in the list of workers, under which version, and how much of it fits into a message."""

from __future__ import annotations

import pytest

from loader_server.coordinator import workers as module
from loader_server.coordinator.workers import Workers
from shared.wire import messages as m
from shared.wire.codec import encode
from shared.wire.message_parts import WorkerAddress
from tests.support.coordinator import address, register


def listed(workers: Workers) -> list[int]:
    return [one.incarnation for one in workers.members.workers]


class TestTheList:
    def test_it_is_sorted_by_name_and_a_change_is_a_new_version(self):
        workers = Workers(5)
        assert workers.members == m.Members(version=5, workers=())
        for name, incarnation in (("b", 1), ("a", 3), ("a", 2)):
            assert workers.register(b"", register(name, incarnation), 0.0)
        assert workers.members == m.Members(version=8, workers=(address("a", 2), address("a", 3), address("b", 1)))

    def test_the_same_again_is_the_same_list_but_a_sign_of_life(self):
        workers = Workers(1)
        workers.register(b"before", register(), 0.0)
        assert not workers.register(b"now", register(), 3.0)
        assert workers.members.version == 2
        assert workers.peers() == [b"now"]
        assert workers.remove_silent(3.0) == 0

    def test_a_new_name_or_endpoint_is_another_list(self):
        workers = Workers(1)
        workers.register(b"", register(endpoint="tcp://h:1"), 0.0)
        assert workers.register(b"", register("other", endpoint="tcp://h:1"), 0.0)
        assert workers.register(b"", register("other", endpoint="tcp://h:2"), 0.0)
        assert workers.members.workers == (address("other", 1, "tcp://h:2"),)
        assert workers.register(b"", register("third", 3, endpoint="tcp://h:1"), 0.0)
        assert listed(workers) == [1, 3]

    @pytest.mark.fault(47)
    def test_the_latest_at_an_endpoint_replaces_the_one_before(self):
        workers = Workers(1)
        workers.register(b"", register(incarnation=1, endpoint="tcp://h:1"), 0.0)
        workers.register(b"", register(incarnation=2, endpoint="tcp://h:1"), 0.0)
        assert workers.get(1) is None
        assert listed(workers) == [2]
        workers.remove(2)
        assert listed(workers) == []
        assert workers.register(b"", register(incarnation=1, endpoint="tcp://h:1"), 0.0)

    def test_who_leaves_or_is_silent_is_out(self):
        workers = Workers(1)
        for incarnation in range(4):
            workers.register(b"", register(incarnation=incarnation), float(incarnation))
        workers.remove(3)
        with pytest.raises(KeyError):
            workers.remove(3)
        assert workers.remove_silent(2.0) == 2
        assert listed(workers) == [2]
        assert workers.members.version == 1 + 4 + 1 + 1
        assert workers.remove_silent(2.0) == 0
        assert workers.members.version == 7


@pytest.mark.fault(52)
class TestCutting:
    def test_no_more_bytes_than_a_message_takes(self, monkeypatch):
        monkeypatch.setattr(module, "_MOST_BYTES", 3000)
        workers, previous = Workers(1), set()
        for incarnation in range(60):
            workers.register(b"", register("w" * 40, 2**63 - incarnation * 7 % 60), 0.0)
            assert workers.left_out == len(workers) - len(listed(workers))
            assert len(set(listed(workers)) - previous) <= 1, "one more worker changes one place"
            previous = set(listed(workers))
        assert workers.left_out > 20
        encoded = len(encode(workers.members))
        assert 2600 < encoded < 3000

    def test_it_is_whole_again_when_there_is_room(self, monkeypatch):
        monkeypatch.setattr(module, "_MOST_BYTES", 300)
        workers = Workers(1)
        for incarnation in range(9):
            workers.register(b"", register(incarnation=incarnation), 0.0)
        assert workers.left_out > 0
        for incarnation in range(9 - workers.left_out, 9):
            workers.remove(incarnation)
        assert workers.left_out == 0
        assert workers._nbytes == sum(map(module._size, workers.members.workers))

    def test_no_more_workers_than_a_message_takes(self, monkeypatch):
        monkeypatch.setattr(module, "_MOST_WORKERS", 3)
        workers = Workers(1)
        for incarnation in (9, 1, 7, 3):
            workers.register(b"", register(incarnation=incarnation), 0.0)
        assert listed(workers) == [1, 3, 7]

    def test_what_is_reckoned_is_never_less_than_what_is_sent(self):
        largest = WorkerAddress("é" * 200, 2**64 - 1, "è" * 200, "𝄞" * 200, 2**32)
        empty = len(encode(m.Members(version=1, workers=())))
        for one, spare in ((largest, 0), (WorkerAddress("", 0, "", "", 0), 22), (address(), 20)):
            assert len(encode(m.Members(version=1, workers=(one,)))) - empty == module._size(one) - spare

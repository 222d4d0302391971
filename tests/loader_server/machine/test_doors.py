"""Connections are counted, and strangers never take the last descriptors."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import socket

import pytest
import zmq

from loader_server.machine.doors import Doors
from shared.endpoints import port_of
from shared.logs import Log
from shared.sockets import bind_router, descriptors_by_port
from tests.support.loaders import wait_until
from tests.support.zmtp import raw_client


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context


@pytest.fixture
def router(context):
    with bind_router(context, "tcp://127.0.0.1:*", None) as router:
        yield router


@pytest.fixture
def endpoint(router):
    return router.getsockopt_string(zmq.LAST_ENDPOINT)


@pytest.fixture
def doors(router):
    doors = Doors(Log("test"))
    doors.watch("messages", router)
    yield doors
    doors.close()


def _used():
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.fixture
def few_descriptors():
    """Have so many files that those which are open are this share of them."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # which would close some later, and so leave room
    used, filling = _used(), [os.open(os.devnull, os.O_RDONLY)]
    while filling[-1] < used:  # so that none is free below the limit
        filling.append(os.open(os.devnull, os.O_RDONLY))
    used = _used()

    def limit(share):
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(used / share), before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for fd in filling:
        os.close(fd)


def counted(doors, **expected):
    def holds():
        doors.turn(0.0)
        return {change: doors.changes["messages"][change] for change in expected} == expected

    wait_until(holds, f"these are counted: {expected}")


def test_who_comes_and_goes_is_counted(doors, endpoint):
    with raw_client(endpoint):
        counted(doors, accepted=1, admitted=1, ended=0)
        assert doors.count_connections() == {"messages": 1}
    counted(doors, accepted=1, admitted=1, ended=1)
    assert doors.count_connections() == {"messages": 0}


@pytest.mark.fault(25)
def test_who_is_not_let_in_is_counted_by_reason(context, doors, endpoint):
    with raw_client(endpoint, greets=False):
        pass
    counted(doors, accepted=1, unfinished=1, ended=1)
    with context.socket(zmq.DEALER) as other:
        other.curve_publickey, other.curve_secretkey = zmq.curve_keypair()
        other.curve_serverkey = zmq.curve_keypair()[0]
        other.reconnect_ivl = -1
        other.connect(endpoint)
        counted(doors, accepted=2, ended=2, admitted=0)
        changes = doors.changes["messages"]
        assert changes["not_understood"] + changes["unfinished"] == 2  # either side notices first


@pytest.mark.fault(38)
def test_doors_shut_before_descriptors_run_out_and_open_again(doors, endpoint, few_descriptors, caplog):
    caplog.set_level("INFO")
    with contextlib.ExitStack() as strangers:
        first = strangers.enter_context(raw_client(endpoint))
        counted(doors, admitted=1)
        few_descriptors(0.65)
        strangers.enter_context(raw_client(endpoint))
        counted(doors, accepted=2)
        assert doors.times_shut == 1
        with socket.socket() as knocking:  # closed again, or the kernel would go on trying
            knocking.settimeout(0.3)
            with pytest.raises(TimeoutError):
                knocking.connect(("127.0.0.1", port_of(endpoint)))
        first.sendall(b"\0\1x")
        first.settimeout(0.1)
        with pytest.raises(TimeoutError):
            first.recv(100)  # it was not hung up on
        doors.turn(0.0)
        few_descriptors(0.4)
        doors.turn(0.1)
        assert "let in again" not in caplog.text, "it looks five times a second"
        doors.turn(0.3)
        with raw_client(endpoint):
            counted(doors, accepted=3)
    assert "connections are let in again" in caplog.text
    assert doors.times_shut == 1


@pytest.mark.fault(38)
def test_where_no_descriptor_is_left_that_is_counted_and_the_doors_shut(doors, endpoint, few_descriptors):
    with socket.socket() as stranger:
        few_descriptors(2.0)
        stranger.connect(("127.0.0.1", port_of(endpoint)))

        def failed():
            doors.turn(0.0)
            return doors.changes["messages"]["no_descriptor"]

        wait_until(failed, "it could not be let in")
        assert doors.times_shut == 1
        few_descriptors(0.4)
        counted(doors, accepted=1)


def test_nobody_holds_the_port_once_all_is_closed(context):
    router = bind_router(context, "tcp://127.0.0.1:*", None)
    port = port_of(router.getsockopt_string(zmq.LAST_ENDPOINT))
    doors = Doors(Log("test"))
    doors.watch("messages", router)
    doors.close()
    router.close()
    wait_until(lambda: port not in {one for _, one in descriptors_by_port()}, "the port is let go")

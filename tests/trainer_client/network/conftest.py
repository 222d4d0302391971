"""What tests of connections share."""

from __future__ import annotations

import pytest
import zmq

from shared.keys import ClientKeys, ServerKeys, make_keys


@pytest.fixture
def context():
    """A context whose sockets are closed with it."""
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    """What a worker serves with, and what a trainer shows it."""
    folder = tmp_path_factory.mktemp("keys") / "keys"
    make_keys(folder)
    return ServerKeys.read(folder, "worker"), ClientKeys.read(folder, "trainer", to="worker")

"""What tests of sockets share."""

from __future__ import annotations

import pytest
import zmq


class _Keeping(zmq.Context):
    """Keeps its sockets until the end of the test, so that none is left to the garbage collector."""

    kept: list[zmq.Socket] = []  # noqa: RUF012 - a context takes no attributes of its own

    def socket(self, *args, **kwargs):
        made = super().socket(*args, **kwargs)
        self.kept.append(made)
        return made


@pytest.fixture
def context():
    """A context whose sockets are closed with it."""
    context = _Keeping()
    yield context
    context.destroy(linger=0)
    _Keeping.kept.clear()

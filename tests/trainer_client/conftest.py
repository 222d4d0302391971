"""A feed against a coordinator and a worker in this process."""

from __future__ import annotations

import pytest

import trainer_client
from tests.support.ends import Ends


@pytest.fixture(scope="module")
def ends():
    with Ends() as both:
        yield both


@pytest.fixture
def feed(ends):
    ends.heard.clear()
    with trainer_client.connect(ends.endpoint, prefetch=4) as one:
        yield one

"""`loader-server plan` beside a running job: it speaks of the very plan that is trained on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import trainer_client
from loader_server.commands.status import ask
from tests.support.forked import run_module

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.loaders import Loaders


def _plan(job: Path, *arguments: str) -> str:
    code, said, errors = run_module("loader_server", "plan", str(job), *arguments)
    assert code == 0, errors
    return said


@pytest.mark.parametrize("stream", ["train", "dev"])
def test_plan_status_and_cursor_name_one_digest(loaders: Loaders, job: Path, stream: str) -> None:
    with trainer_client.connect(loaders.endpoint, stream=stream) as feed:
        digest = feed.state()["plan_digest"]
    assert ask(loaders.endpoint)["streams"][stream]["plan_digest"] == digest
    assert json.loads(_plan(job, "--stream", stream, "--json"))["digest"] == digest
    assert digest in _plan(job, "--stream", stream)

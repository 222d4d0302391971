"""One bottleneck in a worker and one of the network; `python -m tests.faults.bottlenecks` sets up all of them."""

from __future__ import annotations

import pytest

from tests.faults.bottlenecks import play_patiently
from tests.support.namespaces import why_no_namespaces


@pytest.mark.slow
@pytest.mark.skipif(bool(why_no_namespaces("--net")), reason=why_no_namespaces("--net"))
@pytest.mark.parametrize(
    ("situation", "sentence"),
    [
        ("slow_transform", "limit: transforms in workers ("),
        ("slow_wire", "limit: the connections to trainers ("),
    ],
)
def test_the_status_names_what_slows_a_job_down_soon_and_only_for_as_long(situation: str, sentence: str) -> None:
    outcome = play_patiently(situation, 0)
    assert outcome["right"], outcome
    assert outcome["sentence"].startswith(sentence)

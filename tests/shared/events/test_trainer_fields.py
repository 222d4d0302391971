"""How trainers are named in logs."""

from __future__ import annotations

from shared.events.trainer_fields import run_name, trainer_fields


def test_a_run_is_named_alike_in_all_logs() -> None:
    assert run_name(0) == "0" * 16
    assert run_name(2**63 - 1) == "7fffffffffffffff"


def test_a_rank_is_named_where_there_is_one() -> None:
    assert trainer_fields("gpu1:7", 0, 16) == {"trainer": "gpu1:7", "rank": 0, "run": "0000000000000010"}
    assert trainer_fields("gpu1:7", None, 16) == {"trainer": "gpu1:7", "run": "0000000000000010"}

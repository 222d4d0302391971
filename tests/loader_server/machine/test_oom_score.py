from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from loader_server import cli
from loader_server.machine import oom_score
from loader_server.machine.oom_score import TRIAL_OFFER, WORKER_OFFER, offer_to_oom_killer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("inherited", "more", "raised"),
    [(0, 500, 500), (0, 800, 800), (-900, 500, -400), (300, 800, 1000), (1000, 500, 1000), (700, 0, 700)],
)
def test_a_score_is_raised_from_what_was_inherited_to_the_most_there_is(
    tmp_path: Path, inherited: int, more: int, raised: int
) -> None:
    (tmp_path / "score").write_text(f"{inherited}\n")
    assert offer_to_oom_killer(more, tmp_path / "score") == ""
    assert int((tmp_path / "score").read_text()) == raised


def test_trials_go_before_workers() -> None:
    assert (WORKER_OFFER, TRIAL_OFFER) == (500, 800)


def test_where_it_cannot_be_raised_the_reason_is_told(tmp_path: Path) -> None:
    assert "No such file" in offer_to_oom_killer(500, tmp_path / "none")
    (tmp_path / "score").write_text("nonsense")
    assert "invalid literal" in offer_to_oom_killer(500, tmp_path / "score")


@pytest.mark.fault(62)
def test_a_worker_offers_itself_before_it_does_anything_else_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the kernel may as well take those that hold the others."""
    did: list[object] = []
    monkeypatch.setattr(oom_score, "_offered", {})
    monkeypatch.setattr(oom_score, "offer_to_oom_killer", lambda more: did.append(more) or "why not")
    monkeypatch.setattr(cli, "main", did.append)
    cli._be_forked(["worker"])
    assert did == [WORKER_OFFER, ["worker"]]
    assert oom_score.offer_once(WORKER_OFFER) == "why not"
    assert len(did) == 2
    cli._be_forked(["coordinator"])
    assert did[2:] == [["coordinator"]]

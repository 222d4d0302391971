"""One client, or thirty, that flood a server; `python -m tests.faults.flood` does it for longer, and to all ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.keys import make_keys
from tests.faults.flood import LATER_S, LEFT_MB, MOST_MB, Flood, flooded
from tests.support.behind import SLACK_S

if TYPE_CHECKING:
    from pathlib import Path

#: Long enough for memory to grow by hundreds of megabytes where nothing is done about it.
_FLOOD_S = 6.0


@pytest.mark.slow
@pytest.mark.fault(58)
@pytest.mark.parametrize("with_keys", [False, True], ids=["without keys", "with keys"])
@pytest.mark.parametrize("kind", ["mixed", "unread"])
@pytest.mark.parametrize(("port", "connections"), [("coordinator", 1), ("coordinator", 30), ("worker", 30)])
def test_a_flood_takes_no_memory_and_holds_nobody_up(
    tmp_path: Path, port: str, connections: int, kind: str, with_keys: bool
) -> None:
    """Waits and answers may take longer here only because the machine is busy with other tests."""
    keys = tmp_path / "keys"
    if with_keys:
        make_keys(keys)
    flood = Flood(port=port, kind=kind, connections=connections, keys=str(keys) if with_keys else "")
    row = flooded(flood, _FLOOD_S, tmp_path)
    assert row.said > 1000
    assert row.peak_mb < MOST_MB
    assert row.after_mb < row.before_mb + LEFT_MB
    assert row.culprits == 0
    assert row.status_s < SLACK_S
    assert row.wait_s < row.calm_wait_s + LATER_S + SLACK_S

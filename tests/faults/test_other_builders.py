"""A real worker whose machine would build other bytes is told what differs, by names that people know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.fleet import fleet
from tests.support.loaders import write_job

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.fault(40)
def test_a_refused_worker_hears_which_part_differs(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=24)
    with fleet(job) as loaders:
        worker = loaders.begin("vm-1", environment={"OPENBLAS_CORETYPE": "Haswell"})
        assert worker.wait(60) != 0
        said = loaders.text()
    assert "got vm-1, which differs: processor (" in said
    assert "OPENBLAS_CORETYPE=Haswell on the worker's)" in said
    assert "worker differs from this machine" in said
    assert "index of stream" not in said
    assert "plan of stream" not in said

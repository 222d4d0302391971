"""What a host keeps from its workers, as the kernel tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.metrics.host_metrics import HELD_UP, PRESSURE, host_samples

if TYPE_CHECKING:
    from pathlib import Path

_FILE = "some avg10=1.00 avg60=2.00 avg300=3.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"


def _served(folder: Path) -> dict[object, object]:
    return {samples.metric: samples.values for samples in host_samples(1.5, folder)}


def test_pressure_is_the_time_in_which_some_process_waited(tmp_path: Path) -> None:
    for resource in ("cpu", "memory", "io"):
        (tmp_path / resource).write_text(_FILE)
    assert _served(tmp_path) == {
        HELD_UP: {(): 1.5},
        PRESSURE: {("cpu",): 2.5, ("memory",): 2.5, ("io",): 2.5},
    }


def test_what_the_kernel_does_not_tell_is_left_out_instead_of_zero(tmp_path: Path) -> None:
    (tmp_path / "cpu").write_text(_FILE)
    (tmp_path / "memory").write_text("")
    assert _served(tmp_path)[PRESSURE] == {("cpu",): 2.5}
    assert _served(tmp_path / "nothing")[PRESSURE] == {}

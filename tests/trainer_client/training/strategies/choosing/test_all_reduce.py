"""Which all-reduce is taken: every way of asking, for every kind of machine."""

from __future__ import annotations

import itertools

import pytest

from shared.errors import SettingsError
from trainer_client.training.strategies.choosing.all_reduce import ALL_REDUCES, between_processes, within_process

MACHINES = [[], *([kind] * count for kind in ("CPU", "GPU") for count in (1, 2, 7, 8, 9)), ["CPU", "GPU"]]


@pytest.mark.parametrize(("asked", "devices"), [*itertools.product(ALL_REDUCES, MACHINES)])
def test_within_a_process_what_is_taken_works_there_and_another_than_asked_has_its_reason(asked, devices):
    gpus = bool(devices) and set(devices) == {"GPU"}
    if asked == "ring" or (asked == "hierarchical" and len(devices) < 8):
        with pytest.raises(SettingsError):
            within_process(asked, devices)
        return
    taken = within_process(asked, devices)
    assert taken.name in ("nccl", "gpu", "cpu", "hierarchical")
    assert gpus or taken.name not in ("nccl", "gpu")
    if asked == "auto":
        assert taken == ("nccl" if gpus and len(devices) > 1 else "cpu", "")
    else:
        assert bool(taken.why) == (taken.name != asked)
        assert not taken.why or (asked in taken.why and str(taken).startswith(f"{taken.name}, because "))


@pytest.mark.parametrize(("asked", "devices"), [*itertools.product(ALL_REDUCES, MACHINES)])
def test_between_processes_only_collectives_are_taken(asked, devices):
    gpus = bool(devices) and set(devices) == {"GPU"}
    if asked in ("hierarchical", "cpu", "gpu"):
        with pytest.raises(SettingsError, match=f"expected nccl, ring or auto, got {asked}"):
            between_processes(asked, devices)
        return
    taken = between_processes(asked, devices)
    assert taken.name == ("ring" if asked == "ring" or not gpus else "nccl")
    assert bool(taken.why) == (asked == "nccl" and not gpus)


def test_what_is_refused_says_why():
    with pytest.raises(SettingsError, match=r"got ring\. TensorFlow has no ring within one process.*multi-worker"):
        within_process("ring", ["GPU"] * 8)
    with pytest.raises(SettingsError, match=r"expected 8 devices or more, over which it copies in two groups, got 7"):
        within_process("hierarchical", ["GPU"] * 7)
    assert str(within_process("nccl", ["CPU", "GPU"])) == (
        "cpu, because nccl needs all replicas on GPUs, and they are on 1 x CPU and 1 x GPU"
    )

"""Options of a strategy: each is heeded or refused, and what is taken for it works on every kind of machine."""

from __future__ import annotations

import itertools

import pytest

from shared.errors import SettingsError
from trainer_client.training.strategies.options import (
    ALL_REDUCES,
    HEEDED,
    VARIABLES_ON,
    LeastLoaded,
    StrategyOptions,
    between_processes,
    places_of_variables,
    within_process,
)

SAID = {"replicas": 2, "all_reduce": "auto", "combine": "mean", "variables": "cpu"}


@pytest.mark.parametrize(("name", "option"), [*itertools.product(HEEDED, SAID)])
def test_an_option_is_heeded_or_refused(name, option):
    options = StrategyOptions(name=name, **{option: SAID[option]})
    if option in HEEDED[name]:
        options.refuse_unheeded()
        return
    flag = "--" + option.replace("_", "-")
    with pytest.raises(SettingsError, match=rf"{flag}: expected {flag} with one of .*, got --strategy {name}"):
        options.refuse_unheeded()


def test_nothing_said_is_never_refused():
    for name in HEEDED:
        StrategyOptions(name=name).refuse_unheeded()


# --- which all-reduce is taken: every way of asking, for every kind of machine ---

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


# --- where variables lie: every way of asking, and that bytes are spread evenly ---

TOWERS = [tuple(f"{kind}:{number}" for number in range(count)) for kind in ("CPU", "GPU") for count in (1, 2, 3, 4, 8)]


@pytest.mark.parametrize(("asked", "towers", "late"), [*itertools.product(VARIABLES_ON, TOWERS, (False, True))])
def test_variables_lie_where_it_was_asked_or_it_is_said_why_not(asked, towers, late):
    places, taken = places_of_variables(asked, towers, asynchronous=late)
    on_gpu = towers[0] == "GPU:0"
    want = asked
    if asked == "auto":
        want = "balanced" if on_gpu and not (late and len(towers) >= 4) else "cpu"
    elif asked == "gpu" and not on_gpu:
        want = "cpu"
    assert places == {"cpu": ("CPU:0",), "gpu": ("GPU:0",), "balanced": towers}[want]
    assert taken.partition(",")[0] == want
    assert taken == want or asked != want


def test_each_variable_goes_to_the_device_with_the_fewest_bytes():
    spread = LeastLoaded(["GPU:0", "GPU:1", "GPU:2"])
    assert [spread.place(size) for size in (5, 3, 4, 3, 1, 1)] == [
        "GPU:0", "GPU:1", "GPU:2", "GPU:1", "GPU:2", "GPU:0",
    ]  # fmt: skip
    assert spread.bytes_on == {"GPU:0": 6, "GPU:1": 6, "GPU:2": 5}

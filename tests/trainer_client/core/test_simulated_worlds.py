"""Simulated worlds: some hundreds, and each rule of the core that is missed when it is taken out."""

from __future__ import annotations

import json

import pytest

from tests.faults.simulate import simulate
from tests.support.forked import run_module
from tests.support.simulation.rules import without
from tests.support.simulation.run import run

#: Without any of the rules below, at least one of these breaks a promise; the command runs them by the thousand.
SEEDS = 500


def told(outcome):
    return f"{outcome.error}\nin {outcome.setting}\n{outcome.diary}\nseed {outcome.seed}"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.fault(1)
@pytest.mark.fault(2)
@pytest.mark.fault(3)
@pytest.mark.fault(4)
@pytest.mark.fault(5)
@pytest.mark.fault(6)
@pytest.mark.fault(11)
@pytest.mark.fault(12)
@pytest.mark.fault(16)
@pytest.mark.fault(17)
@pytest.mark.fault(19)
@pytest.mark.fault(20)
@pytest.mark.fault(21)
@pytest.mark.fault(22)
@pytest.mark.fault(23)
@pytest.mark.fault(24)
@pytest.mark.fault(30)
@pytest.mark.fault(37)
@pytest.mark.fault(39)
@pytest.mark.fault(40)
@pytest.mark.fault(43)
@pytest.mark.fault(44)
@pytest.mark.fault(48)
@pytest.mark.fault(51)
def test_whatever_fails_no_promise_is_broken_and_then_it_goes_on():
    report = simulate(range(SEEDS))
    assert report.seeds == SEEDS
    assert not report.failures, "\n\n".join(told(outcome) for outcome in report.failures[:2])
    assert report.steps / report.seeds > 300


#: By rule, a seed whose short world misses it. If the worlds change, the test looks for another seed, which takes up to
#: ten seconds: then write a new one here.
MISSED_AT = {
    "a-silent-writer's-slot-waits-for-proof": 36,
    "a-reader-gets-its-own-way": 0,
    "what-was-taken-back-is-asked-again": 4,
    "wants-of-the-silent-are-asked-elsewhere": 214,
    "a-pong-tells-what-was-lost": 425,
    "the-head-always-has-a-slot": 87,
    "a-silent-connection-is-made-anew": 42,
    "what-is-done-and-not-told-is-leased-no-more": 23,
    "what-is-done-already-is-not-done-again": 29,
    "what-was-done-before-a-restore-is-not-told": 236,
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rule", MISSED_AT)
def test_a_rule_of_the_core_is_missed_when_it_is_taken_out(rule):
    seed = MISSED_AT[rule]
    assert not run(seed).error
    with without(rule):
        missed = run(seed).error
    assert missed or simulate(range(2000), rule=rule, to_the_first=True).failures, "2000 seeds do without it"


def test_seeds_are_run_to_the_first_that_misses_a_rule():
    report = simulate(range(20), rule="what-was-taken-back-is-asked-again", to_the_first=True)
    assert [outcome.seed for outcome in report.failures] == [MISSED_AT["what-was-taken-back-is-asked-again"]]
    assert report.seeds == report.failures[0].seed + 1


def test_a_seed_gives_the_same_world_again():
    first, second = run(7, keep_all=True), run(7, keep_all=True)
    assert first.diary == second.diary
    assert first.steps == second.steps > 300


def test_the_command_tells_machines_how_it_went():
    code, said, complained = run_module("tests.faults.simulate", "--seeds", "20", "--json")
    assert (code, complained) == (0, "")
    told = json.loads(said.splitlines()[-1])
    assert told.pop("seconds") >= 0
    assert told == {"seeds": 20, "failures": 0, "steps": told["steps"]}

"""Metrics are declared once, named by the rules, and say what they are and what to do."""

from __future__ import annotations

import dataclasses
import re

import pytest

from loader_server import metrics as loaders
from loader_server.coordinator import limit_metrics as limits
from shared.metrics import names
from shared.metrics.names import WAIT_BOUNDS_S, Metric
from tests.support.scraping import METRICS, metrics_of
from trainer_client.session import metrics as trainers

ALL = sorted(METRICS.values(), key=lambda metric: metric.name)

#: What a metric measures decides how its name ends; counts of things have no unit.
UNITS = ("seconds", "bytes")


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
class TestEach:
    def test_is_named_by_the_rules(self, metric: Metric) -> None:
        assert re.fullmatch(r"stoker(_[a-z]+)+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        for unit in UNITS:
            if unit in metric.name:
                assert metric.name.removesuffix("_total").endswith(unit)

    def test_says_what_it_is_and_what_to_do(self, metric: Metric) -> None:
        for text in (metric.what, metric.remedy):
            assert len(text) >= 15
            assert text.endswith(".")
        assert metric.help_text == f"{metric.what} {metric.remedy}"
        assert "\n" not in metric.help_text

    def test_has_labels_of_few_values(self, metric: Metric) -> None:
        # Job, role and rank come with the target; a sample or a batch number would make a series each.
        labels = {"stream", "key", "phase", "kind", "part", "port", "state", "reason", "worker", "work", "result"}
        labels |= {"limit", "more"}
        assert set(metric.labels) <= labels

    def test_explains_each_value_of_its_label(self, metric: Metric) -> None:
        named = {"phase": ("plan_and_read", "warm_up"), "part": ("build",), "state": ("offered", "given up")}
        for label in set(metric.labels) & named.keys():
            assert any(value in metric.what for value in named[label])


def test_a_name_is_declared_once() -> None:
    with pytest.raises(AssertionError, match="stoker_workers is declared twice"):
        names.Declarations("worker").gauge("stoker_workers", "Workers again.", "Take another name.")


def test_every_constant_registers_itself_and_nothing_else_does() -> None:
    modules = (names, loaders, limits, trainers)
    constants = {value.name for module in modules for value in vars(module).values() if isinstance(value, Metric)}
    assert constants == METRICS.keys()


def test_roles_share_only_what_everyone_has() -> None:
    common = {metric.name for metric in metrics_of("worker")} & {metric.name for metric in metrics_of("trainer")}
    assert common == {"stoker_garbage_messages_total"}
    assert {role for metric in ALL for role in metric.roles} == {"coordinator", "worker", "trainer"}


def test_waits_are_told_apart_from_a_tenth_of_a_millisecond_to_a_minute() -> None:
    rounded = [step * 10**power for power in range(-3, 1) for step in (1, 2.5, 5)]
    assert pytest.approx([0.0001, *rounded, 10, 30, 60], rel=1e-9) == WAIT_BOUNDS_S


def test_a_declaration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        loaders.WORKERS.name = "other"  # type: ignore[misc]

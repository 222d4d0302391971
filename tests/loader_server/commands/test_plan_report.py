"""The plan command's facts: shares add up, tables show them, samples are found, plans compared."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from loader_server.commands.plan_report import diff, diff_table, facts, find, mixture, plot, tables
from shared.errors import SettingsError
from tests.loader_server.planning.tables import batches_of, log_normal, plan_of

SPEECH = log_normal(2_000)


def shown(*renderables):
    console = Console(file=io.StringIO(), width=160)
    for renderable in renderables:
        console.print(renderable)
    return console.file.getvalue()


@pytest.mark.parametrize(
    "variant", [{}, {"shapes": 4, "window": 600}, {"shapes": "none", "order": "laplace"}, {"pad_to": "batch"}], ids=str
)
@pytest.mark.parametrize("group", [1, 8])
def test_facts_are_those_of_the_batches(variant, group):
    plan = plan_of(SPEECH, **variant)
    found = facts(plan, group)
    batches = batches_of(plan.epoch(0, group))
    cells = sum(batch.shape.rows * batch.shape.lengths["audio"] for batch in batches)
    empty = sum(batch.shape.rows * batch.shape.lengths["audio"] for batch in batches if not len(batch.samples))
    padding = found["padding"]
    assert found["batches"] == len(batches)
    assert found["samples"] == 2_000
    assert padding["all"] == pytest.approx(1 - SPEECH.sum() / cells)
    assert padding["empty_batches"] == pytest.approx(empty / cells)
    parts = [padding[name] for name in ("time", "leftovers", "masked_rows", "empty_batches")]
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(padding["all"])
    assert found["shapes"] == len({(batch.shape.rows, batch.shape.lengths["audio"]) for batch in batches})
    assert json.loads(json.dumps(found)) == found


def test_dropped_samples_are_visible():
    plan = plan_of(SPEECH, max_length="20 s")
    text = shown(*tables({"digest": "0123456789abcdef"} | facts(plan, 1)))
    assert f"{plan.dropped['too_long']} too_long" in text
    assert "padding, all" in text
    assert "0123456789abcdef" in text


LONG = np.append(SPEECH.clip(max=2_000), [2_001, 2_500])


def above_budget(**variant):
    """What is said of batches above a budget of 20 s, having counted them."""
    plan = plan_of(LONG, budget="20 s", **variant)
    said = facts(plan, 1)
    above = [batch for batch in batches_of(plan.epoch(0, 1)) if batch.shape.lengths["audio"] > 2_000]
    assert said["above_budget"]["batches"] == len(above)
    return said["above_budget"]


@pytest.mark.parametrize(
    ("variant", "within", "needed"),
    [
        ({"shapes": 6}, 2_000, 2_500),
        ({"shapes": "none"}, 2_000, 2_500),
        ({"length_multiple": 128}, 1_920, 2_560),
        ({"packing": "30 s"}, 2_000, 3_000),
    ],
    ids=str,
)
def test_samples_longer_than_the_budget_are_counted_with_what_to_do(variant, within, needed):
    said = above_budget(**variant)
    samples = (within < LONG).sum()
    assert (said["samples"], said["longest"]) == (samples, 2_500)
    assert said["advice"] == (
        f"Samples longer than the budget of 20 s: {samples}, the longest of 2,500 steps. Each makes a batch "
        f'above it: write max_length = "{within} steps" to drop them, or budget = "{needed} steps".'
    )


def test_where_every_sample_is_above_the_budget_none_is_to_be_dropped():
    assert above_budget(length_multiple=2_100)["advice"].endswith('batch above it: write budget = "4200 steps".')


@pytest.mark.parametrize("more", [[], ["90 s"]], ids=["", "an unused shape"])
def test_a_shape_above_the_budget_is_named(more):
    said = above_budget(shapes=["5 s", "30 s", *more], max_length="20 s")
    assert said["samples"] == 0
    assert said["advice"] == (
        'The longest shape is above the budget of 20 s: shorten it, or write budget = "3000 steps".'
    )


@pytest.mark.parametrize("variant", [{"max_length": "20 s"}, {"shapes": ["5 s", "90 s"], "max_length": "5 s"}], ids=str)
def test_nothing_is_said_where_no_batch_is_above_the_budget(variant):
    said = above_budget(**variant)
    assert (said["batches"], said["samples"], said["advice"]) == (0, 0, "")


def test_the_advice_stands_below_the_totals():
    said = {"digest": ""} | facts(plan_of(LONG, budget="20 s"), 1)
    assert "Samples longer than the budget of 20 s: 2" in " ".join(shown(*tables(said)).split())
    assert "Samples longer" not in shown(*tables({"digest": ""} | facts(plan_of(SPEECH), 1)))


@pytest.mark.fault(50)
def test_a_group_that_leaves_epochs_without_batches_is_refused():
    with pytest.raises(SettingsError, match="groups of 64"):
        facts(plan_of(SPEECH, epoch_parts=40), 64)


def test_each_stage_of_a_curriculum_has_a_line():
    plan = plan_of(SPEECH, max_length={"0": "8 s", "3": "16 s", "6": "100 s"}, epoch_parts=2)
    for epoch, longest in ((0, 800), (6, 10_000)):
        found = facts(plan, 2, epoch)
        assert found["samples"] == (longest >= SPEECH).sum()
        assert found["dropped"].get("too_long", 0) == (longest < SPEECH).sum()
        assert sum(bucket["samples"] for bucket in found["buckets"]) == found["samples"]
        assert len(found["buckets"]) == len(plan.buckets)
        first, second, third = found["curriculum"]
        assert [one["epoch"] for one in (first, second, third)] == [0, 4, 6]
        assert [one["max_length"] for one in (first, second, third)] == [800, 1_600, 10_000]
        assert [one["samples"] for one in (first, third)] == [(SPEECH <= 800).sum(), 2_000]
        assert [one["batches"] for one in (first, second)] == [plan.epoch(number, 2).batches for number in (0, 4)]
        assert first["shapes"] < second["shapes"] < third["shapes"] == len(plan.buckets)
    text = shown(*tables({"digest": ""} | facts(plan, 2)))
    assert "Curriculum" in text
    assert "1,600" in text
    assert "curriculum" not in facts(plan_of(SPEECH), 2)


def test_a_mixture_says_what_each_source_gives_to_a_pass_and_how_often():
    lengths, sources, epoch = log_normal(64 * 60), (0, 64 * 40), 3
    plan = plan_of(lengths, sources=sources, weights=[1, 2], cycle=[False, True], max_length="20 s")
    small, large = mixture(plan, ["/data/small.csv", "/data/large.csv"], epoch)
    batches = np.concatenate([batch.samples for batch in batches_of(plan.epoch(epoch, 1))])
    counted = [int((batches < sources[1]).sum()), int((batches >= sources[1]).sum())]
    assert [small["given"], large["given"]] == counted
    within = lengths <= 2_000
    assert [small["samples"], large["samples"]] == [int(within[: sources[1]].sum()), int(within[sources[1] :].sum())]
    assert (small["times"], small["cycle"], large["cycle"]) == (1.0, False, True)
    assert large["times"] == counted[1] / large["samples"] > 3
    assert small["share"] + large["share"] == pytest.approx(1)
    text = shown(*tables({"digest": ""} | facts(plan, 1, epoch) | {"mixture": [small, large]}))
    assert "/data/large.csv" in text
    assert f"{large['times']:.2f}, starts over" in text


def test_a_plan_without_weights_has_no_mixture():
    assert mixture(plan_of(SPEECH), ["/data/all.csv"]) == []


def test_a_sample_is_found_with_its_batch():
    found = find(plan_of(SPEECH), 77, 4)
    (seat,) = found["seats"]
    assert seat["samples"][seat["row"]] == 77
    assert find(plan_of(SPEECH, max_length="20 s"), int(SPEECH.argmax()), 4)["seats"] == []


def test_plans_are_compared():
    one, other = facts(plan_of(SPEECH), 1), facts(plan_of(SPEECH, order="sorted"), 1)
    assert diff(one, one) == {}
    changed = diff(one, other)
    assert changed["order"] == ("shuffled", "sorted")
    assert "shuffled" in shown(diff_table(changed))
    assert "No difference" in shown(diff_table({}))


def test_the_histogram_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    plot(plan_of(SPEECH), tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")

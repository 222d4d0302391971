"""Plans: every sample once, one shape a group, equal steps, budgets, orders, limits, and what is kept on disk."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_server.planning import PLANNER_VERSION, OrdinalPlan, Plan, tally
from shared.errors import DataError, SettingsError
from shared.hashing import fingerprint
from shared.rounds import rounds
from shared.wire.batch_layout import BucketShape
from tests.loader_server.planning.tables import RATES, Lengths, Memory, batches_of, log_normal, plan_of, settings_of

SPEECH = log_normal(3_000)
VARIANTS = [
    {},
    {"order": "sorted"},
    {"order": "as_is"},
    {"order": "laplace"},
    {"window": 500},
    {"pad_to": "batch"},
    {"shapes": "none"},
    {"shapes": "none", "order": "laplace", "laplace_samples": 200},
    {"shapes": "none", "order": "sorted", "window": 500},
    {"shapes": 5, "objective": "area", "length_multiple": 8, "rows_multiple": 4},
    {"shapes": ["10 s", "20 s", "100 s"], "max_rows": 20},
    {"quadratic_length": "20 s", "largest_first": True},
]


def samples_of(batches):
    return np.concatenate([batch.samples for batch in batches])


@pytest.mark.heritage("R6")
@pytest.mark.heritage("R7")
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("group", [1, 8])
def test_every_sample_is_in_one_batch_that_fits_it(variant, group):
    plan = plan_of(SPEECH, **variant)
    epoch = plan.epoch(0, group)
    batches = batches_of(epoch)
    assert epoch.batches % group == 0
    assert epoch.batches <= plan.most_batches(group)
    assert sorted(samples_of(batches)) == list(range(3_000))
    for batch in batches:
        bound = plan.buckets[batch.bucket]
        assert len(batch.samples) <= batch.shape.rows <= bound.rows
        assert batch.shape.lengths["audio"] <= bound.lengths["audio"]
        assert SPEECH[batch.samples].max(initial=0) <= batch.shape.lengths["audio"]
        assert batch.shape.rows * batch.shape.lengths["audio"] <= max(30_000, batch.shape.lengths["audio"])
    for group_of_batches in itertools.zip_longest(*[iter(batches)] * group):
        assert len({(batch.shape.rows, batch.shape.lengths["audio"]) for batch in group_of_batches}) == 1
        valid = [len(batch.samples) for batch in group_of_batches]
        assert valid == sorted(valid, reverse=True)


@pytest.mark.heritage("R5")
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_no_sample_is_lost_or_repeated_while_the_world_changes_at_any_round(data):
    size = data.draw(st.integers(1, 400))
    plan = plan_of(log_normal(size, seed=data.draw(st.integers(0, 9))), shapes=data.draw(st.integers(1, 8)), window=150)
    epoch = plan.epoch(data.draw(st.integers(0, 3)), 16)
    seen, cursor = [], 0
    while cursor < epoch.batches:
        world = data.draw(st.integers(1, 16))
        for step in itertools.islice(rounds(cursor, epoch.batches, 16, world), data.draw(st.integers(1, 9))):
            places = [step.place(rank) for rank in range(world)]
            batches = [epoch.batch(place.number) for place in places]
            assert len({batch.bucket for batch in batches}) == 1
            seen += [batch.samples for batch, place in zip(batches, places, strict=True) if not place.empty]
            cursor = step.stop
    assert sorted(np.concatenate(seen)) == list(range(size))


@pytest.mark.parametrize("world", range(1, 17))
def test_all_ranks_have_equal_steps_and_shapes_in_every_world(world):
    epoch = plan_of(SPEECH[:800]).epoch(0, 16)
    seen = []
    for step in rounds(0, epoch.batches, 16, world):
        places = [step.place(rank) for rank in range(world)]
        assert len({epoch.batch(place.number).bucket for place in places}) == 1
        seen += [epoch.batch(place.number).samples for place in places if not place.empty]
    assert sorted(np.concatenate(seen)) == list(range(800))


@pytest.mark.parametrize("size", range(1, 11))
@pytest.mark.parametrize("group", [1, 16])
def test_a_handful_of_samples_is_a_corpus(size, group):
    epoch = plan_of(SPEECH[:size]).epoch(3, group)
    assert sorted(samples_of(batches_of(epoch))) == list(range(size))


def test_a_window_may_be_a_single_segment():
    epoch = plan_of(SPEECH[:50], window=1, segment=1).epoch(0, 2)
    assert sorted(samples_of(batches_of(epoch))) == list(range(50))
    assert epoch.batches == 100


def test_a_group_is_completed_by_empty_batches_of_its_shape():
    batches = batches_of(plan_of(np.array([500]), shapes=1).epoch(0, 4))
    assert [len(batch.samples) for batch in batches] == [1, 0, 0, 0]
    assert {batch.shape.rows for batch in batches} == {60}


@pytest.mark.parametrize("shapes", [1, 4, 16])
def test_there_are_exactly_as_many_shapes_as_asked_for(shapes):
    plan = plan_of(SPEECH, shapes=shapes)
    assert len(plan.buckets) == shapes
    assert {batch.shape.lengths["audio"] for batch in batches_of(plan.epoch(0, 1))} == {
        bucket.lengths["audio"] for bucket in plan.buckets
    }


def test_windows_of_a_large_corpus_share_the_epoch():
    plan = plan_of(log_normal(20_000), segment=256, window=2_048)
    epoch = plan.epoch(0, 4)
    batches = batches_of(epoch)
    assert sorted(samples_of(batches)) == list(range(20_000))
    assert epoch._place(0)[0] == 0
    assert epoch._place(epoch.batches - 1)[0] == 9
    assert [epoch.batches <= plan.most_batches(4) for epoch in (plan.epoch(number, 4) for number in range(5))] == [
        True
    ] * 5
    assert plan.most_batches(4) < 1.15 * epoch.batches


def test_the_bound_holds_where_every_window_leaves_a_sample_over():
    plan = plan_of(np.full(610, 500), segment=61, window=61, shapes=1)
    assert plan.buckets[0].rows == 60
    assert plan.epoch(0, 1).batches == 20 <= plan.most_batches(1) <= 21


def test_epochs_differ_and_repeat_themselves():
    plan = plan_of(SPEECH)
    first, again, second = (samples_of(batches_of(plan.epoch(number, 2))).tolist() for number in (0, 0, 1))
    assert first == again
    assert first != second
    assert first != samples_of(batches_of(plan_of(SPEECH, seed=8).epoch(0, 2))).tolist()


def test_batches_can_be_asked_for_in_any_order():
    plan = plan_of(SPEECH, window=500)
    in_order = [batch.samples.tolist() for batch in batches_of(plan.epoch(0, 2))]
    epoch = plan.epoch(0, 2)
    assert [epoch.batch(number).samples.tolist() for number in reversed(range(epoch.batches))] == in_order[::-1]
    with pytest.raises(IndexError):
        epoch.batch(epoch.batches)


def test_the_batches_of_this_planner_version_stay_what_they_are():
    batches = batches_of(plan_of(log_normal(600), seed=3, window=200).epoch(1, 2))
    said = [f"{batch.bucket}:{batch.samples.tolist()}" for batch in batches]
    assert (PLANNER_VERSION, fingerprint(*said)) == (2, "adf69fe0af238765bb5ed853fb2b3f20"), (
        "raise PLANNER_VERSION when the same inputs give other batches"
    )


@pytest.mark.heritage("D14")
def test_sorted_goes_from_short_to_long_over_all_windows():
    lengths = SPEECH[samples_of(batches_of(plan_of(SPEECH, order="sorted", window=200).epoch(0, 1)))]
    assert (np.diff(lengths) >= 0).all()


def test_lengths_beyond_16_bits_are_sorted_as_well():
    lengths = log_normal(500, 70_000)
    batches = batches_of(plan_of(lengths, order="sorted", budget="30000 s").epoch(0, 1))
    assert (np.diff(lengths[samples_of(batches)]) >= 0).all()


@pytest.mark.heritage("D14")
def test_a_curriculum_sorts_the_first_epochs_only():
    plan = plan_of(SPEECH, curriculum_epochs=2)
    rising = [(np.diff(SPEECH[samples_of(batches_of(plan.epoch(number, 1)))]) >= 0).all() for number in range(3)]
    assert rising == [True, True, False]


def test_as_is_keeps_the_order_of_the_data_within_a_bucket_and_between_groups():
    batches = batches_of(plan_of(SPEECH, order="as_is").epoch(5, 1))
    assert all((np.diff(batch.samples) > 0).all() for batch in batches)
    firsts = [int(batch.samples[0]) for batch in batches]
    assert firsts == sorted(firsts)


@pytest.mark.heritage("R12")
def test_epoch_parts_make_one_pass_together():
    plan = plan_of(SPEECH, epoch_parts=4)
    parts = [samples_of(batches_of(plan.epoch(number, 2))) for number in range(8)]
    assert sorted(np.concatenate(parts[:4])) == sorted(np.concatenate(parts[4:])) == list(range(3_000))
    assert parts[0].tolist() != parts[4].tolist()
    assert all(plan.epoch(number, 2).batches <= plan.most_batches(2) for number in range(4))


def test_the_largest_shape_can_come_first():
    plan = plan_of(SPEECH, largest_first=True)
    assert plan.epoch(0, 2).batch(0).bucket == len(plan.buckets) - 1


@pytest.mark.parametrize("shapes", ["auto", "none"])
def test_nothing_comes_first_in_a_window_whose_samples_are_all_dropped(shapes):
    lengths = np.concatenate([np.zeros(64, int), SPEECH[:64]])
    plan = plan_of(lengths, largest_first=True, shapes=shapes, order="as_is", window=64)
    assert sorted(samples_of(batches_of(plan.epoch(0, 1)))) == list(range(64, 128))


@pytest.mark.heritage("R12")
def test_laplace_in_plain_order_has_runs_of_rising_and_falling_length():
    plan = plan_of(SPEECH, shapes="none", order="laplace", laplace_samples=500)
    lengths = SPEECH[samples_of(batches_of(plan.epoch(0, 1)))].reshape(6, 500)
    assert (np.diff(lengths[::2], axis=1) >= 0).all()
    assert (np.diff(lengths[1::2], axis=1) <= 0).all()


@pytest.mark.heritage("R6")
def test_dropped_samples_are_counted_by_reason():
    lengths = np.array([0, 5, 50, 500, 5_000, 0])
    plan = plan_of(lengths, min_length="0.1 s", max_length="10 s")
    assert plan.dropped == {"empty": 2, "too_short": 1, "too_long": 1}
    assert sorted(samples_of(batches_of(plan.epoch(0, 1)))) == [2, 3]


def test_too_long_for_ones_own_buckets_is_an_error_that_names_the_remedy():
    with pytest.raises(SettingsError, match=r"a sample of 5000.*max_length = \"1000 steps\""):
        plan_of(np.array([500, 5_000]), shapes=["5 s", "10 s"])
    assert plan_of(np.array([500, 5_000]), shapes=["5 s", "10 s"], max_length="60 s").dropped == {"too_long": 1}


@pytest.mark.heritage("R7")
def test_a_sample_longer_than_the_budget_is_alone_in_its_batch():
    batches = batches_of(plan_of(np.array([100, 40_000, 200])).epoch(0, 1))
    assert [batch.samples.tolist() for batch in batches if 1 in batch.samples] == [[1]]


def test_a_plan_of_nothing_says_why():
    with pytest.raises(DataError, match=r"all dropped \(3 too_short"):
        plan_of(np.array([1, 2, 3]), min_length="1 s")
    with pytest.raises(DataError, match="no samples"):
        plan_of(np.array([], np.int64))


def test_other_keys_have_a_static_length_per_bucket_that_holds_spilled_samples_too():
    text = log_normal(3_000, 150, 0.6, seed=4)
    plan = plan_of({"audio": SPEECH, "text": text}, length_multiple=4)
    for batch in batches_of(plan.epoch(0, 8)):
        assert text[batch.samples].max(initial=0) <= batch.shape.lengths["text"]
        assert batch.shape.lengths["text"] % 4 == 0


@pytest.mark.parametrize("shapes", ["auto", "none"])
def test_other_keys_are_padded_to_the_longest_of_a_group_where_audio_is(shapes):
    text = log_normal(3_000, 150, 0.6, seed=4)
    batches = batches_of(plan_of({"audio": SPEECH, "text": text}, shapes=shapes, pad_to="batch").epoch(0, 2))
    for pair in zip(batches[::2], batches[1::2], strict=True):
        longest = max(text[batch.samples].max(initial=0) for batch in pair)
        assert {batch.shape.lengths["text"] for batch in pair} == {longest}


@pytest.mark.parametrize("shapes", ["auto", "none"])
def test_limits_hold_for_other_keys(shapes):
    text = log_normal(3_000, 150, 0.6, seed=4)
    plan = plan_of({"audio": SPEECH, "text": text}, shapes=shapes, limits={"text": "1000 characters"})
    assert plan.dropped == {"too_long": int((text > 1_000).sum())}
    assert plan.epoch(0, 3).batches <= plan.most_batches(3)
    for batch in batches_of(plan.epoch(0, 1)):
        assert batch.shape.rows * batch.shape.lengths["text"] <= 1_000 or batch.shape.rows == 1


def test_a_kept_plan_is_opened_without_reading_lengths():
    table, memory = Lengths(64, audio=SPEECH), Memory()
    plan, again = (
        Plan.make(table, settings_of(), key="audio", per_second=RATES, seed=7, keeper=memory) for _ in range(2)
    )
    reads = table.reads
    assert again.epoch(0, 8).batches == plan.epoch(0, 8).batches
    assert table.reads == reads == 2
    assert memory.saved == 1
    assert again.digest == plan.digest
    assert again.buckets == plan.buckets
    assert samples_of(batches_of(again.epoch(2, 4))).tolist() == samples_of(batches_of(plan.epoch(2, 4))).tolist()


@pytest.mark.parametrize("variant", [{"packing": "60 s"}, {"shapes": "none"}], ids=str)
def test_an_epoch_is_opened_again_without_looking_at_samples(variant):
    memory, speech = Memory(), SPEECH.clip(max=6_000)
    first = {
        (epoch, group): samples_of(
            batches_of(plan_of(speech, window=500, keeper=memory, **variant).epoch(epoch, group))
        )
        for epoch in range(2)
        for group in (1, 4)
    }
    again = plan_of(speech, window=500, keeper=memory, **variant)
    reads = again.recipe.table.reads
    opened = {key: again.epoch(*key) for key in first}
    assert again.recipe.table.reads == reads
    for key, samples in first.items():
        assert samples_of(batches_of(opened[key])).tolist() == samples.tolist()


def test_a_kept_plan_of_other_settings_is_not_used():
    memory = Memory()
    for shapes in (3, 5):
        assert plan_of(SPEECH, shapes=shapes, keeper=memory).buckets == plan_of(SPEECH, shapes=shapes).buckets
    for budget in ("60 s", "300 s"):
        kept, new = (plan_of(SPEECH, shapes="none", budget=budget, keeper=one) for one in (memory, None))
        assert kept.epoch(0, 1).batches == new.epoch(0, 1).batches


def test_plans_may_be_asked_by_several_threads():
    plan = plan_of(SPEECH.clip(max=6_000), window=300, packing="60 s", keeper=Memory())
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: plan.epoch(number % 3, 2), range(24)))
        batches = list(pool.map(lambda opened: samples_of(batches_of(opened)).tolist(), found))
    assert all(of == batches[number % 3] for number, of in enumerate(batches))
    assert [sorted(of) for of in batches[:3]] == [list(range(3_000))] * 3


def test_the_digest_names_index_settings_key_and_seed():
    text = SPEECH // 8 + 1
    both = {"audio": SPEECH, "text": text}
    plans = [
        plan_of(SPEECH),
        plan_of(SPEECH[1:]),
        plan_of(SPEECH, seed=8),
        plan_of(SPEECH, window=100),
        plan_of(both),
        plan_of(both, budget="30000 frames"),
        plan_of(both, key="text", budget="4000 tokens"),
    ]
    assert len({plan.digest for plan in plans}) == len(plans)
    assert plan_of(SPEECH).digest == plans[0].digest
    unnamed = Plan.make(Lengths(64, audio=SPEECH), settings_of(), key="audio", per_second=RATES, seed=7)
    assert unnamed.digest == plans[0].digest, "one source that starts at 0 is what goes without saying"


@pytest.mark.parametrize(("table", "passes"), [({}, 2), ({"sub_buckets": {"text": 2}}, 3)])
def test_progress_rises_to_the_end(table, passes, monkeypatch):
    monkeypatch.setattr(tally, "_BLOCK", 1_024)
    told = []
    Plan.make(
        Lengths(1_024, audio=SPEECH, text=SPEECH // 8),
        settings_of(**table),
        key="audio",
        per_second=RATES,
        seed=7,
        progress=lambda done, total: told.append((done, total)),
    )
    of_a_pass = (1_024, 2_048, 3_000)
    assert told == [(3_000 * number + done, 3_000 * passes) for number in range(passes) for done in of_a_pass]


@pytest.mark.parametrize("block", [500, 10])
def test_a_survey_does_not_hang_on_how_much_is_read_at_once(block, monkeypatch):
    both = {"audio": log_normal(3_000, 10_000, 0.6), "text": SPEECH // 8}
    table = {"min_length": "30 s", "max_length": "400 s", "sub_buckets": {"text": 2}}
    whole = plan_of(both, **table).recipe.tally.arrays()
    monkeypatch.setattr(tally, "_BLOCK", block)
    pieces = plan_of(both, **table).recipe.tally.arrays()
    assert whole["above"] > 0
    assert whole["dropped"].sum() > 0
    assert {name: array.tolist() for name, array in pieces.items()} == {
        name: array.tolist() for name, array in whole.items()
    }


def test_seats_of_a_sample_are_found():
    plan = plan_of(SPEECH, window=500, epoch_parts=2)
    for sample in (0, 1_500, 2_999):
        seats = [(epoch, seat) for epoch in range(2) for seat in plan.epoch(epoch, 4).find(sample)]
        assert len(seats) == 1
        epoch, seat = seats[0]
        assert plan.epoch(epoch, 4).batch(seat.batch).samples[seat.row] == sample


def test_a_sample_is_found_in_a_window_that_is_its_segment():
    epoch = plan_of(SPEECH[:20], window=1, segment=1).epoch(0, 1)
    for sample in range(20):
        (seat,) = epoch.find(sample)
        assert epoch.batch(seat.batch).samples.tolist() == [sample]


def test_rounds_have_no_memory_of_length():
    epoch = plan_of(log_normal(20_000), shapes=8).epoch
    lengths = [
        np.array([batch.shape.lengths["audio"] for batch in batches_of(epoch(number, 1))]) for number in range(8)
    ]
    assert abs(np.mean([np.corrcoef(of[:-1], of[1:])[0, 1] for of in lengths])) < 0.05


@pytest.mark.parametrize("group", [1, 8])
@pytest.mark.parametrize("window", [700, 262_144])
def test_sub_buckets_pad_a_second_key_less(group, window):
    text = SPEECH // 8 + log_normal(3_000, 60, 0.7, seed=4)
    both = {"audio": SPEECH, "text": text}
    cells = []
    for table in ({}, {"sub_buckets": {"text": 3}}):
        plan = plan_of(both, shapes=6, window=window, **table)
        epoch = plan.epoch(1, group)
        batches = batches_of(epoch)
        assert sorted(samples_of(batches)) == list(range(3_000))
        assert len(batches) <= plan.most_batches(group)
        for batch in batches:
            assert SPEECH[batch.samples].max(initial=0) <= batch.shape.lengths["audio"]
            assert text[batch.samples].max(initial=0) <= batch.shape.lengths["text"]
        cells.append(sum(batch.shape.rows * batch.shape.lengths["text"] for batch in batches))
    assert len(plan.buckets) == 18
    if group == 1:
        assert cells[1] < 0.9 * cells[0]


def test_sub_buckets_end_where_they_pad_least():
    both = {"audio": np.full(101, 100), "text": np.array([10] + [20] * 50 + [100] * 50)}
    plan = plan_of(both, shapes=1, sub_buckets={"text": 2})
    assert [bucket.lengths["text"] for bucket in plan.buckets] == [20, 100]


def test_sub_buckets_need_another_key_and_buckets():
    both = {"audio": SPEECH, "text": SPEECH}
    with pytest.raises(SettingsError, match="Leave one of them out"):
        plan_of(both, shapes="none", sub_buckets={"text": 3})
    with pytest.raises(SettingsError, match='"text"'):
        plan_of(both, sub_buckets={"txt": 3})
    with pytest.raises(SettingsError, match=r"sub_buckets = \{ text = 3 \}"):
        plan_of(both, sub_buckets={"text": 1})


# --- batches that are made whole ---

LARGEST = BucketShape(rows=1, lengths={"tokens:values": 9})


def ordinal_plan(**other):
    return OrdinalPlan(**{"producers": 3, "elements": 5, "largest": LARGEST, "made_from": ("index",), **other})


def test_an_epoch_has_room_for_every_shard_in_whole_groups():
    assert [ordinal_plan().epoch(epoch, 1).batches for epoch in range(3)] == [15, 15, 15]
    assert (ordinal_plan().most_batches(4), ordinal_plan().epoch(7, 4).batches) == (16, 16)
    assert ordinal_plan().objection(4096) is None


def test_a_batch_has_its_number_and_the_largest_shape():
    batch = ordinal_plan().epoch(2, 1).batch(14)
    assert (batch.samples.tolist(), batch.shape) == ([14], LARGEST)


def test_what_decides_the_batches_is_in_the_digest():
    others = ({}, {"producers": 5}, {"elements": 6}, {"made_from": ("other",)})
    digests = {ordinal_plan(**other).digest for other in others}
    assert len(digests) == 4
    assert ordinal_plan().digest == ordinal_plan().digest

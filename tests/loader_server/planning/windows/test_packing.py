"""Packing: rows never overflow, nothing is lost, little is wasted, partners change."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.building.packed_rows import PackedRows, write_marks
from loader_server.planning.windows.packing import best_fit
from shared.errors import SettingsError
from tests.loader_server.planning.tables import batches_of, log_normal, plan_of

SPEECH = log_normal(5_000, spread=0.3)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60))
def test_best_fit_never_overflows_and_at_most_one_row_is_less_than_half_full(lengths):
    rows = best_fit(np.array(lengths), 100)
    filled = np.bincount(rows, weights=lengths)
    assert filled.max() <= 100
    assert (filled < 50).sum() <= 1
    assert set(rows) == set(range(len(filled)))


def test_best_fit_takes_the_fullest_row_that_has_room():
    assert best_fit(np.array([60, 70, 30, 40]), 100).tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("order", ["shuffled", "as_is"])
def test_packed_batches_hold_every_sample_once_in_places_of_its_own(group, order):
    plan = plan_of(SPEECH, packing="60 s", order=order, window=2_000)
    epoch = plan.epoch(0, group)
    batches = batches_of(epoch)
    assert sorted(np.concatenate([batch.samples for batch in batches])) == list(range(5_000))
    assert len(batches) == epoch.batches <= plan.most_batches(group)
    for batch in batches:
        lengths = SPEECH[batch.samples]
        segments, positions = np.zeros((2, batch.shape.rows, 6_000), np.int64)
        for place, length in zip(PackedRows(batch.rows, batch.offsets, 10**9).places, lengths, strict=True):
            write_marks(segments, positions, place, length)
        assert (segments > 0).sum() == lengths.sum()
        assert positions.max(initial=-1) < lengths.max(initial=1)


def test_packing_wastes_little_and_changes_partners():
    plan = plan_of(SPEECH, packing="60 s")
    batches = batches_of(plan.epoch(0, 1))
    assert 1 - SPEECH.sum() / (len(batches) * 30_000) < 0.03
    partners = []
    for number in range(2):
        (seat,) = plan.epoch(number, 1).find(17)
        batch = plan.epoch(number, 1).batch(seat.batch)
        partners.append(set(batch.samples[batch.rows == seat.row]))
        assert 17 in partners[-1]
    assert partners[0] != partners[1]


@pytest.mark.parametrize("other", [{"shapes": 4}, {"shapes": "none"}, {"pad_to": "batch"}])
def test_packing_has_a_shape_of_its_own(other):
    with pytest.raises(SettingsError, match="packing alone"):
        plan_of(SPEECH, packing="60 s", **other)


def test_packing_beside_another_padded_key_is_refused():
    with pytest.raises(SettingsError, match='"text" beside it'):
        plan_of({"audio": SPEECH, "text": SPEECH}, packing="60 s")

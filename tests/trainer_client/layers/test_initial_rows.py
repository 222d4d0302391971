"""Rows before any gradient: a pure function of seed, name and id, as drawn as they are asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shared.wire.message_parts import TableForm
from trainer_client.layers.initial_rows import initial_rows, servers_of

FORM = TableForm("words", 8, None, 7, "uniform", -0.05, 0.05)
GOLDEN = [
    [-0.04611225798726082, 0.0003582712961360812, 0.041047386825084686],
    [0.02424461580812931, 0.04164639487862587, 0.037675585597753525],
]
NORMAL = replace(FORM, initializer="normal", first=1.0, second=2.0)
IDS = np.array([3, -5, 0, 2**63 - 1, -(2**63), 4], np.int64)


@pytest.mark.parametrize("form", [FORM, NORMAL], ids=["uniform", "normal"])
def test_a_row_depends_on_its_id_alone(form):
    rows = initial_rows(form, IDS)
    np.testing.assert_array_equal(initial_rows(form, IDS[::-1])[::-1], rows)
    for at in range(len(IDS)):
        np.testing.assert_array_equal(initial_rows(form, IDS[at : at + 1])[0], rows[at])
    assert len(np.unique(rows)) == rows.size


@pytest.mark.parametrize("change", [{"seed": 8}, {"name": "others"}])
def test_another_seed_or_name_makes_other_rows(change):
    assert not np.intersect1d(initial_rows(FORM, IDS), initial_rows(replace(FORM, **change), IDS)).size


def test_rows_are_the_same_in_every_release():
    """A table that was begun goes on with the rows that it would have had."""
    np.testing.assert_array_equal(
        initial_rows(FORM, np.array([0, 2**40], np.int64))[:, :3],
        np.array(GOLDEN, np.float32),
    )


def test_uniform_rows_fill_their_bounds_and_normal_ones_have_their_deviation():
    many = np.arange(20_000, dtype=np.int64)
    uniform, normal = initial_rows(FORM, many), initial_rows(NORMAL, many)
    assert uniform.min() >= np.float32(-0.05)
    assert uniform.max() <= np.float32(0.05)
    assert np.histogram(uniform, 10, (-0.05, 0.05))[0] / uniform.size == pytest.approx([0.1] * 10, abs=0.005)
    assert (normal.mean(), normal.std()) == pytest.approx((1.0, 2.0), abs=0.02)
    assert ((normal - 1) ** 4).mean() / 2.0**4 == pytest.approx(3.0, abs=0.1), "no other shape than a normal one"
    for rows in (uniform, normal):
        assert np.abs(np.corrcoef(rows.T) - np.eye(8)).max() < 0.03
        assert abs(np.corrcoef(rows[:-1].ravel(), rows[1:].ravel())[0, 1]) < 0.03


def test_constant_rows_have_their_value():
    assert (initial_rows(replace(FORM, initializer="constant", first=3.5), IDS) == 3.5).all()


def test_servers_get_about_as_many_rows_each_whatever_the_ids_have_in_common():
    for step in (1, 2, 3, 1024, 2**40):
        ids = np.arange(9_000, dtype=np.int64) * step
        assert np.bincount(servers_of(ids, 3), minlength=3) == pytest.approx([3000] * 3, abs=200)

"""Books of what was read, waited for and trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.metrics.names import WAIT_BOUNDS_S
from shared.wire.batch_layout import Field, fields_of_batch
from shared.wire.message_parts import Ticket, WireShape
from shared.wire.messages import Limited, Pushed
from trainer_client.session.epoch_account import Accounts, split_wait

FIELDS = fields_of_batch(
    (
        Field(key="audio", dtype="float32", shape=(None, 2)),
        Field(key="text", dtype="int16", shape=(None,)),
        Field(key="speaker", dtype="int64", shape=()),
    )
)
SHAPE = WireShape(4, (("audio", 10), ("text", 5)))


def _header(**more: Any) -> Pushed:
    said: dict[str, Any] = {
        "ticket": Ticket(0, 1),
        "epoch": 0,
        "number": 0,
        "empty": False,
        "in_slot": True,
        "shape": SHAPE,
        "nbytes": 1000,
        "digest": 1,
        "rows": 2,
        "masked": 1,
        "build_us": 30_000,
        "read_us": 0,
        "held_us": 40_000,
        "waiting": 0,
        "reason": "",
        "reasons": (),
    }
    return Pushed(**{**said, **more})


ARRAYS = {"audio_length": np.array([10, 6, 0, 0]), "text_length": np.array([5, 1, 0, 0])}


def _read(accounts: Accounts, *, at_s: float = 10.0, wait_s: float = 0.5, **more: Any) -> None:
    accounts.count_read([_header(**more)], ARRAYS, at_s=at_s, wait_s=wait_s, conversion_s=0.01)


def test_a_batch_is_staged_until_it_is_trained_on_or_given_back() -> None:
    accounts = Accounts(FIELDS)
    for number in range(3):
        _read(accounts, number=number)
    assert accounts.staged == 3
    accounts.count_given_back(0, 1)
    accounts.count_given_back(0, 7)
    assert accounts.staged == 2
    accounts.count_trained(0, 0, stop=3)
    assert (accounts.staged, accounts.counts.trained_rows) == (0, 4)


def test_batches_that_are_read_at_once_count_as_if_one_by_one() -> None:
    at_once, one_by_one = Accounts(FIELDS), Accounts(FIELDS)
    headers = [_header(rows=rows, masked=masked) for rows, masked in ((4, 0), (3, 1), (1, 0))]
    lengths = [{key: array // (number + 1) for key, array in ARRAYS.items()} for number in range(3)]
    stacked = {key: np.stack([one[key] for one in lengths]) for key in ARRAYS}
    at_once.count_read(headers, stacked, at_s=10.0, wait_s=0.5, conversion_s=0.03)
    for number, header in enumerate(headers):
        wait_s = 0.0 if number else 0.5
        one_by_one.count_read([header], lengths[number], at_s=10.0, wait_s=wait_s, conversion_s=0.01)
    one_by_one.counts.conversion_s = at_once.counts.conversion_s
    assert at_once.counts == one_by_one.counts


def test_rows_and_bytes_are_told_apart() -> None:
    accounts = Accounts(FIELDS)
    _read(accounts)
    _read(accounts)
    counts = accounts.counts
    assert (counts.batches, counts.nbytes) == (2, 2000)
    assert (counts.sample_rows, counts.masked_rows, counts.vacant_rows) == (4, 2, 2)
    # A row holds 10 x 2 floats and 5 shorts; samples hold 16 steps of audio and 6 of text.
    assert counts.sample_bytes == 2 * (16 * 8 + 6 * 2)
    assert counts.padding_bytes == 2 * (2 * 90 - 140)
    assert counts.masked_bytes == 2 * 2 * 90


def test_marks_of_packed_rows_are_not_padded_keys() -> None:
    marks = Field(key="audio_segment", dtype="int32", shape=(None,))
    accounts = Accounts((*FIELDS, marks))
    _read(accounts, shape=WireShape(4, (("audio", 10), ("audio_segment", 10), ("text", 5))), masked=3)
    assert accounts.counts.sample_bytes == 140
    assert accounts.counts.vacant_rows == 0


def test_waits_are_counted_where_they_belong() -> None:
    accounts = Accounts(FIELDS)
    for wait_s in (0.0, 0.0001, 0.00011, 59.0, 61.0):
        _read(accounts, wait_s=wait_s)
    waits = accounts.counts.waits
    assert (waits[0], waits[1], waits[-2], waits[-1]) == (2, 1, 1, 1)
    assert sum(waits) == 5
    assert accounts.counts.wait_s == pytest.approx(120.00021)


@given(st.floats(0, 1e4), st.floats(0, 1e4), st.booleans())
def test_a_wait_is_split_without_a_rest(wait_s: float, build_s: float, in_slot: bool) -> None:
    build_wait_s, transfer_s = split_wait(wait_s, build_s, in_slot=in_slot)
    assert build_wait_s + transfer_s == pytest.approx(wait_s)
    assert min(build_wait_s, transfer_s) >= 0
    assert build_wait_s == wait_s if in_slot else build_wait_s <= build_s


def test_what_is_beyond_building_is_the_way_here() -> None:
    accounts = Accounts(FIELDS)
    _read(accounts, wait_s=0.5, in_slot=False)
    _read(accounts, wait_s=0.5, in_slot=True)
    assert accounts.counts.build_wait_s == pytest.approx(0.03 + 0.5)
    assert accounts.counts.transfer_wait_s == pytest.approx(0.47)
    assert accounts.counts.conversion_s == pytest.approx(0.02)


@pytest.mark.heritage("R8")
@pytest.mark.heritage("R12")
def test_an_epoch_s_line() -> None:
    accounts = Accounts(FIELDS)
    for number in range(4):
        _read(accounts, at_s=100.0 + number, wait_s=0.25, number=number, in_slot=False)
        accounts.count_trained(0, number)
    account = accounts.close(0)
    assert account is not None
    assert account.log_fields(now_s=103.75, batches=4) == {
        "limit": "unknown",
        "steps": 4,
        "seconds": 4.0,
        "steps_per_s": 1.0,
        "waiting": 0.25,
        "build": 0.03,
        "transfer": 0.22,
        "conversion": 0.01,
        "padding": round(1 - 140 / 360, 4),
        "shapes": 1,
        "masked": 4,
        "complete": 1.0,
    }


@pytest.mark.parametrize(
    ("limit", "fields"),
    [
        (None, {"limit": "unknown"}),
        (
            Limited(limit="transforms", who="", loaders_gain=1300, worker_gain=390, window_gain=0),
            {"limit": "transforms", "gain": "1 more worker +39 %, endless loaders +130 %"},
        ),
        (
            Limited(limit="worker", who="vm-3", loaders_gain=1300, worker_gain=None, window_gain=None),
            {"limit": "worker", "at": "vm-3", "gain": "unknown"},
        ),
        (
            Limited(limit="trainers", who="", loaders_gain=0, worker_gain=0, window_gain=0),
            {"limit": "trainers", "gain": "endless loaders would gain nothing"},
        ),
    ],
)
def test_an_epoch_s_line_has_what_limited_it_in_the_coordinator_s_words(
    limit: Limited | None, fields: dict[str, str]
) -> None:
    accounts = Accounts(FIELDS)
    _read(accounts, at_s=1.0, wait_s=0.0)
    account = accounts.close(0)
    assert account is not None
    line = account.log_fields(now_s=2.0, batches=1, limit=limit)
    assert {name: line[name] for name in ("limit", "at", "gain") if name in line} == fields


def test_of_an_epoch_that_trainers_share_the_line_has_the_share() -> None:
    accounts = Accounts(FIELDS)
    for number in (3, 7):
        _read(accounts, at_s=1.0, number=number)
        accounts.count_trained(0, number, stop=number + 1)
    account = accounts.close(0)
    assert account is not None
    line = account.log_fields(now_s=2.0, batches=8, is_shared=True)
    assert line["share"] == 0.25
    assert "complete" not in line


@pytest.mark.heritage("R8")
def test_a_loop_s_own_waits_go_before_those_of_a_reader_that_runs_ahead() -> None:
    accounts = Accounts(FIELDS)
    _read(accounts, at_s=1.0, wait_s=0.9)
    accounts.count_step_wait(0, 0.125)
    accounts.count_step_wait(0, 0.125)
    account = accounts.close(0)
    assert account is not None
    assert account.log_fields(now_s=1.1, batches=1)["waiting"] == pytest.approx(0.25)
    assert accounts.counts.step_wait_s == 0.25
    assert accounts.counts.wait_s == 0.9


def test_an_epoch_that_was_resumed_is_partly_complete() -> None:
    accounts = Accounts(FIELDS)
    _read(accounts, number=6)
    accounts.count_trained(0, 6)
    accounts.count_trained(0, 7)
    account = accounts.close(0)
    assert account is not None
    assert account.log_fields(now_s=20.0, batches=8)["complete"] == 0.25


def test_reading_ahead_counts_with_the_epoch_that_it_reads() -> None:
    accounts = Accounts(FIELDS)
    _read(accounts, number=0)
    _read(accounts, epoch=1, shape=WireShape(2, (("audio", 10), ("text", 5))), rows=1)
    accounts.count_trained(0, 0)
    first, second = accounts.close(0), accounts.close(1)
    assert first is not None
    assert second is not None
    assert (first.steps, second.steps) == (1, 0)
    assert first.shapes != second.shapes
    assert accounts.counts.batches == 2


def test_room_for_strings_makes_no_other_shape() -> None:
    accounts = Accounts((*FIELDS, Field(key="id", dtype="string", shape=())))
    for room in (512, 1024):
        _read(accounts, shape=WireShape(4, (("audio", 10), ("id", room), ("text", 5))))
    account = accounts.close(0)
    assert account is not None
    assert account.log_fields(now_s=1.0, batches=2)["shapes"] == 1


def test_a_closed_or_forgotten_epoch_tells_nothing_twice() -> None:
    accounts = Accounts(FIELDS)
    _read(accounts)
    assert accounts.close(0) is not None
    accounts.count_trained(0, 0)
    assert accounts.close(0) is None
    assert accounts.counts.rounds == 0
    _read(accounts)
    accounts.forget()
    assert accounts.close(0) is None


def test_an_epoch_of_nothing_has_a_line_too() -> None:
    accounts = Accounts(FIELDS[2:3])
    accounts.count_read([_header(shape=WireShape(4, ()))], {}, at_s=5.0, wait_s=0.0, conversion_s=0.0)
    account = accounts.close(0)
    assert account is not None
    line = account.log_fields(now_s=5.0, batches=0)
    assert (line["waiting"], line["padding"], line["complete"]) == (0.0, 0.0, 1.0)
    assert len(WAIT_BOUNDS_S) + 1 == len(accounts.counts.waits)


def test_rows_count_as_trained_on_with_their_batches_and_not_before() -> None:
    accounts = Accounts(FIELDS)
    for number, rows in enumerate((4, 3, 2, 1)):
        _read(accounts, number=number, rows=rows, masked=0)
    _read(accounts, number=0, rows=0, masked=0, empty=True)
    _read(accounts, epoch=1, number=1, rows=1, masked=0)
    assert accounts.counts.trained_rows == 0
    accounts.count_trained(0, 0, stop=2)
    assert accounts.counts.trained_rows == 7
    accounts.count_trained(0, 3, stop=4)
    assert accounts.counts.trained_rows == 8
    accounts.count_trained(0, 0)
    assert accounts.counts.trained_rows == 10
    accounts.forget()
    accounts.count_trained(1, 0)
    assert accounts.counts.trained_rows == 10


def test_who_reads_far_ahead_counts_all_rows_once_the_epoch_is_through() -> None:
    accounts = Accounts(FIELDS)
    for number in range(5000):
        _read(accounts, number=number, rows=1 + number % 3, masked=0)
    accounts.count_trained(0, 0, 5000)
    assert accounts.counts.trained_rows == sum(1 + number % 3 for number in range(5000))


def test_bytes_of_a_key_that_varies_along_two_axes_are_those_of_its_pixels() -> None:
    accounts = Accounts(fields_of_batch([Field(key="image", dtype="uint8", shape=(None, None, 3))]))
    arrays = {"image_length": np.array([10, 6, 0, 0]), "image_width": np.array([4, 7, 0, 0])}
    header = _header(shape=WireShape(4, (("image", 10), ("image_width", 8))))
    accounts.count_read([header], arrays, at_s=10.0, wait_s=0.5, conversion_s=0.01)
    samples = 3 * (10 * 4 + 6 * 7)
    assert accounts.keys == {"image_length", "image_width"}
    assert accounts.counts.sample_bytes == samples
    assert accounts.counts.padding_bytes == header.rows * 10 * 8 * 3 - samples

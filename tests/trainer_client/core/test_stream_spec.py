from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.wire import messages as m
from shared.wire.batch_layout import BucketShape, Field, layout_of
from shared.wire.message_parts import Cursor, Ticket, WireField, WireShape
from trainer_client.core import stream_spec as module
from trainer_client.core.stream_spec import StreamSpec
from trainer_client.core.upcoming import Position, UpcomingBatch

FIELDS = (
    WireField("audio", "float32", (None, 8), 100.0),
    WireField("text", "int32", (None,), None),
    WireField("weight", "float32", (), None),
)
SHAPES = (WireShape(8, (("audio", 50), ("text", 20))), WireShape(4, (("audio", 100), ("text", 10))))
TARGET = UpcomingBatch(Position(2, 4, 4), 1, 0, 5, empty=False)


@pytest.fixture
def facts() -> StreamSpec:
    return attached()


def attached() -> StreamSpec:
    return StreamSpec.of(
        m.Attached(
            serial=1, job="digits", stream="train", evaluation=False, work=None, book=None,
            cursor=Cursor(0, 0, 4, "plan-1"), next_group=4, tenure=1, batches=9, most_batches=10, fields=FIELDS,
            shapes=SHAPES,
            producers=0, base_fields=(),
            heartbeat_timeout_ms=1500, max_bad=1.0, max_bad_samples=None, members=1, workers=(),
        )
    )  # fmt: skip


def pushed(shape: WireShape = SHAPES[0], **other) -> m.Pushed:
    fields = tuple(Field(key=one.key, dtype=one.dtype, shape=one.shape) for one in FIELDS)
    layout = layout_of(fields, BucketShape(rows=shape.rows, lengths=dict(shape.lengths)))
    said = {
        "ticket": Ticket(0, 1), "epoch": 2, "number": 5, "empty": False, "in_slot": False, "shape": shape,
        "digest": 0, "nbytes": layout.nbytes, "rows": 3, "masked": 0, "waiting": 0, "reason": "",
        "reasons": (), "build_us": 9, "read_us": 0, "held_us": 9,
    }  # fmt: skip
    return m.Pushed(**{**said, **other})


def test_what_attaching_said(facts):
    assert (facts.job, facts.stream, facts.plan_digest, facts.most_batches) == ("digits", "train", "plan-1", 10)
    assert facts.heartbeat_timeout_s == 1.5
    assert facts.fields[0].per_second == 100.0
    assert facts.shapes[1].lengths == {"audio": 100, "text": 10}


def test_the_largest_batch_decides_the_slot(facts):
    assert facts.largest_bytes() == max(pushed(shape).nbytes for shape in SHAPES)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_was_asked_for_in_a_buckets_shape_fits(facts, shape):
    assert facts.fits(pushed(shape), TARGET)


def test_a_batch_padded_to_its_longest_row_fits_too(facts):
    assert facts.fits(pushed(WireShape(3, (("audio", 41), ("text", 7)))), TARGET)


@pytest.mark.fault(9)
@pytest.mark.parametrize(
    "header",
    [
        pushed(epoch=1),
        pushed(number=4),
        pushed(empty=True),
        pushed(nbytes=pushed().nbytes - 64),
        pushed(nbytes=pushed().nbytes + 64),
        pushed(rows=9),
        pushed(WireShape(9, SHAPES[0].lengths)),
        pushed(WireShape(8, (("audio", 100), ("text", 20)))),
        replace(pushed(), shape=WireShape(8, (("audio", 50),))),
        replace(pushed(), shape=WireShape(8, ())),
    ],
    ids=[
        "epoch", "number", "empty", "too short", "too long", "more rows than the shape", "more rows than a bucket",
        "longer than its bucket", "a length left out", "no length",
    ],
)  # fmt: skip
def test_anything_else_does_not(facts, header):
    assert not facts.fits(header, TARGET)


@pytest.mark.fault(9)
@given(
    rows=st.integers(1, 20),
    lengths=st.lists(st.tuples(st.sampled_from(["audio", "text", "other"]), st.integers(0, 2**48)), max_size=4),
)
def test_what_fits_fits_into_a_slot(rows, lengths):
    facts = attached()
    layout = facts.layout(WireShape(rows, tuple(lengths)))
    assert layout is None or layout.nbytes <= facts.largest_bytes()


def test_layouts_are_remembered_up_to_a_number(facts, monkeypatch):
    monkeypatch.setattr(module, "_MOST_LAYOUTS", 3)
    first = facts.layout(SHAPES[0])
    assert facts.layout(SHAPES[0]) is first
    for length in range(10):
        facts.layout(WireShape(1, (("audio", length), ("text", 1))))
    assert len(facts._layouts) <= 3
    assert facts.layout(SHAPES[0]) == first

"""The builder alone, on a stream in memory: what it writes, what it masks, what it raises."""

from __future__ import annotations

import errno
import functools
import itertools
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.building.builder import Builder
from loader_server.building.fallbacks import FALLBACK_REASONS
from loader_server.building.quarantine import Quarantine
from loader_server.building.trial_rule import ExhaustedError
from loader_server.sources.batch_columns import Ragged
from loader_server.sources.files import retried_reads
from loader_server.transforms import transform
from loader_server.transforms.declare import Declaration
from loader_server.transforms.on_columns import OfColumns
from shared.errors import DataError, ReadError
from shared.hashing import digest64
from shared.wire.batch_layout import Field, fields_of_batch
from tests.support.in_memory import ColumnSource, GatheringSource, MemorySource, MemoryStream, Steps, memory_want
from tests.support.transforms import Panic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from loader_server.building.build_counts import Built
    from loader_server.sources.batch_columns import Columns
    from shared.wire import messages as m


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retried_reads, "_READ_PAUSES_S", (0.0,))


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Builder]:
    def make(source: MemorySource | None = None, *transforms: str, packed: bool = False) -> Builder:
        stream = MemoryStream(source, transforms, packed=packed)
        return Builder(stream, Quarantine(tmp_path / "quarantine.jsonl"), Steps())

    return make


def raising(error: BaseException) -> Callable[[], object]:
    def raise_it() -> None:
        raise error

    return raise_it


def build(builder: Builder, want: m.Want, **how: Any) -> tuple[Built, dict[str, np.ndarray]]:
    """The batch, written over memory that holds something else."""
    prepared = builder.prepare(want)
    payload = np.full(prepared.layout.nbytes, 0xA5, np.uint8)
    built = builder.build(want, prepared, payload, **how)
    assert built.digest == (digest64(payload.data) if how.get("digest", True) else 0)
    return built, prepared.layout.arrays(payload)


def quarantined(folder: Path) -> list[tuple[int, str]]:
    lines = (folder / "quarantine.jsonl").read_text().splitlines()
    return [(line["sample"], line["reason"]) for line in map(json.loads, lines)]


# --- what it writes ---


@pytest.mark.parametrize("source", [MemorySource, GatheringSource, ColumnSource])
def test_a_batch_holds_its_samples_and_nothing_else(make: Callable[..., Builder], source: type[MemorySource]) -> None:
    built, arrays = build(make(source()), memory_want(1))
    assert arrays["tokens"].tolist() == [
        [5, 5, 5, 5, 0, 0],
        [6, 6, 6, 6, 6, 0],
        [7, 7, 7, 7, 7, 0],
        [8, 8, 8, 8, 8, 0],
        [0] * 6,
    ]
    assert arrays["tokens_length"].tolist() == [4, 5, 5, 5, 0]
    assert arrays["third"].tolist() == pytest.approx([4 / 3, 5 / 3, 2, 7 / 3, 0])
    assert arrays["weight"].tolist() == [1, 1, 1, 1, 0]
    assert arrays["tag"].tolist() == [4, 5, 6, 7, -1]
    assert (built.rows, built.masked, built.reason) == (4, 0, "")
    assert (built.cells, built.sample_cells, built.masked_cells) == (30, 19, 6)


@pytest.mark.parametrize("source", [MemorySource, GatheringSource, ColumnSource])
def test_an_empty_place_has_the_shape_and_no_sample(make: Callable[..., Builder], source: type[MemorySource]) -> None:
    built, arrays = build(make(source()), memory_want(1, empty=True))
    assert arrays["tag"].tolist() == [-1] * 5
    assert not any(arrays[key].any() for key in ("tokens", "tokens_length", "weight"))
    assert (built.rows, built.masked, built.masked_cells) == (0, 0, 30)


@pytest.mark.parametrize("source", [MemorySource, GatheringSource, ColumnSource])
def test_packed_samples_share_rows_and_are_told_apart(make: Callable[..., Builder], source: type[MemorySource]) -> None:
    built, arrays = build(make(source(), packed=True), memory_want(1))
    rows = {
        "tokens": [[5, 5, 5, 5, 0, 6, 6, 6, 6, 6, 7, 7, 7, 7, 7], [8] * 5 + [0] * 10],
        "tokens_segment": [[1, 1, 1, 1, 0, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3], [1] * 5 + [0] * 10],
        "tokens_position": [[0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4] + [0] * 10],
    }
    for key, (first, third) in rows.items():
        assert arrays[key].tolist() == [first, [0] * 15, third, [0] * 15, [0] * 15]
    assert arrays["tokens_length"].tolist() == [15, 0, 5, 0, 0]
    assert arrays["weight"].tolist() == [1, 0, 1, 0, 0]
    assert arrays["tag"].tolist() == [4, -1, 7, -1, -1]
    assert (built.rows, built.masked, built.cells, built.masked_cells) == (2, 0, 75, 45)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("source", [MemorySource, GatheringSource, ColumnSource])
def test_an_empty_sample_has_a_valid_row_or_a_place_without_marks(
    make: Callable[..., Builder], source: type[MemorySource], *, packed: bool
) -> None:
    """Sample 0 has no tokens."""
    built, arrays = build(make(source(), packed=packed), memory_want(0))
    if packed:
        assert arrays["tokens_segment"][0].tolist() == [0] * 5 + [2, 0, 0, 0, 0] + [3, 3, 0, 0, 0]
        assert arrays["tokens_length"].tolist() == [12, 0, 3, 0, 0]
        assert arrays["tag"].tolist() == [0, -1, 3, -1, -1]
    else:
        assert arrays["tokens"].tolist() == [[0] * 6, [2] + [0] * 5, [3, 3] + [0] * 4, [4] * 3 + [0] * 3, [0] * 6]
        assert arrays["tokens_length"].tolist() == [0, 1, 2, 3, 0]
        assert arrays["weight"].tolist() == [1, 1, 1, 1, 0]
        assert arrays["tag"].tolist() == [0, 1, 2, 3, -1]
    assert (built.masked, built.rows) == (0, 2 if packed else 4)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("source", [MemorySource, GatheringSource, ColumnSource])
def test_padding_fills_each_cell_that_holds_no_sample_and_changes_nothing_else(
    make: Callable[..., Builder], source: type[MemorySource], *, packed: bool, empty: bool
) -> None:
    bad = {5: raising(ValueError())} if source is MemorySource else {}
    want = memory_want(1, empty=empty)
    _, zeros = build(make(source(on_decode=bad), packed=packed), want)
    builder = make(source(on_decode=bad), packed=packed)
    builder.stream.padding = {"tokens": np.int32(3)} | ({} if packed else {"third": np.float32(-1)})
    _, arrays = build(builder, want)
    # Tokens are never 0 in this source, so each 0 is padding.
    assert arrays.pop("tokens").tolist() == np.where(zeros["tokens"] == 0, 3, zeros.pop("tokens")).tolist()
    third, masked = zeros.pop("third", np.zeros(0)), zeros["weight"] == 0
    if not packed:
        assert arrays.pop("third").tolist() == np.where(masked, -1, third).tolist()
        assert masked.sum() == (5 if empty else 2 if bad else 1)
    np.testing.assert_equal(arrays, zeros)


@pytest.mark.parametrize("packed", [False, True])
def test_a_row_masked_for_an_infinite_value_is_padded_too(make: Callable[..., Builder], *, packed: bool) -> None:
    def infinite(sample: int) -> dict[str, Any]:
        return {"tokens": np.full(5, np.inf if sample == 6 else sample, np.float32)}

    source = MemorySource()
    source.decode = lambda sample, _: infinite(sample)  # type: ignore[method-assign]
    builder = make(source, packed=packed)
    tokens = Field(key="tokens", dtype="float32", shape=(None,))
    builder.stream.chain = builder.stream.chain.bound((tokens,))
    builder.stream.fields = (*fields_of_batch((tokens,)), *builder.stream.fields[-2 if packed else 99 :])
    builder.stream.masks_not_finite, builder.stream.padding = True, {"tokens": np.float32(-2)}
    built, arrays = build(Builder(builder.stream, builder._quarantine, Steps()), memory_want(1))
    assert (built.masked, built.not_finite) == (1, (("tokens", 1),))
    assert arrays["tokens"].tolist() == (
        [[4.0] * 5 + [5.0] * 5 + [-2.0] * 5, [-2.0] * 15, [7.0] * 5 + [-2.0] * 10, [-2.0] * 15, [-2.0] * 15]
        if packed
        else [[4.0] * 5 + [-2.0], [5.0] * 5 + [-2.0], [-2.0] * 6, [7.0] * 5 + [-2.0], [-2.0] * 6]
    )


@pytest.mark.parametrize("kind", [MemorySource, ColumnSource])
def test_a_packed_sample_that_is_masked_leaves_its_place_empty(
    make: Callable[..., Builder], kind: type[MemorySource]
) -> None:
    source = kind(on_decode={4: raising(ValueError()), 7: raising(ValueError())})
    built, arrays = build(make(source, packed=True), memory_want(1))
    assert arrays["tokens"].tolist() == [[0] * 5 + [6] * 5 + [7] * 5, *([0] * 15 for _ in range(4))]
    assert arrays["tokens_segment"][0].tolist() == [0] * 5 + [2] * 5 + [3] * 5
    assert arrays["tag"].tolist() == [4, -1, 7, -1, -1]
    assert (built.rows, built.masked) == (1, 2)


@pytest.mark.parametrize("kind", [MemorySource, GatheringSource, ColumnSource])
@pytest.mark.parametrize("culprits", [(4, 7), (5,), (4, 5, 6), (4, 5, 6, 7)])
def test_packed_samples_that_kill_decoders_leave_their_places_empty(
    make: Callable[..., Builder], tmp_path: Path, kind: type[MemorySource], culprits: tuple[int, ...]
) -> None:
    builder = make(kind(), packed=True)
    for sample in culprits:
        builder.culprits.find(f"file-{sample}")
    built, arrays = build(builder, memory_want(1))
    lengths = {4: 4, 5: 5, 6: 5, 7: 5}
    expected, segments = np.zeros((2, 5, 15), np.int32)
    for sample, (row, offset, segment) in {4: (0, 0, 1), 5: (0, 5, 2), 6: (0, 10, 3), 7: (2, 0, 1)}.items():
        if sample not in culprits:
            expected[row, offset : offset + lengths[sample]] = sample + 1
            segments[row, offset : offset + lengths[sample]] = segment
    assert np.array_equal(arrays["tokens"], expected)
    assert np.array_equal(arrays["tokens_segment"], segments)
    assert arrays["tokens_length"].tolist() == [np.flatnonzero(row).max(initial=-1) + 1 for row in expected]
    assert arrays["weight"].tolist() == expected.any(axis=1).tolist()
    assert arrays["tag"].tolist() == [4, -1, 7, -1, -1]
    assert (built.masked, [sample for sample, _ in quarantined(tmp_path)]) == (len(culprits), list(culprits))


@pytest.mark.parametrize("source", [MemorySource, GatheringSource, ColumnSource])
def test_an_empty_place_of_packed_rows(make: Callable[..., Builder], source: type[MemorySource]) -> None:
    built, arrays = build(make(source(), packed=True), memory_want(1, empty=True))
    assert arrays["tag"].tolist() == [-1] * 5
    assert not any(array.any() for key, array in arrays.items() if key != "tag")
    assert built.rows == 0


def test_float32_values_have_the_precision_that_the_job_says(make: Callable[..., Builder]) -> None:
    builder = make()
    builder.stream.float32 = "bfloat16"
    assert build(builder, memory_want(1))[1]["third"][1] == 1.6640625  # of 5/3


def test_time_spent_on_decoding_is_part_of_the_time_of_building(
    make: Callable[..., Builder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that goes on by a microsecond each time that somebody looks."""
    ticks = itertools.count(1000, 1000)
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(ticks))
    built, _ = build(make(), memory_want(1))
    assert (built.read_us, built.decode_us) == (1, 4)
    assert built.build_us > built.decode_us


def test_few_epochs_are_kept_open_the_latest(make: Callable[..., Builder]) -> None:
    builder = make()
    for epoch in (*range(9), *range(8, 0, -1), 0):
        assert builder.batches(epoch, 1) == 4
    assert builder.stream.plan.opened == [*((epoch, 1) for epoch in range(9)), (0, 1)]


def test_no_digest_is_made_that_nobody_wants(make: Callable[..., Builder]) -> None:
    build(make(), memory_want(), digest=False)


def test_a_number_past_the_epoch_is_refused(make: Callable[..., Builder]) -> None:
    with pytest.raises(DataError, match="epoch 0 of train: expected a batch number below 4, got 4"):
        make().prepare(memory_want(4))


def test_a_source_is_told_what_is_read_now_and_what_comes_later(make: Callable[..., Builder]) -> None:
    near, far = MemorySource(), MemorySource(far_away=True)
    for source in (near, far):
        source.on_read = {4: lambda source=source: source.expected.append(-1)}
        make(source).prepare(memory_want(1))
    assert near.expected == [4, 5, 6, 7, -1]
    assert far.expected == [4, 5, 6, 7, -1, *range(8, 16)]


def test_whoever_watches_is_told_each_sample_before_it_is_read(make: Callable[..., Builder]) -> None:
    events: list[object] = []
    source = MemorySource(on_read={5: lambda: events.append("read")})
    make(source).prepare(memory_want(1), events.append)
    assert events == [4, 5, "read", 6, 7]


# --- samples that cannot be used ---


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), OSError("cannot identify image"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()],
    ids=repr,
)
@pytest.mark.parametrize("kind", [MemorySource, ColumnSource])
def test_whatever_a_decoder_raises_masks_the_row(
    make: Callable[..., Builder], tmp_path: Path, error: BaseException, kind: type[MemorySource]
) -> None:
    built, arrays = build(make(kind(on_decode={5: raising(error)})), memory_want(1))
    assert arrays["weight"].tolist() == [1, 0, 1, 1, 0]
    assert arrays["tag"].tolist() == [4, 5, 6, 7, -1]
    assert not arrays["tokens"][1].any()
    assert (built.rows, built.masked) == (3, 1)
    assert built.reason.startswith(f"sample-5: undecodable: {type(error).__name__}")
    assert built.reasons == (("undecodable", built.masked),)
    assert quarantined(tmp_path) == [(5, "undecodable")]


def test_the_reason_of_a_batch_is_that_of_its_first_masked_sample_and_short(make: Callable[..., Builder]) -> None:
    source = MemorySource(on_decode={5: raising(ValueError("x" * 999)), 6: raising(ValueError("later"))})
    builder = make(source)
    built, _ = build(builder, memory_want(1))
    assert built.masked == 2
    assert built.reason.startswith(f"sample-5: undecodable: ValueError: {'x' * 130}")
    assert len(built.reason) == 200
    builder.stream.source.name = lambda sample: "deep/" * 100 + f"{sample}.wav"
    built, _ = build(builder, memory_want(1))
    assert built.reason.startswith(f"{'deep/' * 19}5.wav: undecodable: ValueError: xxx")  # the last 100 of the name
    assert len(built.reason) == 200


@pytest.mark.parametrize("error", [OSError(errno.EIO, os.strerror(errno.EIO)), MemoryError()], ids=repr)
@pytest.mark.parametrize("kind", [MemorySource, ColumnSource])
def test_what_says_nothing_about_the_sample_masks_nothing(
    make: Callable[..., Builder], tmp_path: Path, error: BaseException, kind: type[MemorySource]
) -> None:
    builder = make(kind(on_decode={5: raising(error)}))
    with pytest.raises((ReadError, MemoryError, ExhaustedError)):
        build(builder, memory_want(1))
    assert quarantined(tmp_path) == []
    if kind is ColumnSource:
        reason = "exhausted" if isinstance(error, MemoryError) else "failed"
        assert builder.fallbacks.counts == {**dict.fromkeys(FALLBACK_REASONS, 0), reason: 1}


@pytest.mark.fault(53)
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_sample_over_which_something_ran_out_is_named(make: Callable[..., Builder], number: int) -> None:
    error = OSError(number, os.strerror(number))
    with pytest.raises(ExhaustedError, match=rf"stream train: .*got sample-5 in hand: OSError: .*{error.strerror}"):
        build(make(MemorySource(on_decode={5: raising(error)})), memory_want(1))


class Broken(ColumnSource):
    """Decodes one sample as it should, and fails where it is given several."""

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns:
        raise Panic("at the disco")


@pytest.mark.parametrize("packed", [False, True])
def test_a_quick_way_that_fails_without_a_bad_sample_is_our_defect_and_is_logged_once(
    make: Callable[..., Builder], caplog: pytest.LogCaptureFixture, *, packed: bool
) -> None:
    builder = make(Broken(), packed=packed)
    built = [build(builder, memory_want(number))[0] for number in (1, 2)]
    assert [one.digest for one in built] == [
        build(make(MemorySource(), packed=packed), memory_want(number))[0].digest for number in (1, 2)
    ]
    assert builder.fallbacks.counts == {**dict.fromkeys(FALLBACK_REASONS, 0), "defect": 2}
    (line,) = (line for line in caplog.records if line.levelname == "ERROR")
    assert "Panic('at the disco')" in line.getMessage()
    assert "in decode_all" in line.getMessage()


def test_a_bad_sample_explains_why_each_was_taken_on_its_own(
    make: Callable[..., Builder], caplog: pytest.LogCaptureFixture
) -> None:
    builder = make(ColumnSource(on_decode={5: raising(ValueError("torn"))}))
    assert [build(builder, memory_want(number))[0].masked for number in (1, 2)] == [1, 0]
    assert builder.fallbacks.counts == {**dict.fromkeys(FALLBACK_REASONS, 0), "bad_sample": 1}
    assert not [line for line in caplog.records if line.levelname == "ERROR"]


def test_a_read_that_fails_masks_nothing(make: Callable[..., Builder], tmp_path: Path) -> None:
    source = MemorySource(on_read={5: raising(OSError(errno.EIO, "Input/output error"))})
    with pytest.raises(ReadError, match="sample 5: expected to read the sample"):
        make(source).prepare(memory_want(1))
    assert quarantined(tmp_path) == []


def test_a_sample_that_became_longer_than_planned_is_masked(make: Callable[..., Builder], tmp_path: Path) -> None:
    built, _ = build(make(None, f"{__name__}:seven_times"), memory_want(0))
    assert (built.rows, built.masked) == (1, 3)  # the first has no token at all
    assert quarantined(tmp_path) == [(sample, "longer_than_planned") for sample in (1, 2, 3)]


def test_a_packed_sample_that_became_longer_writes_into_nobody_elses_cells(make: Callable[..., Builder]) -> None:
    built, arrays = build(make(None, f"{__name__}:fours_twice", packed=True), memory_want(1))
    assert arrays["tokens"][0].tolist() == [0] * 5 + [6] * 5 + [7] * 5
    assert (built.masked, "longer_than_planned: 8" in built.reason) == (1, True)


def fours_twice(sample: dict[str, Any], rng: np.random.Generator) -> None:
    if len(sample["tokens"]) == 4:
        sample["tokens"] = np.tile(sample["tokens"], 2)


def test_the_transform_is_named_that_made_a_sample_longer(make: Callable[..., Builder], tmp_path: Path) -> None:
    build(make(None, f"{__name__}:grows"), memory_want(1))
    (first, *_) = map(json.loads, (tmp_path / "quarantine.jsonl").read_text().splitlines())
    assert first["error"] == (
        'sample-4: expected at most 6 steps of "tokens", as planned, got 8. The transform '
        f'{__name__}:grows declares at most 4 steps of "tokens" and made 8: mend it.'
    )


@transform(draws=False)
def grows(sample: dict[str, Any], rng: np.random.Generator) -> None:
    sample["tokens"] = np.tile(sample["tokens"], 2)


def seven_times(sample: dict[str, Any], rng: np.random.Generator) -> None:
    sample["tokens"] = np.tile(sample["tokens"], 7)


# --- samples that kill ---


def never(sample: int) -> dict[int, Callable[[], object]]:
    return {sample: raising(AssertionError(f"sample {sample} was touched"))}


@pytest.mark.parametrize("source", [MemorySource, GatheringSource, ColumnSource])
def test_a_culprit_is_neither_read_nor_decoded(
    make: Callable[..., Builder], tmp_path: Path, source: type[MemorySource]
) -> None:
    builder = make(source(on_read=never(5), on_decode=never(5)))
    builder.culprits.find("file-5")
    built, arrays = build(builder, memory_want(1))
    assert arrays["weight"].tolist() == [1, 0, 1, 1, 0]
    assert built.masked == 1
    assert built.reason.startswith("sample-5: kills_decoder: ")
    assert quarantined(tmp_path) == [(5, "kills_decoder")]


@pytest.mark.parametrize("kind", [MemorySource, ColumnSource])
def test_one_that_is_convicted_after_it_was_read_is_not_decoded(
    make: Callable[..., Builder], kind: type[MemorySource]
) -> None:
    builder = make(kind(on_decode=never(5)))
    want = memory_want(1)
    prepared = builder.prepare(want)
    payload = np.empty(prepared.layout.nbytes, np.uint8)
    assert builder.build(want, prepared, payload, convicted=frozenset({5})).masked == 1
    builder.culprits.find("file-5")
    assert builder.build(want, prepared, payload).masked == 1


def test_one_that_is_forgiven_is_used_again(make: Callable[..., Builder]) -> None:
    builder = make()
    builder.culprits.hear([next(iter(found(builder, "file-5")))])
    assert build(builder, memory_want(1))[0].masked == 1
    builder.culprits.hear([])
    assert build(builder, memory_want(1))[0].masked == 0


def found(builder: Builder, identity: str) -> frozenset[int]:
    builder.culprits.find(identity)
    return builder.culprits.keys


def test_what_is_in_memory_is_read_where_it_is_built_unless_a_worker_died_of_it(make: Callable[..., Builder]) -> None:
    source = MemorySource()
    builder = make(source)
    assert builder.reads(memory_want())
    source.reads_at_once = True
    assert not builder.reads(memory_want())
    assert builder.reads(memory_want(attempt=1))


def test_a_batch_is_gathered_unless_a_worker_died_of_it(make: Callable[..., Builder]) -> None:
    builder = make(GatheringSource())
    assert not builder.reads(memory_want())
    assert builder.prepare(memory_want()).raw is None
    assert builder.reads(memory_want(attempt=1))
    assert builder.prepare(memory_want(attempt=1)).raw == [b"\1", b"\2", b"\3", b"\4"]


def test_culprits_in_a_batch_that_is_gathered_keep_their_rows_masked(
    make: Callable[..., Builder], tmp_path: Path
) -> None:
    builder = make(GatheringSource(on_decode={5: raising(AssertionError()), 7: raising(AssertionError())}))
    for sample in (5, 7):
        builder.culprits.find(f"file-{sample}")
    built, arrays = build(builder, memory_want(1))
    assert arrays["tokens"].tolist() == [[5, 5, 5, 5, 0, 0], [0] * 6, [7, 7, 7, 7, 7, 0], [0] * 6, [0] * 6]
    assert arrays["tokens_length"].tolist() == [4, 0, 5, 0, 0]
    assert arrays["third"].tolist() == pytest.approx([4 / 3, 0, 2, 0, 0])
    assert (arrays["weight"].tolist(), arrays["tag"].tolist()) == ([1, 0, 1, 0, 0], [4, 5, 6, 7, -1])
    assert (built.rows, built.masked, built.reason) == (2, 2, "sample-5: kills_decoder: " + built.reason[25:])
    assert quarantined(tmp_path) == [(5, "kills_decoder"), (7, "kills_decoder")]


# --- all samples at once ---


class Doubled(OfColumns):
    """Each token twice."""

    declaration = Declaration(draws=False)

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        sample["tokens"] = np.repeat(sample["tokens"], 2)

    def on_columns(self, columns: Columns) -> None:
        tokens = columns["tokens"]
        assert isinstance(tokens, Ragged)
        columns["tokens"] = Ragged(np.repeat(tokens.values, 2), tokens.lengths * 2)


def test_samples_are_decoded_and_transformed_at_once_where_both_can(make: Callable[..., Builder]) -> None:
    source = ColumnSource()
    source.decode = lambda sample, raw: {"tokens": np.full(2, raw[0], np.int32), "third": sample / 3}
    at_once, one_by_one = (build(make(kind, f"{__name__}:Doubled"), memory_want(1)) for kind in (source, alike(source)))
    assert source.together == 1
    assert at_once[1]["tokens"].tolist() == [[n, n, n, n, 0, 0] for n in (5, 6, 7, 8)] + [[0] * 6]
    assert at_once[0].digest == one_by_one[0].digest
    assert (at_once[0].rows, at_once[0].masked, at_once[0].decoded, at_once[0].sample_cells) == (4, 0, 4, 16)
    assert at_once[0].decode_us > 0


def alike(source: ColumnSource) -> MemorySource:
    other = MemorySource()
    other.decode = source.decode
    return other


@pytest.mark.parametrize(("packed", "masked"), [(False, 4), (True, 3)])
def test_where_one_sample_is_too_long_each_is_taken_on_its_own(
    make: Callable[..., Builder], *, packed: bool, masked: int
) -> None:
    kinds = (ColumnSource(), MemorySource())
    (at_once, _), (one_by_one, _) = (
        build(make(kind, f"{__name__}:Doubled", packed=packed), memory_want(1)) for kind in kinds
    )
    assert kinds[0].together == 1
    assert at_once.digest == one_by_one.digest
    assert (at_once.masked, at_once.reasons, at_once.decoded) == (masked, (("longer_than_planned", masked),), 4)


def test_a_transform_that_takes_one_sample_at_a_time_gets_one(make: Callable[..., Builder]) -> None:
    source = ColumnSource()
    assert build(make(source, f"{__name__}:Doubled", f"{__name__}:unchanged"), memory_want(1))[0].masked == 4
    assert source.together == 0


@transform(draws=False)
def unchanged(sample: dict[str, Any], rng: np.random.Generator) -> None:
    pass


def test_after_a_worker_died_each_sample_is_taken_on_its_own(make: Callable[..., Builder]) -> None:
    source = ColumnSource()
    builder = make(source)
    build(builder, memory_want(1, attempt=1))
    assert source.together == 0
    builder.culprits.hear([next(iter(found(builder, "file-15")))])
    build(builder, memory_want(1))
    assert source.together == 0
    builder.culprits.hear([])
    build(builder, memory_want(1))
    assert source.together == 1


def test_with_a_sample_that_was_just_convicted_each_is_taken_on_its_own(make: Callable[..., Builder]) -> None:
    touched: list[int] = []
    source = ColumnSource(on_decode={sample: functools.partial(touched.append, sample) for sample in range(16)})
    assert build(make(source), memory_want(1), convicted=frozenset({5}))[0].masked == 1
    assert touched == [4, 6, 7]


def test_a_batch_without_samples_is_not_decoded(make: Callable[..., Builder]) -> None:
    source = ColumnSource()
    build(make(source), memory_want(1, empty=True))
    assert source.together == 0


def test_what_gathering_lacks_is_read_before_but_for_culprits(make: Callable[..., Builder]) -> None:
    read: list[int] = []
    source = GatheringSource(on_read={sample: functools.partial(read.append, sample) for sample in range(16)})
    source.reads_ahead, source.unread = True, lambda samples: samples[1::2]
    builder = make(source)
    builder.culprits.find("file-5")
    begun: list[int] = []
    assert builder.reads(memory_want())
    assert builder.prepare(memory_want(1), begun.append).raw is None
    assert (read, begun) == ([6], [6])


# --- the deadline ---


@pytest.mark.parametrize(
    ("source", "steps"), [(MemorySource, 1 + 4 + 1), (GatheringSource, 1 + 1), (ColumnSource, 1 + 1)]
)
def test_each_sample_and_the_end_of_the_batch_are_steps_of_their_own(
    make: Callable[..., Builder], source: type[MemorySource], steps: int
) -> None:
    builder = make(source())
    build(builder, memory_want(1))
    builder._deadline.end()
    assert builder._deadline.of_batches == [steps]

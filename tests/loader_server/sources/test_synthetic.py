"""The synthetic source: the same on every machine, and a whole batch at once is what its samples are one by one."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_server.building.builder import Builder
from loader_server.building.deadline import Deadline
from loader_server.building.quarantine import Quarantine
from loader_server.commands.index import index_streams
from loader_server.index.folder import open_index
from loader_server.job_file import JobFile
from loader_server.sources.source import Indexed
from loader_server.sources.synthetic import SyntheticSettings, SyntheticSource
from loader_server.stream import Stream
from shared.errors import DataError, SettingsError
from shared.hashing import fingerprint
from shared.settings.tables import read_table
from shared.wire import messages as m
from shared.wire.batch_layout import BucketShape, fields_of_batch, layout_of
from shared.wire.message_parts import Ticket

TOKENS = SyntheticSettings(samples=500)
FEATURES = SyntheticSettings(samples=200, kind="features", median_length=9, bands=5)

#: A timer that nobody sets: the test runner has its own.
UNHURRIED = Deadline(60.0, set_timer=lambda seconds: None)

JOB = """
[job]
name = "made-up"
seed = 3
[streams.train]
source = "synthetic"
samples = 900
length = "{key}"
budget = "600 steps"
shapes = 4
{more}
"""


def key_of(of: SyntheticSettings) -> str:
    return SyntheticSource(of, Path()).fields[0].key


def lengths(of: SyntheticSettings, rows: int = 2**20) -> np.ndarray:
    source = SyntheticSource(of, Path())
    pieces = map(source.probe, source.survey().pieces(rows))
    return np.concatenate([piece.numbers[f"length_{key_of(of)}"] for piece in pieces])


@functools.cache
def opened(of: SyntheticSettings) -> SyntheticSource:
    source = SyntheticSource(of, Path())
    source.open(Indexed(samples=of.samples, numbers={f"length_{key_of(of)}": lengths(of)}, strings={}))
    return source


def job_file(folder: Path, key: str = "tokens", more: str = "") -> JobFile:
    path = folder / "job.toml"
    path.write_text(JOB.format(key=key, more=more))
    job = JobFile(path)
    assert index_streams(job, ["train"])["train"].samples == 900
    return job


def builder(folder: Path, **how: str) -> Builder:
    return Builder(Stream(job_file(folder, **how), "train"), Quarantine(folder / "quarantine.jsonl"), UNHURRIED)


def want(number: int, *, empty: bool = False) -> m.Want:
    return m.Want(
        job="made-up",
        stream="train",
        epoch=1,
        number=number,
        empty=empty,
        group=2,
        plan_digest="",
        attempt=0,
        trainer=1,
        worker=1,
        ticket=Ticket(0, 1),
        in_slot=True,
        urgent=False,
    )


def built(of: Builder, asked: m.Want, *, dirt: int = 0) -> tuple[bytes, int, int, int]:
    prepared = of.prepare(asked)
    payload = np.full(prepared.layout.nbytes, dirt, np.uint8)
    said = of.build(asked, prepared, payload)
    return payload.tobytes(), said.rows, said.masked, said.digest


def test_the_same_samples_on_every_machine_for_ever() -> None:
    found = opened(TOKENS)
    parts = [found.decode(sample, b"")["tokens"].tobytes() for sample in range(TOKENS.samples)]
    assert fingerprint(lengths(TOKENS).tobytes(), *parts) == "5d6ae71dd11bc9b1fe31d88fc3a62c83"
    features = opened(FEATURES)
    parts = [features.decode(sample, b"")["features"].tobytes() for sample in range(FEATURES.samples)]
    assert fingerprint(lengths(FEATURES).tobytes(), *parts) == "3b4d0f6be56f5c56c94c773c2eac32c4"


def test_samples_have_the_length_and_range_that_the_settings_say() -> None:
    found = opened(TOKENS)
    for sample, length in enumerate(lengths(TOKENS)):
        tokens = found.decode(sample, b"")["tokens"]
        assert tokens.dtype == np.int32
        assert len(tokens) == length
        assert tokens.min() >= 1
        assert tokens.max() < TOKENS.vocabulary


def test_lengths_spread_as_asked() -> None:
    many = lengths(SyntheticSettings(samples=50_000, median_length=100, spread=0.5))
    assert abs(np.median(many) - 100) <= 1
    assert abs(np.log(many).std() - 0.5) < 0.01
    assert set(lengths(SyntheticSettings(samples=50, median_length=7, spread=0.0))) == {7}


def test_lengths_do_not_hang_on_the_pieces_they_are_drawn_in() -> None:
    assert np.array_equal(lengths(TOKENS, rows=7), lengths(TOKENS))


def test_the_smallest_vocabulary_is_one_token() -> None:
    found = opened(SyntheticSettings(samples=3, vocabulary=2))
    assert set(found.decode(0, b"")["tokens"]) == {1}


@settings(max_examples=60, deadline=None)
@given(
    of=st.sampled_from([TOKENS, FEATURES]),
    samples=st.lists(st.integers(0, 199), max_size=12),
    spare=st.integers(0, 5),
)
def test_gathering_a_batch_gives_the_samples_and_zeros_behind_them(
    of: SyntheticSettings, samples: list[int], spare: int
) -> None:
    found, key = opened(of), key_of(of)
    longest = max([1, *(len(found.decode(sample, b"")[key]) for sample in samples)]) + spare
    layout = layout_of(fields_of_batch(found.fields), BucketShape(rows=max(len(samples), 1), lengths={key: longest}))
    out = layout.arrays(np.full(layout.nbytes, 0xA5, np.uint8))
    found.gather(np.array(samples, np.int64), {name: array[: len(samples)] for name, array in out.items()})
    for row, sample in enumerate(samples):
        value = found.decode(sample, b"")[key]
        assert out[f"{key}_length"][row] == len(value)
        assert np.array_equal(out[key][row, : len(value)], value)
        assert not out[key][row, len(value) :].any()


@pytest.fixture(scope="module", params=["tokens", "features"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return builder(tmp_path_factory.mktemp("job"), key=request.param, more=f'kind = "{request.param}"\nbands = 3')


@settings(max_examples=50, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), empty=st.booleans(), dirt=st.integers(0, 255))
def test_a_batch_built_at_once_has_the_bytes_of_one_built_row_by_row(
    made: Builder, place: float, empty: bool, dirt: int
) -> None:
    """Row by row is how a batch is built that a worker died of."""
    at_once = want(int(place * made.batches(1, 2)), empty=empty)
    by_rows = replace(at_once, attempt=1)
    assert (made.reads(at_once), made.reads(by_rows)) == (False, True)
    assert made.prepare(at_once).raw is None
    assert built(made, at_once, dirt=dirt) == built(made, by_rows, dirt=255 - dirt)


def test_an_epoch_holds_every_sample_once(tmp_path: Path) -> None:
    made = builder(tmp_path)
    tags: list[int] = []
    for number in range(made.batches(1, 2)):
        prepared = made.prepare(want(number))
        payload = np.zeros(prepared.layout.nbytes, np.uint8)
        made.build(want(number), prepared, payload)
        arrays = prepared.layout.arrays(payload)
        valid = arrays["weight"] == 1
        tags += arrays["tag"][valid].tolist()
        assert (arrays["tag"][~valid] == -1).all()
    assert sorted(tags) == list(range(900))


def test_a_sample_that_was_found_to_kill_its_decoder_is_masked_all_the_same(tmp_path: Path) -> None:
    made = builder(tmp_path)
    victim = int(made.prepare(want(0)).planned.samples[0])
    made.culprits.find(made.stream.identity(victim))
    other = want(made.batches(1, 2) - 1)
    assert not made.reads(want(0))
    assert made.prepare(other).raw is None
    assert [built(made, asked)[2] for asked in (want(0), other)] == [1, 0]


def test_a_sample_without_a_file_is_known_by_its_number_in_this_very_data(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stream, other = (
        Stream(job_file(tmp_path), "train"),
        Stream(job_file(tmp_path / "other", more="vocabulary = 9"), "train"),
    )
    assert stream.identity(3) == Stream(job_file(tmp_path), "train").identity(3)
    assert len({stream.identity(3), stream.identity(4), other.identity(3)}) == 3


TRANSFORMS = """
from loader_server.transforms.declare import transform

@transform()
def zeros(sample, rng):
    sample["tokens"][:] = 0

def undeclared(sample, rng):
    return sample
"""


@pytest.fixture
def transforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "synthetic_transforms.py").write_text(TRANSFORMS)
    monkeypatch.syspath_prepend(tmp_path)
    return "synthetic_transforms"


def test_transforms_see_every_sample(tmp_path: Path, transforms: str) -> None:
    job = job_file(tmp_path, more=f'transforms = ["{transforms}:zeros"]')
    made = Builder(Stream(job, "train"), Quarantine(tmp_path / "quarantine.jsonl"), UNHURRIED)
    assert made.reads(want(0))
    prepared = made.prepare(want(0))
    payload = np.zeros(prepared.layout.nbytes, np.uint8)
    assert made.build(want(0), prepared, payload).masked == 0
    arrays = prepared.layout.arrays(payload)
    assert arrays["tokens_length"].any()
    assert not arrays["tokens"].any()


def test_the_index_is_that_of_the_settings(tmp_path: Path) -> None:
    job = job_file(tmp_path)
    index = open_index(job.index_folder("train"))
    assert list(index.indexed.numbers) == ["length_tokens"]
    assert np.array_equal(index.indexed.numbers["length_tokens"], lengths(replace(TOKENS, samples=900)))
    job.path.write_text(job.path.read_text().replace("samples = 900", "samples = 901"))
    with pytest.raises(DataError, match="run loader-server index"):
        Stream(JobFile(job.path), "train")


def test_a_transform_that_has_to_be_measured_is_refused(tmp_path: Path, transforms: str) -> None:
    with pytest.raises(DataError, match="Declare it with @transform"):
        job_file(tmp_path, more=f'transforms = ["{transforms}:undeclared"]')


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "how many samples there are"),
        ({"samples": 0}, "at least 1|from 1 to"),
        ({"samples": 5, "kind": "token"}, 'perhaps "tokens"'),
        ({"samples": 5, "spread": 3}, "from 0 to 2"),
        ({"samples": 5, "vocabulary": 1}, "from 2 to"),
    ],
)
def test_settings_that_make_no_sense_are_refused(table: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        read_table(SyntheticSettings, table, "job.toml, [streams.train]")


def test_a_sample_is_called_by_its_number() -> None:
    assert opened(TOKENS).name(7) == "synthetic 7"

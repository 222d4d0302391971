"""A user's own map-style class as a source: measured or believed, checked, and named where it is wrong."""

from __future__ import annotations

import errno
import multiprocessing
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.cli import main
from loader_server.commands.index import index_streams
from loader_server.index.folder import open_index
from loader_server.job_file import JobFile
from loader_server.machine.room import Room
from loader_server.sources import sample_limits
from loader_server.sources.map_style import MapStyleSource
from loader_server.stream import Stream
from loader_server.transforms.chain import Chain
from shared.errors import DataError, MachineError, ReadError, SettingsError
from shared.wire.batch_layout import Field
from tests.support.sources import decoded, index_source, open_source, raw_of, spec_of

if TYPE_CHECKING:
    from loader_server.sources.registry import SourceSpec

#: What a user's class does at a sample, by its number; it lives in this module so that the class finds it.
WHAT: dict[int, Any] = {}


class Tensor:
    """What numpy can make an array of, as torch's tensors are."""

    def __init__(self, values: list[int]) -> None:
        self.values = values

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return np.array(self.values, np.int64)


class Digits:
    """Sample i: i + 1 tokens, a picture, a number, a text, and what a test adds."""

    def __init__(self, count: int = 6, folder: str = "", **more: object) -> None:
        self.count, self.folder = count, folder

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> dict[str, Any]:
        found = WHAT.get(i)
        if isinstance(found, BaseException):
            raise found
        sample = {
            "tokens": Tensor(list(range(i + 1))),
            "picture": np.full((2, 3), i, np.uint8),
            "label": i,
            "text": "x" * (i + 2),
            "extra": {"anything": None},
        }
        return found(sample) if callable(found) else sample


class Told(Digits):
    """Knows its lengths."""

    def lengths(self) -> dict[str, list[int]]:
        return {"tokens": [i + 1 for i in range(self.count)]}


class Known(Digits):
    """Knows its data and its samples."""

    def fingerprint(self) -> str:
        return (Path(self.folder) / "version").read_text()

    def identity(self, i: int) -> str:
        return f"digit {i}"


class Pairs:
    """Tuples."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> tuple[np.ndarray, float]:
        return np.zeros(i + 1, np.float32), i / 2


class Deadly(Digits):
    """Ends the process that indexes sample 9."""

    def __getitem__(self, i: int) -> dict[str, Any]:
        if i == 9 and multiprocessing.parent_process() is not None:
            os._exit(1)
        return super().__getitem__(i)


class Sequential:
    """Not asked by number."""

    def __iter__(self) -> None: ...


def broken() -> None:
    raise ValueError("no such folder")


def small(count: int) -> Digits:
    """Not a class, and callable all the same."""
    return Digits(count)


@pytest.fixture(autouse=True)
def nothing_special() -> None:
    WHAT.clear()


def named(kind: str, folder: Path, **table: Any) -> SourceSpec:
    name = f"{__name__}:{kind}"
    return spec_of(name, folder, source=name, **table)


def opened(spec: SourceSpec) -> MapStyleSource:
    source = open_source(spec)
    assert isinstance(source, MapStyleSource)
    return source


FIELDS = (
    Field(key="tokens", dtype="int64", shape=(None,)),
    Field(key="picture", dtype="uint8", shape=(2, 3)),
    Field(key="label", dtype="int64", shape=()),
)


@pytest.mark.parametrize("kind", ["Digits", "Told"])
def test_fields_and_lengths_are_what_the_samples_show_or_the_class_tells(tmp_path: Path, kind: str) -> None:
    spec = named(kind, tmp_path)
    assert (index_source(spec).samples, index_source(spec).bad) == (6, ())
    source = opened(spec)
    assert source.fields == FIELDS
    assert source.lengths["tokens"].tolist() == [1, 2, 3, 4, 5, 6]
    sample = decoded(source, 2)
    assert sample["tokens"].tolist() == [0, 1, 2]
    assert (sample["text"], sample["extra"]) == ("xxxx", {"anything": None})
    assert (sample["label"].dtype, sample["label"].shape, int(sample["label"])) == (np.dtype("int64"), (), 2)
    assert raw_of(source, 2) == b""
    assert source.name(2) == f"{__name__}:{kind}, sample 2"


def test_before_there_is_an_index_arrays_count_as_padded_unless_the_class_tells_lengths(tmp_path: Path) -> None:
    assert named("Told", tmp_path).make().fields == FIELDS
    assert [field.shape for field in named("Digits", tmp_path).make().fields] == [(None,), (None, 3), ()]


def test_strings_have_lengths_too(tmp_path: Path) -> None:
    index_source(named("Digits", tmp_path))
    assert opened(named("Digits", tmp_path)).lengths["text"].tolist() == [2, 3, 4, 5, 6, 7]


def test_with_lengths_one_sample_is_looked_at_and_no_other(tmp_path: Path) -> None:
    WHAT.update(dict.fromkeys(range(1, 6), ValueError("looked at")))
    assert index_source(named("Told", tmp_path)).bad == ()


def test_it_is_made_from_its_arguments_in_each_process(tmp_path: Path) -> None:
    spec = named("Told", tmp_path, arguments={"count": 40})
    one = index_source(spec, piece_rows=3)
    several = index_source(spec, piece_rows=3, processes=2)
    assert (one.samples, one.fingerprint) == (40, several.fingerprint)
    assert index_source(named("Told", tmp_path, arguments={"count": 40, "more": 1})).fingerprint != one.fingerprint
    assert index_source(named("small", tmp_path, arguments={"count": 4})).samples == 4


def test_tuples_are_named_by_keys(tmp_path: Path) -> None:
    spec = named("Pairs", tmp_path, keys=["sound", "mean"])
    index_source(spec)
    assert [field.key for field in opened(spec).fields] == ["sound", "mean"]
    assert float(decoded(opened(spec), 2)["mean"]) == 1.0
    for keys, said in (([], "a dict, or keys = "), (["sound"], "a tuple of 1 values, got a tuple of 2")):
        with pytest.raises(DataError, match=f"at least one good row, got 3 bad of 3 .*{said}"):
            index_source(named("Pairs", tmp_path, keys=keys))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("(np.arange(3), 1.0)", "a dict, or keys = "),
        ('{"x": np.array([None, "a"], dtype=object)}', '"x" of a dtype of '),
        ('{"x": [[1], [1, 2]]}', "values of unequal lengths"),
    ],
)
def test_a_class_none_of_whose_samples_can_be_used_says_what_is_wrong_with_the_first(tmp_path, capsys, value, said):
    module = f"unusable_{abs(hash(value))}"
    (tmp_path / f"{module}.py").write_text(
        f"import numpy as np\n\nclass Data:\n    def __len__(self):\n        return 3\n"
        f"    def __getitem__(self, item):\n        return {value}\n"
    )
    job = tmp_path / "job.toml"
    job.write_text(f'[job]\nname = "x"\n[streams.train]\nsource = "{module}:Data"\nlength = "x"\nbudget = "9 steps"\n')
    with pytest.raises(SystemExit) as ended:
        main(["index", str(job)])
    complained = capsys.readouterr().err
    assert ended.value.code == 1
    assert "expected a sample that can be used, got none of 3; of the first one: expected " in complained
    assert said in complained
    assert 'keys = ["…", "…"]' in complained


def test_a_sample_that_raises_is_a_bad_row_and_the_others_keep_their_numbers(tmp_path: Path) -> None:
    WHAT[0], WHAT[3] = ValueError("torn"), OSError("cannot identify image file")
    spec = named("Digits", tmp_path)
    report = index_source(spec, piece_rows=2)
    assert [(row.line, row.reason) for row in report.bad] == [(0, "undecodable"), (3, "undecodable")]
    assert report.bad[0].where == f"{__name__}:Digits"
    assert "ValueError: torn" in report.bad[0].detail
    source = opened(spec)
    assert [int(decoded(source, sample)["label"]) for sample in range(source.samples)] == [1, 2, 4, 5]
    assert source.place(2) == (f"{__name__}:Digits", 4)


def test_a_disk_that_fails_stops_the_indexing(tmp_path: Path) -> None:
    WHAT[3] = OSError(errno.EIO, os.strerror(errno.EIO), "shard-7")
    with pytest.raises(ReadError, match=r"Digits, sample 3: expected the decoder to read .*shard-7"):
        index_source(named("Digits", tmp_path))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda s: s.pop("label") and s, r'expected "label" as int64 \[\], as the samples before, got no "label"'),
        (lambda s: s | {"label": 0.5}, r'expected "label" as int64 \[\], .*got "label" as float64 \[\]'),
        (
            lambda s: s | {"picture": np.zeros((2, 4), np.uint8)},
            r'expected "picture" as uint8 \[any, 3\],.*\[any, 4\]',
        ),
        (lambda s: s | {"text": 3}, r'expected "text" as no array, .*got "text" as int64 \[\]'),
        (lambda s: s | {"new": 3}, r'expected no "new", .*got "new" as int64'),
    ],
)
def test_a_sample_unlike_the_first_is_named(tmp_path: Path, changed: Any, said: str) -> None:
    WHAT[4] = changed
    with pytest.raises(DataError, match=f"Digits, sample 4: {said}"):
        index_source(named("Digits", tmp_path), piece_rows=2)


def test_what_no_array_can_hold_is_a_bad_sample(tmp_path: Path) -> None:
    WHAT[4] = lambda sample: sample | {"label": [object()]}
    (row,) = index_source(named("Digits", tmp_path)).bad
    assert (row.line, row.reason) == (4, "dtype")
    assert row.detail.endswith("got object")


def test_a_sample_that_ends_the_process_which_looks_at_it_is_told_with_its_row(tmp_path: Path) -> None:
    spec = named("Deadly", tmp_path, arguments={"count": 30})
    with pytest.raises(DataError, match=r'source = ".*:Deadly" below .*, row \d+ of all or soon after: expected'):
        index_source(spec, processes=2, piece_rows=1)
    assert not (tmp_path / "index").exists()


def test_data_that_changed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "version").write_text("1")
    spec = named("Known", tmp_path, arguments={"folder": str(tmp_path)})
    first = index_source(spec).fingerprint
    assert opened(spec).identity(3) == "digit 3"
    (tmp_path / "version").write_text("2")
    with pytest.raises(
        DataError, match=r'6 samples, fingerprint "1", as when .*got 6 samples, fingerprint "2"\. The da'
    ):
        opened(spec)
    assert index_source(spec).fingerprint != first
    opened(spec)


def test_another_number_of_samples_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index_source(named("Digits", tmp_path))
    monkeypatch.setattr(Digits, "__len__", lambda self: 7)
    with pytest.raises(DataError, match=r"expected 6 samples, .*got 7 samples.*run loader-server index"):
        opened(named("Digits", tmp_path))


def test_an_identity_is_the_number_in_data_like_these(tmp_path: Path) -> None:
    report = index_source(named("Digits", tmp_path))
    assert opened(named("Digits", tmp_path)).identity(3) == f"sample 3 of {report.fingerprint}"


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        (
            {"tokens": [1, 2]},
            r'a whole number of at least 0 for each of 6 samples as lengths of "tokens", got int64 \[2\]',
        ),
        ({"tokens": [1, 2, 3, 4, 5, -6]}, r'0 for each of 6 samples as lengths of "tokens", got numbers from -6 to 5'),
        (
            {"tokens": np.array([2**63 + 5] * 6, np.uint64)},
            r"got numbers from 9223372036854775813 to 92233720368547758",
        ),
        ({"tokens": [2**70] * 6}, r"got object \[6\]"),
        ({"tokens": [1, 2, 3, 4, 5, float("nan")]}, r"got float64 \[6\]"),
        ({"tokens": [[1], [1, 2], 3, 4, 5, 6]}, r"whole number .* got setting an array element with a sequence"),
        ([1, 2, 3, 4, 5, 6], r"expected a mapping of keys and lengths, got a list"),
        ({"tokens": [0.5] * 6}, r"got float64 \[6\]"),
        (
            {"token": [1] * 6},
            r'expected lengths\(\) of keys that are arrays or strings \(picture, text, tokens\), got "tok',
        ),
        ({"label": [1] * 6}, r'got "label"'),
        (None, r"expected lengths\(\) to succeed, got AttributeError"),
    ],
)
def test_lengths_that_cannot_be_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: Any, said: str
) -> None:
    monkeypatch.setattr(Told, "lengths", lambda self: lengths or self.nothing())
    with pytest.raises(DataError, match=said):
        index_source(named("Told", tmp_path))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "tests.loader_server.sources.test_map_stile:Digits",
            r'importable, perhaps "test_map_style", got ModuleNotFound',
        ),
        ("no_such_module_at_all:Digits", r"expected the module .* to be importable, got ModuleNotFound"),
        (f"{__name__}:Digit", r'expected a class "Digit" in .*, perhaps "Digits", got nothing of that name'),
        (f"{__name__}:WHAT", r"got a dict"),
        ("mani:", r'expected source = "manifest" or .* or "package.module:Class"'),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        spec_of(name, tmp_path, source=name)


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        ("Digits", {"count": "x"}, "Digits to be made from its arguments, got TypeError: 'str' object"),
        ("Pairs", {"size": 3}, r"expected .*:Pairs to be made from its arguments, got TypeError: Pairs"),
        ("broken", {}, "got ValueError: no such folder"),
        ("Sequential", {}, "expected a class with __len__ and __getitem__, got a Sequential that lacks one of them"),
    ],
)
def test_a_class_that_cannot_be_made_or_asked_is_refused(
    tmp_path: Path, kind: str, arguments: dict[str, object], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        index_source(named(kind, tmp_path, arguments=arguments))


@pytest.mark.parametrize("value", ["x", {"a": object()}, {"a": float("nan")}])
def test_arguments_are_plain_values(tmp_path: Path, value: object) -> None:
    with pytest.raises(SettingsError, match="expected a table of strings, numbers, lists and tables"):
        named("Digits", tmp_path, arguments=value)


JOB = """
[job]
name = "own"
[streams.train]
source = "my_digits:Digits"
transforms = [{transforms}]
length = "tokens"
budget = "64 tokens"
[streams.train.arguments]
count = 30
[streams.dev]
like = "train"
[streams.dev.arguments]
first = 5
"""

OWN = """
import numpy as np
class Digits:
    def __init__(self, count, first=0):
        self.count, self.first = count, first
    def __len__(self):
        return self.count
    def __getitem__(self, i):
        return {"tokens": np.arange(self.first, self.first + 1 + i % 7, dtype=np.int32), "text": "ab"}
def doubled(sample, rng):
    sample["tokens"] = np.repeat(sample["tokens"], 2)
"""


def job(folder: Path, transforms: str = "") -> JobFile:
    (folder / "my_digits.py").write_text(textwrap.dedent(OWN))
    (folder / "job.toml").write_text(JOB.format(transforms=transforms))
    return JobFile(folder / "job.toml")


def test_a_class_beside_the_job_file_is_found_and_its_code_is_part_of_what_workers_agree_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)  # which also forgets the module afterwards
    opened_job = job(tmp_path)
    assert {name: report.samples for name, report in index_streams(opened_job, ["train", "dev"]).items()} == {
        "train": 30,
        "dev": 30,
    }
    stream, dev = Stream(opened_job, "train"), Stream(opened_job, "dev")
    assert decoded(stream.source, 6)["tokens"].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert decoded(dev.source, 1)["tokens"].tolist() == [5, 6]
    assert stream.fields[0] == Field(key="tokens", dtype="int32", shape=(None,))
    before = stream.builder
    (tmp_path / "my_digits.py").write_text(textwrap.dedent(OWN) + "# changed\n")
    assert Stream(JobFile(tmp_path / "job.toml"), "train").builder != before


def undeclared(sample: dict[str, Any], rng: np.random.Generator) -> None:
    sample["tokens"] = np.repeat(sample["tokens"], 3)


def test_what_a_sample_raises_while_it_is_measured_makes_it_a_bad_one(tmp_path: Path) -> None:
    spec = named("Told", tmp_path)
    chain = Chain.make((f"{__name__}:undeclared",), {}, "a test", spec.make().fields)
    WHAT[2] = ValueError("torn")
    report = index_source(spec, chain=chain)
    assert [(row.where, row.line, row.reason) for row in report.bad] == [(f"{__name__}:Told", 2, "undecodable")]
    index = open_index(tmp_path / "index")
    assert index.measured["tokens"].tolist() == [3 * n for n in (1, 2, 4, 5, 6)]
    assert index.indexed.numbers["item"].tolist() == [0, 1, 3, 4, 5]
    WHAT[2] = OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(ReadError, match="sample 2"):
        index_source(spec, chain=chain)
    WHAT[2] = MemoryError()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_limits, "free_room", lambda: Room(memory=0, descriptors=1000))
        with pytest.raises(MachineError, match=r"sample 2.*twice, with 0 B of memory"):
            index_source(spec, chain=chain)
        patch.setattr(sample_limits, "free_room", lambda: Room(memory=2**30, descriptors=64))
        report = index_source(spec, chain=chain)
    assert [(row.line, row.reason) for row in report.bad] == [(2, "exhausts")]


def test_an_undeclared_transform_is_measured_over_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    opened_job = job(tmp_path, transforms='"my_digits:doubled"')
    index_streams(opened_job, ["train"])
    index = open_index(opened_job.index_folder("train"))
    assert index.measured["tokens"].tolist() == [2 * (1 + i % 7) for i in range(30)]
    assert Stream(opened_job, "train").chain.fields == (Field(key="tokens", dtype="int32", shape=(None,)),)

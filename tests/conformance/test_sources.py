"""Every source passes every check; a source with a fault fails the one that is about it."""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from loader_server.conformance.checks import CHECKS, check_source
from loader_server.conformance.command import main
from loader_server.sources.registry import settings_of_sources
from loader_server.sources.synthetic import SyntheticSource
from loader_server.sources.text_files.line_source import LinesSource
from shared.wire.batch_layout import Field
from tests.conformance.fixtures import FIXTURES, lines, synthetic
from tests.support.forked_pools import forked_pools

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loader_server.conformance.case import SourceCase
    from loader_server.conformance.checks import CheckResult
    from loader_server.sources.source import Chunk, Found

TITLES = [" ".join((check.__doc__ or "").partition("\n\n")[0].split()).rstrip(".") for check in CHECKS]


def test_every_source_of_the_table_has_data_for_the_checks() -> None:
    whole_batches = {"pipeline", "graph"}  # the checks are of samples
    assert set(FIXTURES) | whole_batches == set(settings_of_sources())


#: Of this one the processes are new interpreters, as they are for users; so are those of the command below.
AS_USERS_HAVE_IT = {"package.module:Class"}


@functools.cache
def results_of(name: str, folder: Path) -> dict[str, CheckResult]:
    case = FIXTURES[name](folder)
    with contextlib.nullcontext() if name in AS_USERS_HAVE_IT else forked_pools():
        return {result.name: result for result in check_source(case, folder)}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tmp_path_factory.mktemp("source") for name in FIXTURES}


@pytest.mark.parametrize("title", TITLES)
@pytest.mark.parametrize("name", FIXTURES)
def test_a_source_keeps_to_it(folders: dict[str, Path], name: str, title: str) -> None:
    result = results_of(name, folders[name])[title]
    assert result.passed is not False, result.detail


#: What not every source does, and what needs data that can be changed.
OPTIONAL = {
    "Writing whole batches at once gives the bytes that decoding each sample gives",
    "Decoding many samples at once gives what decoding one at a time gives",
    "Data that changed since they were indexed are refused",
    "Strings that batches ask for are those of the samples and of the source's columns",
}


@pytest.mark.parametrize("name", FIXTURES)
def test_all_that_can_be_tried_is_tried(folders: dict[str, Path], name: str) -> None:
    skipped = {title for title, result in results_of(name, folders[name]).items() if result.passed is None}
    assert skipped <= OPTIONAL


def test_each_check_is_tried_on_some_source(folders: dict[str, Path]) -> None:
    tried = {title for name in FIXTURES for title, one in results_of(name, folders[name]).items() if one.passed}
    assert tried == set(TITLES)


# --- sources with one fault each ---


class Leaky(LinesSource):
    """Forgets a file."""

    left: ClassVar[list[int]] = []

    def open(self, indexed: Any) -> None:
        super().open(indexed)
        self.left.append(os.open(self.base / "a.txt", os.O_RDONLY))


class Shifted(LinesSource):
    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        return {"text": raw.decode() + "!"}


class Pieces(LinesSource):
    def probe(self, piece: Any) -> Found:
        found = super().probe(piece)
        return replace(found, numbers={**found.numbers, "place": np.arange(len(found.rows))})


class Backwards(LinesSource):
    def read(self, samples: Any) -> Any:
        return reversed(list(super().read(samples)))


class Tangled(LinesSource):
    """For the main thread alone."""

    def read(self, samples: Any) -> Any:
        found = list(super().read(samples))
        return found if threading.current_thread() is threading.main_thread() else found[::-1]


class Homely(LinesSource):
    """Knows more than its settings."""

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        return {"text": raw.decode() if multiprocessing.parent_process() is None else "elsewhere"}


class Fading(LinesSource):
    """Good for one use."""

    opened = 0

    def open(self, indexed: Any) -> None:
        super().open(indexed)
        Fading.opened += 1
        self._fields = () if Fading.opened == 1 else (Field(key="text", dtype="int8", shape=()),)

    @property
    def fields(self) -> tuple[Field, ...]:
        return self._fields


class Short(LinesSource):
    def read(self, samples: Any) -> Any:
        return list(super().read(samples))[:1]


class Nameless(LinesSource):
    def name(self, sample: int) -> str:
        return self.checked(sample)  # type: ignore[return-value]


class Alike(LinesSource):
    def identity(self, sample: int) -> str:
        return "a line"


class Moody(LinesSource):
    def identity(self, sample: int) -> str:
        return f"{id(self)} {sample}"


class Wrapping(LinesSource):
    def checked(self, sample: int) -> int:
        return sample


class Believing(LinesSource):
    """Reads whatever is there."""

    def read(self, samples: Any) -> Any:
        for sample in samples:
            path, _ = self.place(self.checked(sample))
            start, size = (int(self.indexed.numbers[name][sample]) for name in ("offset", "bytes"))
            yield Path(path).read_bytes()[start : start + size]


class Speechless(LinesSource):
    def probe(self, piece: Any) -> Found:
        found = super().probe(piece)
        return replace(found, bad={row: replace(bad, reason="Not good!") for row, bad in found.bad.items()})


class Unplain(LinesSource):
    def survey(self) -> Any:
        return replace(super().survey(), about={"paths": tuple(self.settings.paths)})


class Miscounting(LinesSource):
    def survey(self) -> Any:
        return replace(super().survey(), total=3)


class Kept(SyntheticSource):
    """Gives out what it keeps."""

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        start = sample * 7
        return {self._key: self._text[start : start + int(self._lengths[self.checked(sample)])]}


class Dirty(SyntheticSource):
    def gather(self, samples: Any, out: Any) -> None:
        dirt = out[self._key][:, -1].copy()
        super().gather(samples, out)
        out[self._key][:, -1] = dirt


class Hurried(LinesSource):
    def decode_all(self, samples: Any, raw: Any) -> Any:
        return {"text": sorted(super().decode_all(samples, raw)["text"])}


class Doubling(SyntheticSource):
    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        return {key: value.astype(np.float64) for key, value in super().decode(sample, raw).items()}


class Lengthless(SyntheticSource):
    @property
    def lengths(self) -> dict[str, Any]:
        return {} if sys._getframe(1).f_code.co_name != "open" else super().lengths


class Forgetful(LinesSource):
    @property
    def parts(self) -> tuple[int, ...]:
        return (1, 5)


class Hasty(LinesSource):
    def decode_chunk(self, chunk: Chunk, raw: bytes) -> dict[str, Any]:
        return super().decode_chunk(replace(chunk, stop=chunk.stop - 1), raw)


class Mumbling(LinesSource):
    def texts(self, key: str) -> Any:
        blocks = super().texts(key)
        return blocks and ([text.upper() for text in block] for block in blocks)


FAULTS = {
    Leaky: "Nothing is left open",
    Shifted: "Lengths in the index are those of the decoded samples",
    Pieces: "The index is the same with 1 process and with 3, and however large the pieces are",
    Backwards: "Samples may be read in any order",
    Tangled: "Several threads may read at the same time",
    Homely: "A new process that gets name and settings makes the same of every sample",
    Fading: "Opening again gives the same samples",
    Short: "Reading many samples at once gives what reading one at a time gives, and no sample may be none",
    Nameless: "Every sample has a name and a place for people",
    Alike: "Identities are texts, the same each time, and shared by equal samples only",
    Moody: "Identities are texts, the same each time, and shared by equal samples only",
    Wrapping: "Numbers that no sample has are refused",
    Believing: "Data that changed since they were indexed are refused",
    Speechless: "Bad rows are named with their place and the reason",
    Unplain: "What the survey says may be written as JSON, and a process gets settings and pieces",
    Miscounting: "Every row is a sample or a bad row, and there are as many as the survey says",
    Kept: "Decoding again gives the same, also after a transform has changed the values in place",
    Dirty: "Writing whole batches at once gives the bytes that decoding each sample gives",
    Doubling: "Every decoded sample has the dtypes and shapes that the fields say",
    Lengthless: "Every padded field has its length in the index",
    Forgetful: "Parts begin with sample 0 and rise",
    Hurried: "Decoding many samples at once gives what decoding one at a time gives",
    Mumbling: "Strings that batches ask for are those of the samples and of the source's columns",
    Hasty: "Reading stretches of samples gives what cutting whole samples gives",
}


def test_every_check_but_one_has_a_fault_that_it_finds() -> None:
    """That of unknown settings asks what reads all settings, and no source can change that."""
    assert set(TITLES) - set(FAULTS.values()) == {"An unknown setting is refused, and the nearest named"}


@pytest.fixture
def forking() -> Iterator[None]:
    with forked_pools():
        yield


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault: type, tmp_path: Path) -> None:
    made = (lines if issubclass(fault, LinesSource) else synthetic)(tmp_path)
    case = replace(made, spec=replace(made.spec, dotted=f"{__name__}:{fault.__name__}"))
    (result,) = check_source(case, tmp_path, [CHECKS[TITLES.index(FAULTS[fault])]])
    while Leaky.left:
        os.close(Leaky.left.pop())
    assert result.passed is False
    assert result.detail


# --- the command ---


def test_the_command_prints_a_line_for_each_check_and_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lines"], FIXTURES) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "lines:"
    assert said[1] == f"       ok  {TITLES[0]}"
    assert said[-1] == "all is well"
    assert len(said) == 2 + len(TITLES)


@pytest.mark.usefixtures("forking")
def test_the_command_counts_the_checks_of_all_sources_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    def shifted(folder: Path) -> SourceCase:
        made = lines(folder)
        return replace(made, spec=replace(made.spec, dotted=f"{__name__}:Shifted"), change=None)

    assert main(["--all", "--json"], {"lines": lines, "worse": shifted}) == 1
    first, second = json.loads(capsys.readouterr().out)["sources"]
    assert first == {"source": "lines", "passed": len(TITLES) - 1, "failed": 0, "skipped": 1, "failures": []}
    assert second["source"] == "worse"
    assert (second["failed"], second["skipped"]) == (3, 2)
    assert second["failures"][0].startswith("Lengths in the index are those of the decoded samples: sample 0:")


def test_the_command_without_a_source_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], {"lines": lines}) == 2
    assert "expected a source, or --all" in capsys.readouterr().err


@pytest.mark.usefixtures("forking")
def test_the_command_takes_a_class_with_arguments_and_ends_with_1_if_a_check_fails(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines(tmp_path)
    assert main([f"{__name__}:Shifted", "--arguments", f'{{"paths": ["{tmp_path}/a.txt"]}}']) == 1
    said = capsys.readouterr().out
    assert (
        '   FAILED  Lengths in the index are those of the decoded samples: sample 0: "text" is 3 in the index, 4'
        in said
    )
    (tmp_path / "words.txt").write_text("some words")
    assert main(["tests.conformance.fixtures:Words", "--arguments", f'{{"path": "{tmp_path}/words.txt"}}']) == 0
    assert "not tried  Data that changed" in capsys.readouterr().out


@pytest.mark.usefixtures("forking")
def test_the_command_takes_a_stream_of_a_job_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines(tmp_path)
    job = tmp_path / "job.toml"
    job.write_text(
        '[job]\nname = "x"\n[streams.train]\nlength = "text"\nbudget = "9 characters"\ntransforms = ["characters"]\n'
        '[[streams.train.sources]]\nsource = "lines"\npaths = ["a.txt"]\n'
        '[[streams.train.sources]]\nsource = "lines"\npaths = ["b.txt"]\n'
    )
    assert main([str(job)]) == 0
    assert capsys.readouterr().out.count("lines:") == 2
    assert main([str(job), "--stream", "dev"]) == 1
    assert "expected one of the streams train, got dev" in capsys.readouterr().err
    assert not (tmp_path / ".stoker").exists()

"""Two jobs' builders over one shelf: each writes what it would have written alone, and says and notes the same."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.building.builder import Builder
from loader_server.building.culprits import culprit_key
from loader_server.building.quarantine import Quarantine
from loader_server.building.read_ahead import Prepared, UnreadError
from loader_server.building.trial_rule import ExhaustedError
from loader_server.sharing.sharing_builder import SharingBuilder
from loader_server.sharing.shelf import Shelf, make_shelf
from tests.support.in_memory import GatheringSource, MemorySource, MemoryStream, Steps, memory_want

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from loader_server.building.build_counts import Built
    from shared.wire import messages as m


class Job:
    """One job's builder, which counts the samples that it decoded."""

    def __init__(self, folder: Path, handle: int | None, kind: type[MemorySource], shared: str = "same") -> None:
        self.folder = folder
        self.folder.mkdir()
        self.decoded = 0
        self.source = kind(on_decode=dict.fromkeys(range(16), self._count))
        self.stream = MemoryStream(self.source)
        self.stream.shared = shared
        quarantine = Quarantine(folder / "quarantine.jsonl")
        self.shelf = Shelf(f"/proc/self/fd/{handle}") if handle is not None else None
        self.builder: Builder = (
            Builder(self.stream, quarantine, Steps())
            if self.shelf is None
            else SharingBuilder(self.stream, quarantine, Steps(), None, self.shelf)
        )

    def _count(self) -> None:
        self.decoded += 1

    def build(self, want: m.Want, **how: Any) -> tuple[Built, bytes]:
        prepared = self.builder.prepare(want)
        payload = np.full(prepared.layout.nbytes, 0xA5, np.uint8)
        assert self.builder.claim(prepared)
        built = self.builder.build(want, prepared, payload, **how)
        self.builder.release()
        return built, payload.tobytes()

    def masked(self) -> list[tuple[int, str, str]]:
        lines = (self.folder / "quarantine.jsonl").read_text().splitlines()
        return [(line["sample"], line["name"], line["error"]) for line in map(json.loads, lines)]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    handle = make_shelf(2**20)
    made: list[Job] = []

    def make(kind: type[MemorySource] = MemorySource, *, shares: bool = True, shared: str = "same") -> Job:
        made.append(Job(tmp_path / str(len(made)), handle if shares else None, kind, shared))
        return made[-1]

    yield make
    for one in made:
        if one.shelf is not None:
            one.shelf.close()
    os.close(handle)


def said(built: Built) -> tuple[Any, ...]:
    """What does not hang on who built it."""
    return (
        *(built.rows, built.masked, built.digest, built.reason, built.reasons),
        *(built.cells, built.sample_cells, built.masked_cells),
    )


BOTH = pytest.mark.parametrize("kind", [MemorySource, GatheringSource])


@BOTH
def test_a_batch_is_built_by_one_and_the_same_for_the_other(job: Callable[..., Job], kind: type[MemorySource]) -> None:
    alone, one, other = job(kind, shares=False), job(kind), job(kind)
    for number in range(4):
        expected, payload = alone.build(memory_want(number))
        for who, taken in ((one, False), (other, True), (one, True)):
            built, came = who.build(memory_want(number))
            assert (came, built.taken) == (payload, taken)
            assert said(built) == said(expected)
    assert (one.decoded, other.decoded) == (16, 0)


@BOTH
def test_no_digest_is_told_that_nobody_wants(job: Callable[..., Job], kind: type[MemorySource]) -> None:
    one, other = job(kind), job(kind)
    assert one.build(memory_want(), digest=False)[0].digest == 0
    taken = other.build(memory_want(), digest=False)[0]
    assert (taken.taken, taken.digest) == (True, 0)
    assert other.build(memory_want())[0].digest != 0


def test_it_is_not_even_read(job: Callable[..., Job]) -> None:
    one, other = job(), job()
    one.build(memory_want(1))
    read: list[int] = []
    other.source.on_read = {sample: lambda sample=sample: read.append(sample) for sample in range(16)}
    other.build(memory_want(1))
    assert read == []
    other.build(memory_want(2))
    assert read == [8, 9, 10, 11]


def build_after_reading(builder: Builder, prepared: Prepared, payload: np.ndarray) -> Built:
    """A batch that seemed to be on the shelf, and that is not taken from there."""
    with pytest.raises(UnreadError) as unread:
        builder.build(memory_want(1), prepared, payload)
    prepared = unread.value.read(lambda _: None)
    assert prepared.is_read, "whatever is on the shelf by then"
    return builder.build(memory_want(1), prepared, payload)


@BOTH
def test_a_batch_that_leaves_the_shelf_between_looking_and_building_is_built(
    job: Callable[..., Job], kind: type[MemorySource]
) -> None:
    alone, one, other = job(kind, shares=False), job(kind), job(kind)
    one.build(memory_want(1))
    prepared = other.builder.prepare(memory_want(1))
    assert not prepared.is_read
    assert other.shelf is not None
    kept = other.shelf.find(prepared.key)
    assert kept is not None
    os.pwrite(other.shelf._handle, b"another", kept.payload_at)
    payload = np.full(prepared.layout.nbytes, 0xA5, np.uint8)
    built = build_after_reading(other.builder, prepared, payload)
    expected, bytes_alone = alone.build(memory_want(1))
    assert (payload.tobytes(), built.taken, other.decoded) == (bytes_alone, False, 4)
    assert said(built) == said(expected)
    assert job(kind).build(memory_want(1))[0].taken, "and kept again"


@pytest.mark.parametrize(
    "want",
    [
        memory_want(1, epoch=1),
        memory_want(1, group=2),
        memory_want(2),
        memory_want(1, attempt=1),
        memory_want(1, empty=True),
    ],
    ids=["epoch", "group", "number", "suspect", "empty"],
)
def test_another_batch_is_not_taken_for_it(job: Callable[..., Job], want: m.Want) -> None:
    one, other = job(), job()
    one.build(memory_want(1))
    built, _ = other.build(want)
    assert not built.taken


def test_another_stream_or_other_files_share_nothing(job: Callable[..., Job]) -> None:
    one, other, changed = job(), job(shared="another"), job()
    changed.stream.identity = lambda sample: f"file-{sample}, changed" if sample == 5 else f"file-{sample}"
    one.build(memory_want(1))
    assert not other.build(memory_want(1))[0].taken
    assert not changed.build(memory_want(1))[0].taken
    one.build(memory_want(2))
    assert changed.build(memory_want(2))[0].taken, "none of its samples is sample 5"


def test_what_was_masked_is_noted_by_both(job: Callable[..., Job]) -> None:
    def fail() -> None:
        raise ValueError("no sound in it")

    alone, one, other = job(shares=False), job(), job()
    for who in (alone, one):
        who.source.on_decode |= {5: fail, 6: fail}
    expected, payload = alone.build(memory_want(1))
    assert expected.masked == 2
    for who in (one, other):
        built, came = who.build(memory_want(1))
        assert (came, said(built), who.masked()) == (payload, said(expected), alone.masked())
    assert other.decoded == 0
    one.build(memory_want(2))
    other.build(memory_want(2))
    assert len(other.masked()) == 2, "and only in its own batch"


def test_a_culprit_is_the_jobs_own_matter(job: Callable[..., Job]) -> None:
    """One job has convicted a sample, the other has not: each has the bytes that it would have alone."""
    convicting, other = job(), job()
    convicting.builder.culprits.hear([culprit_key("train", "file-5")])
    built, masked = convicting.build(memory_want(1))
    assert (built.masked, built.taken) == (1, False)
    built, whole = other.build(memory_want(1))
    assert (built.masked, built.taken) == (0, False)
    assert masked != whole
    assert convicting.build(memory_want(1))[1] == masked
    assert convicting.build(memory_want(2))[0].taken is False
    assert other.build(memory_want(2))[0].taken


def test_a_culprit_that_becomes_known_while_its_batch_is_built_changes_nothing_for_the_other(
    job: Callable[..., Job],
) -> None:
    alone, one, other = job(shares=False), job(), job()
    one.source.on_decode[4] = lambda: one.builder.culprits.hear([culprit_key("train", "file-5")])
    assert one.build(memory_want(1))[0].masked == 1
    built, whole = other.build(memory_want(1))
    assert (built.taken, whole) == (False, alone.build(memory_want(1))[1])
    late = job()
    prepared = late.builder.prepare(memory_want(1))
    late.builder.culprits.hear([culprit_key("train", "file-5")])
    built = build_after_reading(late.builder, prepared, np.zeros(prepared.layout.nbytes, np.uint8))
    assert (built.taken, built.masked) == (False, 1)


def test_who_is_second_waits_until_the_first_is_through(job: Callable[..., Job]) -> None:
    one, other = job(), job()
    prepared = one.builder.prepare(memory_want(1))
    wanted = other.builder.prepare(memory_want(1))
    assert one.builder.claim(prepared)
    assert not other.builder.claim(wanted)
    assert other.builder.claim(other.builder.prepare(memory_want(2))), "it may go on with others"
    other.builder.release()
    one.builder.build(memory_want(1), prepared, np.zeros(prepared.layout.nbytes, np.uint8))
    assert other.builder.claim(wanted), "it is there, before the first has said that it is through"
    one.builder.release()
    assert other.builder.build(memory_want(1), wanted, np.zeros(wanted.layout.nbytes, np.uint8)).taken


def test_an_error_gives_the_claim_back_and_keeps_nothing(job: Callable[..., Job]) -> None:
    one, other = job(), job()
    one.source.on_decode[5] = lambda: (_ for _ in ()).throw(MemoryError)
    with pytest.raises(ExhaustedError):
        one.build(memory_want(1))
    one.builder.release()
    built, _ = other.build(memory_want(1))
    assert not built.taken

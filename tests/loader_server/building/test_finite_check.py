"""Batches with values that are NaN or infinite, as a builder makes them: one by one, at once, packed."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from loader_server.building import places
from loader_server.building.build_counts import Built
from loader_server.building.builder import Builder
from loader_server.building.quarantine import Quarantine
from loader_server.commands.index import index_missing
from loader_server.job_file import JobFile
from loader_server.sharing.sharing_builder import as_facts, from_facts
from loader_server.stream import Stream
from shared.hashing import digest64
from shared.wire.batch_layout import Field
from tests.support import in_memory
from tests.support.askers import write_synthetic
from tests.support.in_memory import ColumnSource, GatheringSource, MemorySource, MemoryStream, Steps, memory_want

if TYPE_CHECKING:
    from pathlib import Path

#: Sample 5 has NaN as its value of "third".
THIRD = {5: np.nan}


class _Spoilt:
    def decode(self, sample, raw):
        return {**super().decode(sample, raw), "third": THIRD.get(sample, sample / 3)}


class One(_Spoilt, MemorySource):
    pass


class Columns(_Spoilt, ColumnSource):
    pass


class Gathers(GatheringSource):
    def gather(self, samples, out):
        super().gather(samples, out)
        for row, sample in enumerate(samples.tolist()):
            out["third"][row] = THIRD.get(sample, sample / 3)


def build(stream: MemoryStream, folder: Path, number: int = 1) -> tuple[Built, dict[str, np.ndarray]]:
    builder, want = Builder(stream, Quarantine(folder / "quarantine.jsonl"), Steps()), memory_want(number)
    prepared = builder.prepare(want)
    payload = np.full(prepared.layout.nbytes, 0xA5, np.uint8)
    built = builder.build(want, prepared, payload)
    assert built.digest == digest64(payload.data)
    return built, prepared.layout.arrays(payload)


@pytest.mark.parametrize("kind", [One, Columns, Gathers])
def test_they_are_counted_and_kept_unless_the_job_masks_them(tmp_path, kind, caplog):
    stream = MemoryStream(kind())
    built, arrays = build(stream, tmp_path)
    assert (built.not_finite, built.masked, built.rows) == ((("third", 1),), 0, 4)
    assert np.isnan(arrays["third"]).tolist() == [False, True, False, False, False]
    stream.masks_not_finite = True
    built, arrays = build(stream, tmp_path)
    assert (built.not_finite, built.masked, built.rows) == ((("third", 1),), 1, 3)
    assert built.reasons == (("not_finite", 1),)
    assert (arrays["third"][1], arrays["weight"][1], arrays["tag"][1], arrays["tokens_length"][1]) == (0, 0, 5, 0)
    assert not arrays["tokens"][1].any()
    (line,) = map(json.loads, (tmp_path / "quarantine.jsonl").read_text().splitlines())
    assert (line["sample"], line["reason"]) == (5, "not_finite")
    assert [line.fields["first"] for line in caplog.records] == ["sample-5"] * 2


@pytest.mark.parametrize("bad", [4, 5, 6, 7])
@pytest.mark.parametrize("piece_bytes", [1, 100, 2**20])
def test_batches_that_are_gathered_in_pieces_are_the_same(tmp_path, monkeypatch, bad, piece_bytes):
    monkeypatch.setitem(THIRD, 5, 5 / 3)
    monkeypatch.setitem(THIRD, bad, np.inf)
    stream = MemoryStream(Gathers())
    whole, arrays = build(stream, tmp_path)
    monkeypatch.setattr(places, "_PIECE_BYTES", piece_bytes)
    built, pieces = build(stream, tmp_path)
    assert built.not_finite == whole.not_finite == (("third", 1),)
    assert built.digest == whole.digest
    assert np.isinf(pieces["third"]).tolist() == np.isinf(arrays["third"]).tolist()


def test_numbers_that_rounding_makes_infinite_are_found_in_gathered_batches(tmp_path, monkeypatch):
    monkeypatch.setitem(THIRD, 5, 1e10)  # its square is finite too
    stream = MemoryStream(Gathers())
    assert build(stream, tmp_path)[0].not_finite == ()
    stream.float32 = "float16"
    assert build(stream, tmp_path)[0].not_finite == (("third", 1),)


def test_a_batch_that_is_well_has_none(tmp_path, caplog):
    assert build(MemoryStream(One()), tmp_path, 2)[0].not_finite == ()
    assert not caplog.records


@pytest.mark.parametrize("masks", [False, True])
def test_in_packed_rows_the_sample_alone_is_counted_and_masked(tmp_path, monkeypatch, masks):
    floats = Field(key="tokens", dtype="float32", shape=(None,))
    monkeypatch.setattr(in_memory, "TOKENS", floats)

    class Floats(MemorySource):
        def decode(self, sample, raw):
            values = np.full(2, sample, np.float32)
            values[1] = np.inf if sample == 5 else values[1]
            return {"tokens": values}

    stream = MemoryStream(Floats(), packed=True)
    stream.masks_not_finite = masks
    built, arrays = build(stream, tmp_path)
    assert built.not_finite == (("tokens", 1),)
    assert (built.masked, built.rows) == (int(masks), 2)
    assert arrays["tokens"][0, :2].tolist() == [4, 4]
    assert arrays["tokens"][0, 10:12].tolist() == [6, 6]
    assert arrays["tokens"][0, 5:7].tolist() == ([0, 0] if masks else [5, np.inf])
    assert arrays["tokens_segment"][0, 5:7].tolist() == ([0, 0] if masks else [2, 2])
    assert arrays["tokens_length"].tolist()[0] == 12


def test_masking_is_part_of_what_shapes_bytes_and_keeping_is_not(tmp_path):
    path = write_synthetic(tmp_path, samples=8, length=20)
    index_missing(JobFile(path))
    said = path.read_text()
    prints = {}
    for setting in ("", 'not_finite = "keep"\n', 'not_finite = "mask"\n'):
        path.write_text(said.replace("[job]\n", f"[job]\n{setting}"))
        with contextlib.closing(Stream(JobFile(path), "train")) as stream:
            prints[setting] = (stream.digest, stream.builder)
    default, keep, mask = prints.values()
    assert default == keep
    assert (mask[0], mask[1] == keep[1]) == (keep[0], False)


def test_batches_of_another_job_bring_their_counts():
    built = Built(rows=1, masked=0, digest=0, build_us=1, not_finite=(("audio", 3), ("third", 1)))
    assert from_facts(as_facts(built, []), digest=0, build_us=1)[0].not_finite == built.not_finite

"""An opened stream: what its batches carry, and in which shapes; and the parts of its plan on disk.

These are whole or not at all; damaged ones are made anew, old ones removed; several processes use them at once.
"""

from __future__ import annotations

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loader_server.commands.index import index_missing, index_streams
from loader_server.job_file import JobFile
from loader_server.stream import PlanKeeper, Stream
from shared.errors import DataError
from shared.wire.batch_layout import BucketShape
from tests.loader_server.planning.tables import batches_of
from tests.support.another_user import as_another_user, folder_for_all
from tests.support.askers import write_synthetic
from tests.support.corpora import utterances
from tests.support.loaders import write_job

if TYPE_CHECKING:
    from pathlib import Path

ARRAYS = {"groups": np.arange(7), "sums": np.array([[1, 2], [3, 4]], np.int32)}


def test_marks_of_packed_rows_are_as_long_as_the_rows_and_nothing_else_has_a_length(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path, samples=20, length=20, budget=400)
    path.write_text(path.read_text().replace("shapes = 2", 'packing = "100 steps"'))
    job = JobFile(path)
    index_missing(job)
    stream = Stream(job, "train")
    stream.close()
    lengths = dict.fromkeys(("features", "features_segment", "features_position"), 100)
    assert stream.shapes == (BucketShape(rows=4, lengths=lengths),)


def test_libraries_that_decode_are_part_of_what_workers_have_to_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JobFile(write_job(tmp_path, samples=4))
    index_missing(job)
    before = Stream(job, "train")
    builder = before.builder
    assert before.source.versions.keys() == {"soundfile", "libsndfile"}
    monkeypatch.setattr("loader_server.sources.manifest.source.audio_versions", lambda: {"soundfile": "0.0"})
    after = Stream(job, "train")
    assert (after.digest, after.builder == builder) == (before.digest, False)


def test_the_raw_lengths_of_a_sample_are_those_of_the_index(tmp_path: Path) -> None:
    job = JobFile(write_job(tmp_path, samples=4))
    index_missing(job)
    stream = Stream(job, "train")
    made = utterances(4, longest_s=1.0)
    lengths = [stream.raw_lengths(sample) for sample in range(4)]
    assert [one["audio"] for one in lengths] == [len(utterance.audio) for utterance in made]
    assert [one["text"] for one in lengths] == [len(utterance.text) for utterance in made]


def test_what_batches_are_shared_by_does_not_hang_on_who_indexed_the_data_but_on_the_data(tmp_path: Path) -> None:
    def shared(name: str) -> str:
        job = JobFile(tmp_path / f"{name}.toml")
        index_missing(job)
        stream = Stream(job, "train")
        stream.close()
        return stream.shared

    path = write_job(tmp_path, name="a", samples=4)
    for name in "bc":
        (tmp_path / f"{name}.toml").write_text(path.read_text().replace('name = "a"', f'name = "{name}"'))
    path.rename(tmp_path / "a.toml")
    before = shared("a")
    assert shared("b") == before
    os.utime(tmp_path / "clips/00003.wav", ns=(1, 1))
    assert shared("c") != before


def test_loops_that_the_environment_names_are_part_of_what_workers_have_to_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES", "OPENBLAS_CORETYPE"):
        monkeypatch.delenv(name, raising=False)
    job = JobFile(write_job(tmp_path, samples=4))
    index_missing(job)
    usual = Stream(job, "train")
    before = usual.builder, usual.steady
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")  # log-mel comes out otherwise in the last bits
    named = Stream(job, "train")
    assert named.digest == usual.digest
    assert named.builder != before[0]
    assert named.steady != before[1]
    monkeypatch.setenv("OPENBLAS_CORETYPE", "")
    assert Stream(job, "train").builder == before[0]


def test_an_index_that_was_made_before_digests_were_kept_is_refused(tmp_path: Path) -> None:
    job = JobFile(write_job(tmp_path, samples=4))
    index_missing(job)
    meta = job.index_folder("train") / "meta.json"
    said = json.loads(meta.read_text())
    meta.write_text(json.dumps({**said, "numbers": [name for name in said["numbers"] if name != "content"]}))
    with pytest.raises(DataError, match=r"expected an index with the columns content, got one without content"):
        Stream(job, "train")


def found(folder: Path, kind: str = "groups", name: str = "abc") -> dict[str, list[int]] | None:
    arrays = PlanKeeper(folder).load(kind, name)
    return None if arrays is None else {key: array.tolist() for key, array in arrays.items()}


KEPT = {key: array.tolist() for key, array in ARRAYS.items()}


def test_what_is_saved_is_found_by_kind_and_name(tmp_path):
    PlanKeeper(tmp_path / "state" / "index").save("groups", "abc", ARRAYS)
    assert found(tmp_path / "state" / "index") == KEPT
    assert found(tmp_path / "state" / "index", name="abd") is None
    assert found(tmp_path / "state" / "index", kind="survey") is None
    assert found(tmp_path / "nowhere") is None
    assert [path.name for path in (tmp_path / "state" / "index").iterdir()] == ["groups-abc.plan"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_a_damaged_file_is_not_there(tmp_path, data):
    PlanKeeper(tmp_path).save("groups", "abc", ARRAYS)
    path = tmp_path / "groups-abc.plan"
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytes([*whole[:place], whole[place] ^ (1 << data.draw(st.integers(0, 7))), *whole[place + 1 :]])
    path.write_bytes(data.draw(st.sampled_from([flipped, whole[:place], whole + b"x"])))
    assert found(tmp_path) is None
    PlanKeeper(tmp_path).save("groups", "abc", ARRAYS)
    assert found(tmp_path) == KEPT


def test_a_file_under_another_name_is_not_there(tmp_path, caplog):
    PlanKeeper(tmp_path).save("groups", "abc", ARRAYS)
    (tmp_path / "groups-abc.plan").rename(tmp_path / "groups-xyz.plan")
    assert found(tmp_path, name="xyz") is None
    assert "a damaged part of the plan is computed again" in caplog.text


def test_what_has_not_been_in_use_for_longest_is_removed(tmp_path):
    keeper = PlanKeeper(tmp_path)
    keeper.save("survey", "plan", ARRAYS)
    (tmp_path / "meta.json").write_text("{}")
    for number in range(20):
        keeper.save("groups", str(number), ARRAYS)
        (tmp_path / f"groups-{number}.plan.tmp0").touch()
        for path in tmp_path.glob(f"*-{number}.*"):
            os.utime(path, ns=(0, number))
        if number > 4:
            assert keeper.load("groups", "4") is not None
    left = {path.name for path in tmp_path.iterdir()}
    assert left >= {"survey-plan.plan", "meta.json", "groups-4.plan", *(f"groups-{n}.plan" for n in range(13, 20))}
    assert len([name for name in left if name.endswith(".plan")]) == 9
    assert len([name for name in left if ".tmp" in name]) <= 9


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path, caplog):
    (tmp_path / "index").write_text("a file, and no folder")
    with caplog.at_level(logging.WARNING):
        PlanKeeper(tmp_path / "index").save("groups", "abc", ARRAYS)
    assert "the plan cannot be saved: the next start computes it again" in caplog.text


@pytest.mark.fault(66)
def test_beside_an_index_that_may_only_be_read_a_plan_is_not_kept_without_a_word(caplog):
    with folder_for_all() as folder, as_another_user(), caplog.at_level(logging.INFO):
        PlanKeeper(folder).save("groups", "abc", ARRAYS)
        assert not list(folder.iterdir())
    assert not caplog.records


def test_a_draft_that_cannot_take_its_place_is_removed(tmp_path):
    (tmp_path / "groups-abc.plan").mkdir()
    PlanKeeper(tmp_path).save("groups", "abc", ARRAYS)
    assert [path.name for path in tmp_path.iterdir()] == ["groups-abc.plan"]


def test_several_threads_and_keepers_save_at_once(tmp_path, caplog):
    def save_and_load(number):
        PlanKeeper(tmp_path).save("groups", str(number % 12), ARRAYS)
        return found(tmp_path, name=str(number % 12)) in (KEPT, None)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(save_and_load, range(200)))
    assert not caplog.text
    assert found(tmp_path, name=next(tmp_path.glob("*.plan")).stem.removeprefix("groups-")) == KEPT


@pytest.mark.parametrize("damage", [False, True])
def test_a_stream_that_is_opened_again_plans_nothing(tmp_path, damage):
    job = JobFile(write_job(tmp_path, samples=40, transforms=("logmel",)))
    job.path.write_text(job.path.read_text().replace("shapes = 4", 'packing = "3 s"'))
    job = JobFile(job.path)
    index_streams(job, ["train"], processes=1)
    told: list[list[int]] = []
    epochs = []
    for _ in range(2):
        told.append([])
        stream = Stream(job, "train", lambda done, _total: told[-1].append(done))
        epochs.append([batch.samples.tolist() for batch in batches_of(stream.plan.epoch(1, 2))])
        stream.close()
        if damage:
            for path in job.index_folder("train").glob("*.plan"):
                path.write_bytes(path.read_bytes()[:-1])
    assert told[0]
    assert bool(told[1]) == damage
    assert epochs[0] == epochs[1]

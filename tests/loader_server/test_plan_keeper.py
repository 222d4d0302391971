"""Parts of plans on disk: whole or not at all, damaged ones made anew, old ones removed, several processes at once."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.plan_keeper import PlanKeeper
from loader_server.stream import Stream
from tests.loader_server.planning.tables import batches_of
from tests.support.another_user import as_another_user, folder_for_all
from tests.support.loaders import write_job

if TYPE_CHECKING:
    from pathlib import Path

ARRAYS = {"groups": np.arange(7), "sums": np.array([[1, 2], [3, 4]], np.int32)}


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

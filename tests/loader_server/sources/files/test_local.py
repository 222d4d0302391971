"""Names of one file are told from names of several, in every source that has a list of paths."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import pytest

from loader_server.sources.files.local import named_twice
from loader_server.sources.files.opening import Files
from loader_server.sources.registry import SOURCES, settings_of_sources
from shared.errors import DataError
from tests.conformance.fixtures import FIXTURES
from tests.support.sources import index_source

if TYPE_CHECKING:
    from pathlib import Path

#: Files that a user's own code reads may be named as often as it likes; the lines of one are pairs of several.
_EXEMPT = {"pipeline", "parallel"}
_WITH_PATHS = sorted(name for name in SOURCES if "paths" in settings_of_sources()[name].__dataclass_fields__)


@pytest.mark.parametrize("name", [name for name in _WITH_PATHS if name not in _EXEMPT])
@pytest.mark.parametrize("how", ["twice", "by a link"])
def test_every_source_refuses_a_file_or_folder_that_is_named_twice(name: str, how: str, tmp_path: Path) -> None:
    named_once = FIXTURES[name](tmp_path).spec
    path = named_once.settings.paths[0]
    if not (tmp_path / path).exists():  # it is a pattern
        path = sorted(found.name for found in tmp_path.glob(path))[0]
    again = path if how == "twice" else f"linked.{path.rsplit('/', 1)[-1]}"
    if how != "twice":
        (tmp_path / again).symlink_to(tmp_path / path)
    settings = dataclasses.replace(named_once.settings, paths=(*named_once.settings.paths, again))
    spec = dataclasses.replace(named_once, settings=settings)
    if name not in ("manifest", "files"):
        with pytest.raises(DataError, match="expected each file once, got "):
            index_source(spec)
        return
    report = index_source(spec)  # which says so row by row
    assert report.samples == index_source(named_once, tmp_path / "once").samples
    assert report.bad_counts["duplicate"] > 2


def test_names_of_one_file_are_found_and_those_of_others_are_not(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text("the same")
    (tmp_path / "link").symlink_to("a")
    os.link(tmp_path / "b", tmp_path / "hard")
    assert named_twice(tmp_path, ["a", "b"]) is None
    assert named_twice(tmp_path, ["a", "b", "link"]) == ("a", "link")
    assert named_twice(tmp_path, ["a", "b", "hard"]) == ("b", "hard")
    assert named_twice(tmp_path, ["a", f"{tmp_path}/a"]) == ("a", f"{tmp_path}/a")
    assert named_twice(tmp_path, ["gone", "gone"]) == ("gone", "gone")
    assert named_twice(tmp_path, ["gone", "away", "x" * 5000, "\0"]) is None


def test_files_that_a_file_system_numbers_alike_are_not_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(
        os, "stat", lambda path, real=os.stat, **how: os.stat_result([33188, 7, *real(path, **how)[2:]])
    )
    assert named_twice(tmp_path, ["a", "b"]) is None


def test_urls_are_compared_as_they_are(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.refuse_twice(["https://host/a.jsonl", "https://host/b.jsonl"])
    with pytest.raises(DataError, match=r"https://host/a\.jsonl, which is there twice"):
        files.refuse_twice(["https://host/a.jsonl", "https://host/a.jsonl"])


def test_files_of_a_users_own_code_may_be_named_twice(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    assert Files(tmp_path).found(["a", "a"], once=False) == ["a", "a"]

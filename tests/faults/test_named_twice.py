"""A file that is named twice, directly or by a link, would count twice: it is refused before anything is indexed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.test_several_jobs import command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_JOB = """
[job]
name = "twice"

[streams.train]
source = "{source}"
paths = [{paths}]
length = "text"
budget = "100 characters"
transforms = ["characters"]
"""


def symbolic(folder: Path) -> None:
    (folder / "other").mkdir()
    (folder / "other/b.jsonl").symlink_to(folder / "a.jsonl")


def hard(folder: Path) -> None:
    (folder / "other").mkdir()
    os.link(folder / "a.jsonl", folder / "other/b.jsonl")


def linked_folder(folder: Path) -> None:
    (folder / "other").symlink_to(folder)


_B = '"a.jsonl", "other/b.jsonl"'
_WAYS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "twice": ('"a.jsonl", "a.jsonl"', bool, "got a.jsonl, which is there twice"),
    "by another path": ('"a.jsonl", "./a.jsonl"', bool, "got ./a.jsonl, which is the same as a.jsonl"),
    "by a pattern": ('"a.jsonl", "*.jsonl"', bool, "got a.jsonl, which is there twice"),
    "by a symbolic link": (_B, symbolic, "got other/b.jsonl, which is the same as a.jsonl"),
    "by a hard link": (_B, hard, "got other/b.jsonl, which is the same as a.jsonl"),
    "by a linked folder": ('"a.jsonl", "other/a.jsonl"', linked_folder, "other/a.jsonl, which is the same as a.jsonl"),
}


@pytest.mark.fault(71)
@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("source", ["jsonl", "lines"])
def test_a_file_that_is_named_twice_is_refused(tmp_path: Path, source: str, way: str) -> None:
    paths, link, got = _WAYS[way]
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    link(tmp_path)
    (tmp_path / "job.toml").write_text(_JOB.format(source=source, paths=paths))
    code, _, said = command("index", tmp_path / "job.toml")
    assert code == 1
    assert "expected each file once" in said
    assert got in said
    (tmp_path / "job.toml").write_text(_JOB.format(source=source, paths='"a.jsonl"'))
    assert command("index", tmp_path / "job.toml")[0] == 0

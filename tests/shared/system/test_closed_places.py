"""Closed places: which they are, and what is said of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shared.errors import SettingsError
from shared.system.closed_places import refuse_closed, why_closed
from tests.support.another_user import as_another_user, folder_for_all
from tests.support.closed import CLOSED, may_close
from tests.support.forked import run_module

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of ours that every user can reach."""
    with folder_for_all() as made:
        yield made


def test_what_can_be_written_or_made_is_not_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "new" / "and" / "below", tmp_path / "file", Path("relative"), Path()):
        assert why_closed(place) == ""
        refuse_closed(place, where="--state")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"], "nothing is made"


@pytest.mark.fault(66)
def test_what_belongs_to_another_user_is_closed(folder: Path) -> None:
    (folder / "file").touch(mode=0o644)
    owner = os.getuid()
    with as_another_user():
        user = os.geteuid()
        assert why_closed(folder) == f"{folder} of user {owner} with mode 755"
        assert why_closed(folder / "new" / "and" / "below") == why_closed(folder)
        assert why_closed(folder / "file") == f"{folder / 'file'} of user {owner} with mode 644"
        with pytest.raises(SettingsError) as refusal:
            refuse_closed(folder / "new", where="--state")
    assert str(refusal.value) == (
        f"--state: expected a folder that user {user} may write to, got {folder} of user {owner} with mode 755. "
        "Let this user write there (chown, chmod, a mount that is not read-only), or name another place."
    )
    folder.chmod(0o1777)
    with as_another_user():
        assert why_closed(folder / "new") == ""


@pytest.mark.fault(66)
def test_a_folder_that_may_be_written_and_not_entered_is_closed(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner").chmod(0o666)
    with as_another_user():
        assert why_closed(folder / "inner") == f"{folder / 'inner'} of user 0 with mode 666"


@pytest.mark.fault(66)
def test_a_read_only_file_system_is_named_as_such(tmp_path: Path) -> None:
    if not may_close():
        pytest.skip("only root can make file systems read-only")
    code, _, errors = run_module(
        CLOSED, "only=", "loader_server", "fetch", "tcp://127.0.0.1:9", "--state", str(tmp_path)
    )
    assert code == 1
    assert f"got {tmp_path}, which is on a read-only file system. Let this user write there" in errors

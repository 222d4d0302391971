"""Old bundles are removed: not those in use, not the newest few, and never by halves."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from loader_server.fleet import old_bundles
from loader_server.fleet.host_folder import HostFolder
from loader_server.fleet.joined_folder import JoinedFolder
from loader_server.fleet.old_bundles import KEPT, remove_old_bundles

if TYPE_CHECKING:
    from pathlib import Path


def name(number: int) -> str:
    return f"{number:032x}"


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    """Seven bundles, the newest last, beside other things."""
    folder = tmp_path / "bundles"
    for number in range(7):
        (folder / name(number) / "index").mkdir(parents=True)
        (folder / name(number) / "index" / "meta.json").write_text("{}")
        os.utime(folder / name(number), ns=(number, number))
    (folder / "lock").touch()
    (folder / "of-the-user").mkdir()
    return folder


def left(bundles: Path) -> set[str]:
    return {path.name for path in bundles.iterdir()} - {"lock", "of-the-user"}


def test_the_newest_stay(bundles: Path, tmp_path: Path) -> None:
    remove_old_bundles(bundles, tmp_path / "hosts")
    assert left(bundles) == {name(number) for number in range(7 - KEPT, 7)}
    assert (bundles / "lock").exists()
    assert (bundles / "of-the-user").exists()


def test_what_a_living_process_uses_stays_beside_them(bundles: Path, tmp_path: Path) -> None:
    with HostFolder.take(tmp_path / "hosts", "digits") as host:
        said = JoinedFolder(endpoint="tcp://a:1", data="/d", state="/s", index="/i", bundle=name(1))
        said.write(host.job_file)
        remove_old_bundles(bundles, tmp_path / "hosts")
        assert left(bundles) == {name(1), *(name(number) for number in range(7 - KEPT, 7))}
    remove_old_bundles(bundles, tmp_path / "hosts")
    assert name(1) not in left(bundles)


def test_drafts_that_were_given_up_go_as_well(bundles: Path, tmp_path: Path) -> None:
    draft = (bundles / name(1)).rename(bundles / f"{name(1)}.draft")
    remove_old_bundles(bundles, tmp_path / "hosts")
    assert not draft.exists()


def test_nothing_goes_while_nobody_knows_what_is_in_use(bundles: Path, tmp_path: Path) -> None:
    with HostFolder.take(tmp_path / "hosts", "digits") as host:
        host.job_file.with_name("joined.json").write_text("{")
        remove_old_bundles(bundles, tmp_path / "hosts")
    assert len(left(bundles)) == 7


@pytest.mark.parametrize("after", range(5))
def test_killed_in_the_middle_none_is_there_by_halves(
    bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    class Killed(BaseException):
        pass

    steps: list[str] = []

    def step(what: str) -> None:
        if len(steps) == after:
            raise Killed
        steps.append(what)

    rmtree, unlink = shutil.rmtree, os.unlink

    def removing(path: Path) -> None:
        step("the first file")
        unlink(path / "index" / "meta.json")
        step("the rest")
        rmtree(path)

    monkeypatch.setattr(old_bundles.shutil, "rmtree", removing)
    with pytest.raises(Killed):
        remove_old_bundles(bundles, tmp_path / "hosts")
    for bundle in left(bundles):
        assert bundle.endswith(".removed") or (bundles / bundle / "index" / "meta.json").exists()
    monkeypatch.setattr(old_bundles.shutil, "rmtree", rmtree)
    remove_old_bundles(bundles, tmp_path / "hosts")
    assert left(bundles) == {name(number) for number in range(7 - KEPT, 7)}


def test_links_are_left_alone(bundles: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (bundles / name(99)).symlink_to(outside)
    (bundles / f"{name(98)}.removed").symlink_to(outside)
    remove_old_bundles(bundles, tmp_path / "hosts")
    assert outside.exists()
    assert {name(99), f"{name(98)}.removed"} <= left(bundles)


def test_what_cannot_be_removed_hinders_nothing_else(
    bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rmtree = shutil.rmtree

    def refusing(path: Path) -> None:
        if path.name == f"{name(2)}.removed":
            raise PermissionError(13, "Permission denied", str(path))
        rmtree(path)

    monkeypatch.setattr(old_bundles.shutil, "rmtree", refusing)
    remove_old_bundles(bundles, tmp_path / "hosts")
    assert left(bundles) == {f"{name(2)}.removed", *(name(number) for number in range(7 - KEPT, 7))}
    assert "cannot be removed" in caplog.text

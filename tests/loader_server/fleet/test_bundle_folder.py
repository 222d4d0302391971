"""Where bundles are kept: whole or not there, taken up after a cut, checked, never through links, one at a time."""

from __future__ import annotations

import os
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from loader_server.fleet import bundle_folder
from loader_server.fleet.bundle_folder import KEPT, BundleFolder, locked, remove_old_bundles
from loader_server.fleet.fetching import FilePiece
from loader_server.fleet.host_folder import HostFolder, JoinedFolder
from shared.errors import DataError, MachineError
from tests.loader_server.fleet.bundles import FILES, PIECE, made

if TYPE_CHECKING:
    from pathlib import Path


LARGE = "index/index-train/columns/a%2Fb c.npy"


def write(folder, manifest, need, most=10**6):
    """Write the lacking pieces, up to so many; how many were written."""
    count = 0
    for file in manifest.files:
        for number in range(need.get(file.name, file.count), file.count):
            if count == most:
                return count
            content = FILES[file.name][number * PIECE : (number + 1) * PIECE]
            folder.write(FilePiece(file, number, content))
            count += 1
    return count


def content_below(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_it_is_there_whole_or_not_at_all(tmp_path):
    manifest = made()
    folder = BundleFolder(tmp_path, manifest)
    write(folder, manifest, folder.begin())
    assert not folder.is_whole
    folder.finish()
    assert folder.is_whole
    assert content_below(folder.path) == FILES


def test_after_a_cut_only_what_is_lacking_is_needed(tmp_path):
    manifest = made()
    first = BundleFolder(tmp_path, manifest)
    assert write(first, manifest, first.begin(), most=4) == 4  # job file, meta.json, and two pieces of the large one
    again = BundleFolder(tmp_path, manifest)
    need = again.begin()
    assert need == {"job.toml": 1, "files/0.npz": 0, "index/index-train/meta.json": 1, LARGE: 2}
    assert write(again, manifest, need) == 1
    again.finish()
    assert content_below(again.path) == FILES


@pytest.mark.parametrize(("damage", "left"), [(lambda b: b[: PIECE + 5], 1), (lambda b: b"?" + b[1:], 0)])
def test_what_was_cut_or_damaged_is_fetched_again(tmp_path, damage, left):
    manifest = made()
    folder = BundleFolder(tmp_path, manifest)
    write(folder, manifest, folder.begin())
    file = next(tmp_path.glob("*.draft")) / LARGE
    file.write_bytes(damage(file.read_bytes()))
    need = BundleFolder(tmp_path, manifest).begin()
    assert need[LARGE] == left
    write(folder, manifest, need)
    folder.finish()
    assert content_below(folder.path) == FILES


def test_a_file_that_is_too_long_is_cut(tmp_path):
    manifest = made()
    folder = BundleFolder(tmp_path, manifest)
    write(folder, manifest, folder.begin())
    with (next(tmp_path.glob("*.draft")) / LARGE).open("ab") as file:
        file.write(b"more")
    folder.begin()
    folder.finish()
    assert content_below(folder.path) == FILES


def test_bytes_that_the_disk_changed_are_an_error_and_fetched_anew(tmp_path):
    manifest = made()
    folder = BundleFolder(tmp_path, manifest)
    write(folder, manifest, folder.begin())
    draft = next(tmp_path.glob("*.draft"))
    (draft / LARGE).write_bytes(b"?" * len(FILES[LARGE]))
    with pytest.raises(DataError, match="other bytes"):
        folder.finish()
    assert not folder.is_whole
    assert folder.begin()[LARGE] == 0


@pytest.mark.parametrize("planted", ["files", "index/index-train", "job.toml", "files/0.npz"])
def test_nothing_is_written_through_links(tmp_path, planted):
    manifest, outside = made(), tmp_path / "outside"
    bundles = tmp_path / "bundles"
    outside.mkdir()
    folder = BundleFolder(bundles, manifest)
    draft = bundles / f"{folder.path.name}.draft"
    (draft / planted).parent.mkdir(parents=True)
    (draft / planted).symlink_to(outside if "." not in planted else outside / "target")
    with pytest.raises(DataError, match="link"):
        folder.begin()
    assert list(outside.iterdir()) == []


def test_a_draft_that_is_a_link_is_refused(tmp_path):
    manifest, outside = made(), tmp_path / "outside"
    outside.mkdir()
    folder = BundleFolder(tmp_path / "bundles", manifest)
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / f"{folder.path.name}.draft").symlink_to(outside)
    with pytest.raises(DataError, match="link"):
        folder.begin()


def test_one_without_the_index_has_a_name_of_its_own(tmp_path):
    manifest = made()
    skipped = frozenset(name for name in FILES if name.startswith("index/"))
    without = BundleFolder(tmp_path, manifest, skipped)
    write(without, manifest, without.begin())
    without.finish()
    assert content_below(without.path) == {"job.toml": FILES["job.toml"], "files/0.npz": b""}
    assert not BundleFolder(tmp_path, manifest).is_whole


def test_one_at_a_time(tmp_path):
    order, inside = [], threading.Event()

    def second():
        inside.wait(10)
        with locked(tmp_path / "bundles"):
            order.append("second")

    other = threading.Thread(target=second)
    other.start()
    with locked(tmp_path / "bundles"):
        inside.set()
        other.join(0.3)
        order.append("first")
    other.join(10)
    assert order == ["first", "second"]


def test_a_lock_that_somebody_planted_is_refused(tmp_path):
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MachineError), locked(tmp_path / "bundles"):
        raise AssertionError
    assert not (tmp_path / "elsewhere").exists()


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

    monkeypatch.setattr(bundle_folder.shutil, "rmtree", removing)
    with pytest.raises(Killed):
        remove_old_bundles(bundles, tmp_path / "hosts")
    for bundle in left(bundles):
        assert bundle.endswith(".removed") or (bundles / bundle / "index" / "meta.json").exists()
    monkeypatch.setattr(bundle_folder.shutil, "rmtree", rmtree)
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

    monkeypatch.setattr(bundle_folder.shutil, "rmtree", refusing)
    remove_old_bundles(bundles, tmp_path / "hosts")
    assert left(bundles) == {f"{name(2)}.removed", *(name(number) for number in range(7 - KEPT, 7))}
    assert "cannot be removed" in caplog.text

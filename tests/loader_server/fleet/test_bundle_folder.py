"""Where bundles are kept: whole or not there, taken up after a cut, checked, never through links, one at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from loader_server.fleet.bundle_folder import BundleFolder, locked
from loader_server.fleet.fetching import FilePiece
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

"""Files of ours: what somebody else put in their place is refused, and so is a place that may not be written to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from shared.errors import MachineError
from shared.stores.own_files import draft_of, open_own, refuse_linked_folder, replacing, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import SettingsError
from shared.stores.own_files import refuse_closed, why_closed
from tests.support.another_user import as_another_user, folder_for_all
from tests.support.closed import CLOSED, may_close
from tests.support.forked import run_module

if TYPE_CHECKING:
    from collections.abc import Iterator


WAYS = [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_CREAT]

PLANTED: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "a link": (lambda place, other: place.symlink_to(other), "a link"),
    "a link to nowhere": (lambda place, other: place.symlink_to("nothing"), "a link"),
    "a second name": (lambda place, other: place.hardlink_to(other), "a second name of another file"),
    "a pipe": (lambda place, other: os.mkfifo(place), "a pipe"),
}


@pytest.mark.parametrize("flags", WAYS)
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_in_the_place_of_a_file_is_refused(name: str, flags: int, tmp_path: Path) -> None:
    other, place = tmp_path / "other", tmp_path / "place"
    other.write_text("of somebody else's")
    plant, got = PLANTED[name]
    plant(place, other)
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(MachineError, match=f"place: expected a file or folder that only Stoker makes, got {got}"):
        open_own(place, flags)
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert other.read_text() == "of somebody else's"
    assert not (tmp_path / "nothing").exists()


def test_a_file_of_ours_is_made_and_opened_again(tmp_path: Path) -> None:
    made = open_own(tmp_path / "place", os.O_RDWR | os.O_CREAT)
    os.write(made, b"ours")
    again = open_own(str(tmp_path / "place"), os.O_RDONLY)
    assert os.read(again, 9) == b"ours"
    for number in (made, again):
        os.close(number)
    with pytest.raises(FileNotFoundError):
        open_own(tmp_path / "none", os.O_RDWR)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    place = tmp_path / "place"
    for draft in (None, draft_of(tmp_path / "elsewhere")):
        place.write_bytes(b"before")
        with pytest.raises(TypeError), replacing(place, draft) as file:
            file.writelines([b"half", "no bytes"])  # type: ignore[list-item]
        assert place.read_bytes() == b"before"
        with replacing(place, draft) as file:
            file.write(b"whole")
            assert place.read_bytes() == b"before"
        assert place.read_bytes() == b"whole"
        assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_on_the_disk_before_it_has_its_name_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    there: list[bool] = []
    monkeypatch.setattr("os.fsync", lambda _file: there.append((tmp_path / "place").exists()))
    with replacing(tmp_path / "place", sync=sync) as file:
        file.write(b"whole")
    assert there == ([False] if sync else [])
    assert (tmp_path / "place").read_bytes() == b"whole"


def test_a_new_file_has_the_rights_that_were_named(tmp_path: Path) -> None:
    os.close(open_own(tmp_path / "ours", os.O_RDWR | os.O_CREAT, 0o600))
    assert (tmp_path / "ours").stat().st_mode & 0o777 == 0o600


def test_a_link_in_the_place_of_a_file_or_its_draft_is_not_followed(tmp_path: Path) -> None:
    other, place, draft = tmp_path / "other", tmp_path / "place", tmp_path / "draft"
    other.write_bytes(b"of somebody else's")
    for planted in (place, draft):
        planted.symlink_to(other)
    with pytest.raises(FileExistsError), replacing(place, draft):
        pytest.fail("a draft was opened that was there before")
    with replacing(place) as file:
        file.write(b"ours")
    assert (place.is_symlink(), place.read_bytes(), other.read_bytes()) == (False, b"ours", b"of somebody else's")


def test_nobody_can_guess_the_name_of_a_draft(tmp_path: Path) -> None:
    drafts = {draft_of(tmp_path / "place") for _ in range(9)}
    assert len(drafts) == 9
    assert all(draft.parent == tmp_path and draft.match("place.tmp*") for draft in drafts)


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    refuse_linked_folder(tmp_path)
    refuse_linked_folder(tmp_path / "none")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(MachineError, match="link: expected a file or folder that only Stoker makes, got a link"):
        refuse_linked_folder(tmp_path / "link")


def test_a_folder_is_synced_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr("os.fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))  # noqa: PTH115
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    sync_folder(tmp_path)
    assert synced == [str(tmp_path)]
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


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

"""Checkpoints that were damaged in every way: the one before is read, with its own cursor, and never a wrong one."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest

from shared.errors import DataError, MachineError, WorldChangedError
from tests.support.disk import no_file_larger_than, small_disk
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder

#: As a small model has them: weights, a step count, a random layer's seed.
ARRAYS = {"0": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "1": np.array(7), "2": np.arange(2, dtype="u4")}


def record(number):
    return {"epoch": 0, "feed": {"stream": "train", "epoch": 0, "number": number}}


def as_it_was_written_before_there_were_digests(number, arrays=ARRAYS):
    file = io.BytesIO()
    text = json.dumps({"format": 1, **record(number)}).encode()
    np.savez(file, **arrays, record=np.frombuffer(text, np.uint8))
    return file.getvalue()


def is_whole(found, number):
    arrays, found_record = found
    if arrays.keys() != ARRAYS.keys():
        return False
    same = [np.array_equal(arrays[key], ARRAYS[key]) and arrays[key].dtype == ARRAYS[key].dtype for key in ARRAYS]
    return all(same) and found_record == record(number)


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "new", keep=3)


@pytest.fixture
def two(folder):
    """The paths of two checkpoints, of which the second is to be damaged."""
    return [folder.write(ARRAYS, record(number)) for number in (1, 2)]


@pytest.mark.parametrize("nbytes", [0, 10, 200, 700])
def test_a_checkpoint_without_room_says_so_and_the_last_one_stays(folder, nbytes):
    """Wherever the file ends: in an array, in the archive's list, or in the digest."""
    first = folder.write(ARRAYS, record(1))
    assert nbytes < first.stat().st_size
    with no_file_larger_than(nbytes), pytest.raises(MachineError, match="got File too large") as caught:
        folder.write(ARRAYS, record(2))
    assert str(caught.value).startswith(f"checkpoint in {folder}: expected the system to do what it was asked for")
    assert is_whole(folder.read_last(), 1)
    assert list(Path(str(folder)).iterdir()) == [first]
    folder.write(ARRAYS, record(3))
    assert is_whole(folder.read_last(), 3)


def test_a_checkpoint_on_a_full_disk_says_what_to_do(tmp_path):
    with small_disk(tmp_path / "disk", "64k") as disk:
        folder = CheckpointFolder(disk.folder / "new", keep=3)
        folder.write(ARRAYS, record(1))
        make_room = disk.fill()
        with pytest.raises(
            MachineError, match=r"got No space left on device\. Make room on that disk, and start again"
        ):
            folder.write(ARRAYS, record(2))
        assert is_whole(folder.read_last(), 1)
        make_room()
        folder.write(ARRAYS, record(2))


def test_what_cannot_be_written_at_all_is_no_fault_of_the_disk(folder):
    with pytest.raises(TypeError):
        folder.write(ARRAYS, {"not JSON": object()})
    assert list(Path(str(folder)).iterdir()) == []


class TestWhole:
    def test_what_was_written_last_is_read(self, folder):
        assert folder.read_last() is None
        for number in range(12):
            folder.write(ARRAYS, record(number))
        assert is_whole(folder.read_last(), 11)

    def test_only_the_last_few_stay(self, folder):
        paths = [folder.write({}, {}) for _ in range(5)]
        assert sorted(paths[0].parent.iterdir()) == paths[-3:]

    def test_numbers_outgrow_their_zeros(self, folder):
        path = folder.write(ARRAYS, record(1))
        path.rename(path.with_name("99999999.npz"))
        assert folder.write(ARRAYS, record(2)).name == "100000000.npz"
        assert is_whole(folder.read_last(), 2)

    def test_a_write_that_was_killed_leaves_nothing_that_is_picked(self, folder, monkeypatch):
        first = folder.write(ARRAYS, record(1))

        def killed(*_args, **_arrays):
            raise MemoryError

        monkeypatch.setattr("numpy.savez", killed)
        with pytest.raises(MemoryError):
            folder.write(ARRAYS, record(2))
        monkeypatch.undo()
        assert is_whole(folder.read_last(), 1)
        first.with_suffix(".tmp1").touch()  # by a process that is no more
        second = folder.write(ARRAYS, record(3))
        assert sorted(first.parent.iterdir()) == [first, second]

    def test_it_is_on_the_disk_before_it_has_its_name_and_the_name_before_anything_goes(self, two, folder, monkeypatch):
        third, synced, sync = two[1].with_name("00000003.npz"), [], os.fsync

        def observed(descriptor):
            sync(descriptor)
            suffix = Path(f"/proc/self/fd/{descriptor}").resolve().suffix
            synced.append((suffix[:4], third.exists(), two[0].exists()))

        monkeypatch.setattr("os.fsync", observed)
        CheckpointFolder(third.parent, keep=1).write(ARRAYS, record(3))
        assert synced == [(".tmp", False, True), ("", True, True)]

    def test_one_without_a_digest_is_read_as_long_as_it_is_whole(self, folder):
        path = folder.write(ARRAYS, record(1))
        path.write_bytes(as_it_was_written_before_there_were_digests(4))
        assert is_whole(folder.read_last(), 4)

    def test_the_arrays_are_there_for_whoever_knows_numpy_only(self, folder):
        with np.load(folder.write(ARRAYS, record(1))) as file:
            np.testing.assert_array_equal(file["0"], ARRAYS["0"])


@pytest.fixture
def no_log():
    """Said thousands of times over it is only slow."""
    logging.getLogger("stoker.trainer").disabled = True
    yield
    logging.getLogger("stoker.trainer").disabled = False


@pytest.mark.fault(49)
class TestDamaged:
    @pytest.mark.usefixtures("no_log")
    def test_a_bit_may_be_flipped_anywhere(self, folder, two):
        whole = two[1].read_bytes()
        for at in range(len(whole)):
            two[1].write_bytes(flipped(whole, at, at % 8))
            assert is_whole(folder.read_last(), 1), at

    @pytest.mark.usefixtures("no_log")
    def test_it_may_be_cut_anywhere(self, folder, two):
        whole = two[1].read_bytes()
        for length in range(len(whole)):
            two[1].write_bytes(whole[:length])
            assert is_whole(folder.read_last(), 1), length

    @pytest.mark.usefixtures("no_log")
    @pytest.mark.parametrize("bit", [0, 1, 5])
    def test_without_a_digest_a_flipped_bit_is_noticed_or_means_nothing(self, folder, two, bit):
        whole = as_it_was_written_before_there_were_digests(4)
        for at in range(len(whole)):
            two[1].write_bytes(flipped(whole, at, bit))
            found = folder.read_last()
            assert is_whole(found, 1) or is_whole(found, 4), at

    def test_without_a_digest_an_array_that_damage_hides_is_missed(self, folder, two):
        """Its archive's directory lists ten arrays in 512 bytes: one bit makes a comment of them."""
        arrays = {str(at): np.zeros(1) for at in range(14)}
        whole = as_it_was_written_before_there_were_digests(4, arrays)
        entry = whole.index(b"1.npyPK\x01\x02") - 46
        assert whole[entry : entry + 4] == b"PK\x01\x02"
        two[1].write_bytes(flipped(whole, entry + 33, 1))
        assert is_whole(folder.read_last(), 1)

    @pytest.mark.usefixtures("no_log")
    def test_without_a_digest_it_may_be_cut_anywhere(self, folder, two):
        whole = as_it_was_written_before_there_were_digests(4)
        for length in range(len(whole)):
            two[1].write_bytes(whole[:length])
            assert is_whole(folder.read_last(), 1), length

    @pytest.mark.parametrize("damage", ["folder", "unreadable", "gone", "other archive"])
    def test_there_may_be_something_else_in_its_place(self, folder, two, damage):
        replace(two[1], damage)
        assert is_whole(folder.read_last(), 1)

    def test_the_file_and_the_reason_are_said(self, folder, two, caplog):
        two[1].write_bytes(b"")
        folder.read_last()
        said = [(line.event, line.fields["file"], line.levelno) for line in caplog.records]
        assert said == [
            ("checkpoint cannot be used: the one before it is tried", two[1], logging.WARNING),
            ("an older checkpoint is taken", two[0], logging.WARNING),
        ]
        assert "No data left in file" in str(caplog.records[0].fields["reason"])

    def test_when_all_are_damaged_that_is_an_error_and_no_start_from_zero(self, folder, two):
        whole = two[1].read_bytes()
        two[0].write_bytes(whole[:-1])
        two[1].write_bytes(flipped(whole, len(whole) // 2, 0))
        said = (
            r"new: expected a whole checkpoint, got 2 damaged \(00000002.npz: its bytes do not have the digest that "
            r"they were written with; 00000001.npz: its digest is missing\)\. Put one back from a copy, or move"
        )
        with pytest.raises(DataError, match=said):
            folder.read_last()

    def test_a_folder_that_cannot_be_listed_is_an_error_and_no_start_from_zero(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(NotADirectoryError):
            CheckpointFolder(tmp_path / "file", keep=3).read_last()

    def test_damaged_ones_do_not_count_among_those_that_are_kept(self, tmp_path):
        folder = CheckpointFolder(tmp_path, keep=2)
        paths = [folder.write(ARRAYS, record(number)) for number in (1, 2)]
        replace(paths[1], "folder")
        assert is_whole(folder.read_last(), 1)
        paths.append(folder.write(ARRAYS, record(3)))
        assert sorted(tmp_path.iterdir()) == paths

    def test_what_cannot_be_removed_stops_no_training(self, tmp_path, caplog):
        folder = CheckpointFolder(tmp_path, keep=1)
        first = folder.write(ARRAYS, record(1))
        replace(first, "folder")
        second = folder.write(ARRAYS, record(2))
        assert is_whole(folder.read_last(), 2)
        assert sorted(tmp_path.iterdir()) == [first, second]
        assert [line.event for line in caplog.records] == ["an old checkpoint cannot be removed"]


def flipped(data, at, bit):
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def replace(path, by):
    path.unlink()
    if by == "folder":
        path.mkdir()
    elif by == "unreadable":  # for root as well
        path.symlink_to(Path(f"/proc/{os.getpid()}/mem"))
    elif by == "gone":
        path.symlink_to(path.with_name("nothing"))
    else:
        np.savez(path, weights=np.arange(3))


class TestChain:
    """Several processes may take themselves for the one that writes."""

    def chained(self, path):
        folder = CheckpointFolder(path, keep=3, chained=True)
        folder.read_last()
        return folder

    def test_each_follows_the_one_that_was_read_or_written_last(self, tmp_path):
        first = self.chained(tmp_path)
        for number in range(4):
            first.write(ARRAYS, record(number))
        second = self.chained(tmp_path)
        second.write(ARRAYS, record(9))
        assert is_whole(second.read_last(), 9)

    def test_one_that_was_overtaken_commits_nothing(self, tmp_path):
        first = self.chained(tmp_path)
        first.write(ARRAYS, record(1))
        second = self.chained(tmp_path)
        second.write(ARRAYS, record(2))
        for _ in range(2):
            with pytest.raises(WorldChangedError, match=r"got number 2 from another trainer.*restore that one"):
                first.write(ARRAYS, record(3))
        assert is_whole(first.read_last(), 2)
        first.write(ARRAYS, record(4))
        assert is_whole(second.read_last(), 4)

    def test_of_two_at_the_same_moment_one_commits(self, tmp_path, monkeypatch):
        first, second = self.chained(tmp_path), self.chained(tmp_path)
        written = os.fsync

        def let_the_other_be_faster(descriptor):
            monkeypatch.setattr(os, "fsync", written)
            written(descriptor)
            second.write(ARRAYS, record(2))

        monkeypatch.setattr(os, "fsync", let_the_other_be_faster)
        with pytest.raises(WorldChangedError):
            first.write(ARRAYS, record(1))
        assert is_whole(first.read_last(), 2)
        assert [path.name for path in tmp_path.iterdir()] == ["00000001.npz"]

    @pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
    def test_a_file_system_without_hard_links_will_do(self, tmp_path, monkeypatch, number):
        def refuse(*_paths):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "link", refuse)
        self.test_one_that_was_overtaken_commits_nothing(tmp_path / "one by one")
        (tmp_path / "at once").mkdir()
        self.test_of_two_at_the_same_moment_one_commits(tmp_path / "at once", monkeypatch)

    def test_a_disk_that_fails_is_an_error(self, tmp_path, monkeypatch):
        def fail(*_paths):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "link", fail)
        with pytest.raises(OSError, match="Input/output error"):
            self.chained(tmp_path).write(ARRAYS, record(1))
        assert not list(tmp_path.iterdir())

    def test_a_damaged_one_was_read_as_well(self, tmp_path):
        first = self.chained(tmp_path)
        for number in range(2):
            path = first.write(ARRAYS, record(number))
        path.write_bytes(b"")
        second = self.chained(tmp_path)
        assert second.write(ARRAYS, record(5)).name == "00000003.npz"

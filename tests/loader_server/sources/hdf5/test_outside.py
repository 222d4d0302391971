"""Values that an HDF5 file takes from other files: by which ways they may come, and that none of them is followed."""

from __future__ import annotations

import dataclasses
import os
import shutil

import h5py
import numpy as np
import pytest

from loader_server.sources.hdf5 import outside
from loader_server.sources.hdf5.outside import link_outside
from shared.errors import DataError, ReadError
from tests.loader_server.sources.hdf5.data import ragged, write_ragged, write_returnn
from tests.support.sources import decoded, index_source, open_source, raw_of, spec_of


def index(folder, **how):
    spec = spec_of("hdf5", folder, paths=["a.h5"], **how)
    return index_source(spec), spec


@pytest.fixture
def linked(tmp_path):
    """Two files; a function that puts an external link in place of a dataset."""
    write_ragged(tmp_path / "a.h5", ragged(2, 3, 4))
    write_ragged(tmp_path / "b.h5", ragged(2, 3, 4))

    def link(name, target="b.h5", path=None):
        with h5py.File(tmp_path / "a.h5", "r+") as file:
            del file[name]
            file[name] = h5py.ExternalLink(target, path or name)

    return link


@pytest.mark.parametrize("name", ["audio_values", "audio_offsets", "label", "text"])
def test_an_external_link_is_refused_by_name(tmp_path, linked, name):
    linked(name)
    message = rf'a\.h5: expected values of "{name}" in the file itself, .* got an external link to b\.h5:{name}\. Copy '
    with pytest.raises(DataError, match=message):
        index(tmp_path)


def test_an_external_link_that_is_left_out_by_keys_harms_nobody(tmp_path, linked):
    linked("label")
    report, _ = index(tmp_path, keys=["audio"])
    assert report.samples == 3
    for name in ("audio_values", "audio_offsets"):
        linked(name)
        with pytest.raises(DataError, match="got an external link"):
            index(tmp_path, keys=["audio"])


def test_an_external_link_is_never_followed(tmp_path, linked):
    os.mkfifo(tmp_path / "pipe")  # whoever opens it waits for ever
    linked("label", target="pipe")
    with pytest.raises(DataError, match="got an external link to pipe:label"):
        index(tmp_path)


def test_a_soft_link_within_the_file_is_followed_and_one_that_leads_out_is_refused(tmp_path, linked):
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file.create_group("other")["label"] = file["label"][:]
        del file["label"]
        file["label"] = h5py.SoftLink("other/label")
        file["same"] = h5py.SoftLink("/other")
    report, spec = index(tmp_path)
    assert decoded(open_source(spec), 1)["label"] == 1
    assert report.samples == 3
    linked("other/label", path="/label")
    with h5py.File(tmp_path / "a.h5") as file:
        for path in ("label", "/label", "other/label", "same/label", "./same/label"):
            assert link_outside(file, path) == "b.h5:/label"
        assert not link_outside(file, "text")
        assert not link_outside(file, "text/deeper")
        assert not link_outside(file, "nowhere/label")
    with pytest.raises(DataError, match=r"got an external link to b\.h5:/label"):
        index(tmp_path)


def test_soft_links_in_a_circle_lead_nowhere(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = h5py.SoftLink("/y")
        file["y"] = h5py.SoftLink("/x")
        assert not link_outside(file, "x")


def test_a_group_in_another_file_is_refused(tmp_path, linked):
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["train"] = h5py.ExternalLink("b.h5", "/")
    with pytest.raises(DataError, match=r'values of "train" in the file itself, .* an external link to b\.h5:/'):
        index(tmp_path, group="train")


@pytest.mark.parametrize("name", ["inputs", "targets", "targets/data", "targets/data/align", "seqLengths", "seqTags"])
def test_no_part_of_returnns_layout_may_lie_in_another_file(tmp_path, name):
    write_returnn(tmp_path / "a.h5")
    write_returnn(tmp_path / "b.h5")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        del file[name]
        file[name] = h5py.ExternalLink("b.h5", name)
    with pytest.raises(DataError, match=rf"got an external link to b\.h5:{name}"):
        index(tmp_path)


@pytest.mark.parametrize("name", ["audio_values", "audio_offsets", "label"])
def test_raw_external_storage_is_refused_by_name(tmp_path, name):
    write_ragged(tmp_path / "a.h5", ragged(2, 3, 4))
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        shape, dtype = file[name].shape, file[name].dtype
        (tmp_path / "raw.bin").write_bytes(file[name][:].tobytes())
        del file[name]
        file.create_dataset(name, shape, dtype, external=[(str(tmp_path / "raw.bin"), 0, h5py.h5f.UNLIMITED)])
    with pytest.raises(DataError, match=rf'"{name}" in the file itself, .* raw external storage in .*/raw\.bin'):
        index(tmp_path)


def test_files_of_the_machine_do_not_get_into_batches(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("audio", (4, 8), "uint8", external=[("/etc/passwd", 0, 32)])
    with pytest.raises(DataError, match="raw external storage in /etc/passwd"):
        index(tmp_path)


ROWS = 6


def write_part(path, value, **how):
    with h5py.File(path, "w") as file:
        file.create_dataset("audio", data=np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4) + 100 * value, **how)


def write_parts(folder, parts=2, **how):
    (folder / "parts").mkdir()
    for number in range(parts):
        write_part(folder / f"parts/{number}.h5", number, **how)


def source_of(number, name="audio", shape=(ROWS, 4)):
    return h5py.VirtualSource(f"parts/{number}.h5", name, shape, np.float32)


def write_virtual(folder, layout, key="audio"):
    with h5py.File(folder / "a.h5", "a") as file:
        file.create_virtual_dataset(key, layout)


def concatenated(parts=2, sources=source_of):
    layout = h5py.VirtualLayout((parts * ROWS, 4), np.float32)
    for number in range(parts):
        layout[number * ROWS : (number + 1) * ROWS] = sources(number)
    return layout


def indexed(folder, *paths, **how):
    spec = spec_of("hdf5", folder, paths=list(paths or ("a.h5",)), **how)
    return spec, index_source(spec)


@pytest.fixture
def folder(tmp_path):
    """A file of two parts."""
    write_parts(tmp_path)
    write_virtual(tmp_path, concatenated())
    return tmp_path


def library_reads(folder, key="audio"):
    with h5py.File(folder / "a.h5") as file:
        return file[key][:]


def all_of(source, key="audio"):
    return np.stack([decoded(source, sample)[key] for sample in range(source.samples)])


@pytest.mark.parametrize("how", [{}, {"chunks": (2, 4), "compression": "gzip"}])
def test_rows_of_parts_are_those_that_the_library_reads(tmp_path, how, monkeypatch):
    monkeypatch.setattr(outside, "_MOST_OPEN", 2)
    write_parts(tmp_path, parts=5, **how)
    write_virtual(tmp_path, concatenated(5))
    spec, report = indexed(tmp_path)
    assert report.samples == 5 * ROWS
    source = open_source(spec)
    assert all_of(source).tolist() == library_reads(tmp_path).tolist()
    assert [one["path"] for one in source.indexed.origin] == ["a.h5", *(f"parts/{number}.h5" for number in range(5))]
    assert raw_of(source, 29) == raw_of(open_source(spec), 29)


def test_whole_parts_may_be_rows_and_others_slices_of_rows(tmp_path):
    write_parts(tmp_path, parts=3)
    stacked = h5py.VirtualLayout((3, ROWS, 4), np.float32)
    sliced = h5py.VirtualLayout((3, 4), np.float32)
    for number in range(3):
        stacked[number] = source_of(number)
        sliced[2 - number] = source_of(number)[number + 1]
    write_virtual(tmp_path, stacked, "stacked")
    slices = h5py.VirtualLayout((3, 4), np.float32)
    slices[0:2] = source_of(2)[3:5]
    slices[2:3] = source_of(0)[0:1]
    write_virtual(tmp_path, slices, "slices")
    spec, _ = indexed(tmp_path)
    source = open_source(spec)
    for key in ("stacked", "slices"):
        assert all_of(source, key).tolist() == library_reads(tmp_path, key).tolist()
    source.close()
    write_virtual(tmp_path, sliced, "sliced")
    spec, _ = indexed(tmp_path, keys=["sliced"])
    assert all_of(open_source(spec), "sliced").tolist() == library_reads(tmp_path, "sliced").tolist()


def test_values_of_ragged_samples_may_be_virtual_and_offsets_may_not(tmp_path):
    (tmp_path / "parts").mkdir()
    layout = h5py.VirtualLayout((10,), np.float32)
    for number in range(2):
        with h5py.File(tmp_path / f"parts/{number}.h5", "w") as file:
            file["audio"] = np.arange(5, dtype=np.float32) + 10 * number
        layout[5 * number : 5 * number + 5] = source_of(number, shape=(5,))
    write_virtual(tmp_path, layout, "audio_values")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["audio_offsets"] = np.array([0, 3, 8, 10])
    spec, _ = indexed(tmp_path)
    source = open_source(spec)
    assert [decoded(source, one)["audio"].tolist() for one in range(3)] == [[0, 1, 2], [3, 4, 10, 11, 12], [13, 14]]
    source.close()
    offsets = h5py.VirtualLayout((4,), np.int64)
    offsets[:] = h5py.VirtualSource("parts/0.h5", "offsets", (4,), np.int64)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file["audio_offsets"]
    write_virtual(tmp_path, offsets, "audio_offsets")
    with pytest.raises(
        DataError, match=r'"audio_offsets" in the file itself, .* a virtual dataset with parts in parts/0'
    ):
        indexed(tmp_path)


def test_texts_may_be_virtual(tmp_path):
    (tmp_path / "parts").mkdir()
    texts = np.array(["eins", "zwölf", "drei"], object)
    with h5py.File(tmp_path / "parts/0.h5", "w") as file:
        file.create_dataset("text", data=texts, dtype=h5py.string_dtype())
    layout = h5py.VirtualLayout((3,), h5py.string_dtype())
    layout[:] = h5py.VirtualSource("parts/0.h5", "text", (3,), h5py.string_dtype())
    write_virtual(tmp_path, layout, "text")
    spec, report = indexed(tmp_path)
    source = open_source(spec)
    assert report.samples == 3
    assert [decoded(source, one)["text"] for one in range(3)] == texts.tolist()
    assert source.lengths["text"].tolist() == [4, 5, 4]


def test_a_part_in_the_same_file_is_no_other_file(tmp_path):
    write_part(tmp_path / "a.h5", 3)
    layout = h5py.VirtualLayout((ROWS, 4), np.float32)
    layout[:] = h5py.VirtualSource(".", "audio", (ROWS, 4), np.float32)
    write_virtual(tmp_path, layout, "same")
    spec, _ = indexed(tmp_path)
    source = open_source(spec)
    assert all_of(source, "same").tolist() == all_of(source).tolist()
    assert len(source.indexed.origin) == 1


# --- parts that change ---


def overwrite(path, content):
    times = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def rewritten(path):
    """Other values in a file of equal size, whose time is put back."""
    other = path.with_suffix(".new")
    write_part(other, 7)
    overwrite(path, other.read_bytes())
    other.unlink()


def gone(path):
    path.unlink()


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("change", [rewritten, gone, cut])
def test_a_part_that_changes_is_refused_while_it_is_read_and_when_it_is_opened(folder, change):
    spec, _ = indexed(folder)
    source, part = open_source(spec), folder / "parts/1.h5"
    before = [raw_of(source, sample) for sample in (0, ROWS)]
    content, times = part.read_bytes(), part.stat()
    change(part)
    with pytest.raises(ReadError, match=r"parts/1\.h5: expected the file that was indexed, got "):
        raw_of(source, ROWS)
    with pytest.raises(DataError, match=r"parts/1\.h5.*: expected .* got (another one|No such file)"):
        open_source(spec)
    part.write_bytes(content)
    os.utime(part, ns=(times.st_atime_ns, times.st_mtime_ns))
    for again in (source, open_source(spec)):
        assert [raw_of(again, sample) for sample in (0, ROWS)] == before


def test_a_part_that_goes_while_it_is_read_is_an_error_and_not_zeros(folder, monkeypatch):
    spec, _ = indexed(folder)
    source = open_source(spec)
    read = outside.VirtualRows.read

    def read_without(self, begin, end):
        self._close_parts()
        (folder / "parts/1.h5").unlink()
        return read(self, begin, end)

    monkeypatch.setattr(outside.VirtualRows, "read", read_without)
    with pytest.raises(ReadError, match=r'a\.h5: expected the values of "audio" from row 6 on, got .*No such file'):
        raw_of(source, ROWS)


def test_a_part_that_is_written_over_while_it_is_read_is_refused(folder, monkeypatch):
    spec, _ = indexed(folder)
    source, read = open_source(spec), outside.VirtualRows.read

    def read_and_write(*how):
        found = read(*how)
        rewritten(folder / "parts/1.h5")
        return found

    monkeypatch.setattr(outside.VirtualRows, "read", read_and_write)
    with pytest.raises(ReadError, match=r"parts/1\.h5: expected the file that was indexed, got another one of"):
        raw_of(source, ROWS)


def test_a_part_that_is_gone_before_it_is_read_is_told_as_such(folder):
    spec, _ = indexed(folder)
    source = open_source(spec)
    raw_of(source, ROWS)
    for virtual in source._files[0]._virtual.values():
        virtual._close_parts()
    (folder / "parts/1.h5").unlink()
    with pytest.raises(ReadError, match=r"parts/1\.h5: expected the file that was indexed, got No such file"):
        raw_of(source, ROWS)


def test_a_part_that_the_index_does_not_know_is_refused(folder):
    spec, _ = indexed(folder)
    known = open_source(spec).indexed
    source = spec.make()
    source.open(dataclasses.replace(known, origin=known.origin[:-1]))
    with pytest.raises(ReadError, match=r"a\.h5: expected a file with the parts .*, got a part parts/1\.h5 as well"):
        raw_of(source, 0)


def test_indexing_again_sees_a_part_that_changed_and_samples_get_other_identities(folder):
    spec, report = indexed(folder)
    source = open_source(spec)
    before, stamp = source.identity(0), source.stamp()
    rewritten(folder / "parts/1.h5")
    again = open_source(indexed(folder)[0])
    assert again.stamp() != stamp
    assert again.identity(0) != before
    assert index_source(spec).fingerprint == report.fingerprint


def test_a_copy_of_all_is_the_same(folder, tmp_path_factory):
    spec, report = indexed(folder)
    copy = tmp_path_factory.mktemp("copy") / "of"
    shutil.copytree(folder, copy)
    _, again = indexed(copy)
    assert again.fingerprint == report.fingerprint
    assert open_source(spec_of("hdf5", copy, paths=["a.h5"])).identity(7) == open_source(spec).identity(7)


# --- what may be no part ---


def refused(folder, layout, message, *paths):
    write_virtual(folder, layout)
    with pytest.raises(DataError, match=message):
        indexed(folder, *paths)


def test_a_part_that_is_missing_is_an_error(tmp_path):
    write_parts(tmp_path)
    (tmp_path / "parts/1.h5").unlink()
    refused(tmp_path, concatenated(), r"parts/1\.h5: expected a file that can be read, got No such file")


@pytest.mark.parametrize("how", ["absolute", "relative", "by a link", "by a linked folder"])
def test_a_part_outside_the_streams_folders_is_refused(tmp_path, how):
    (tmp_path / "secret").mkdir()
    write_part(tmp_path / "secret/0.h5", 0)
    inside = tmp_path / "data"
    inside.mkdir()
    name = {"absolute": f"{tmp_path}/secret/0.h5", "relative": "../secret/0.h5"}.get(how, "linked/0.h5")
    if how == "by a link":
        (inside / "linked").mkdir()
        (inside / "linked/0.h5").symlink_to(tmp_path / "secret/0.h5")
    if how == "by a linked folder":
        (inside / "linked").symlink_to(tmp_path / "secret")
    layout = concatenated(1, lambda _: h5py.VirtualSource(name, "audio", (ROWS, 4), np.float32))
    refused(
        inside, layout, r'the virtual dataset "audio": expected parts below the paths of the stream, got .*secret/0'
    )
    shutil.copy2(inside / "a.h5", tmp_path / "a.h5")
    if how == "absolute":
        assert indexed(tmp_path)[1].samples == ROWS


def test_a_part_that_is_a_file_of_the_stream_would_count_twice(folder):
    with pytest.raises(DataError, match=r"not among the stream's own files, got parts/0\.h5, whose rows would count t"):
        indexed(folder, "a.h5", "parts")


def write_rows(path, rows, dtype=np.float32, name="audio"):
    with h5py.File(path, "w") as file:
        file[name] = np.zeros((rows, 4), dtype)


def write_outside(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("audio", (ROWS, 4), np.float32, external=[("/etc/passwd", 0, ROWS * 16)])


def write_nested(path):
    path.unlink()
    layout = h5py.VirtualLayout((ROWS, 4), np.float32)
    layout[:] = h5py.VirtualSource("0.h5", "audio", (ROWS, 4), np.float32)
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("audio", layout)


def write_linked(path):
    with h5py.File(path, "w") as file:
        file["audio"] = h5py.ExternalLink("0.h5", "audio")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(b"text" * 99), r"parts/1\.h5 \(a part of .*a\.h5\): expected a whole HDF5 file"),
        (cut, r'parts/1\.h5 .*: expected a whole HDF5 file with a dataset "audio", got '),
        (lambda path: write_rows(path, ROWS - 1), "expected parts that are whole rows, which are there, got another"),
        (lambda path: write_rows(path, ROWS, np.float64), r'expected "audio" of float32, got float64'),
        (lambda path: write_rows(path, ROWS, name="other"), 'with a dataset "audio", got '),
        (write_outside, r"\(a part of .*raw external storage in /etc/passwd"),
        (write_nested, r"\(a part of .*got a virtual dataset with parts in 0\.h5"),
        (write_linked, r"\(a part of .*got an external link to 0\.h5:audio"),
    ],
)
def test_a_part_without_the_rows_or_with_values_elsewhere_is_refused(tmp_path, change, message):
    write_parts(tmp_path)
    (tmp_path / "parts/1.h5").unlink()
    change_empty = tmp_path / "parts/1.h5"
    write_part(change_empty, 1)
    change(change_empty)
    refused(tmp_path, concatenated(2, lambda n: source_of(n)[:ROWS]), message)


def with_gap():
    layout = h5py.VirtualLayout((2 * ROWS, 4), np.float32)
    layout[:ROWS] = source_of(0)
    return layout


def overlapping():
    layout = h5py.VirtualLayout((ROWS + 2, 4), np.float32)
    layout[:ROWS] = source_of(0)
    layout[2:] = source_of(1)
    return layout


def interleaved():
    layout = h5py.VirtualLayout((2 * ROWS, 4), np.float32)
    layout[0::2], layout[1::2] = source_of(0), source_of(1)
    return layout


def columns():
    layout = h5py.VirtualLayout((ROWS, 8), np.float32)
    layout[:, :4], layout[:, 4:] = source_of(0), source_of(1)
    return layout


def growing():
    layout = h5py.VirtualLayout((ROWS, 4), np.float32, maxshape=(None, 4))
    layout[:ROWS] = source_of(0)
    return layout


def patterned():
    return concatenated(2, lambda _: h5py.VirtualSource("parts/%%.h5", "audio", (ROWS, 4), np.float32))


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (with_gap, "expected parts that cover 12 rows, each once, got 0 to 6"),
        (overlapping, "expected parts that cover 8 rows, each once, got 0 to 6, 2 to 8"),
        (interleaved, r"expected parts that are whole rows, which are there, got another selection of parts/0\.h5"),
        (columns, r"expected parts that are whole rows"),
        (growing, "expected a number of rows that is fixed, got a virtual dataset that grows with its parts"),
        (patterned, r"expected parts that are named one by one, got a pattern of names, parts/%"),
    ],
)
def test_parts_that_are_no_whole_rows_or_leave_some_out_are_refused(tmp_path, layout, message):
    write_parts(tmp_path)
    refused(tmp_path, layout(), message)


def test_a_prefix_for_parts_in_the_environment_changes_nothing(folder, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "parts").mkdir()
    for number in range(2):
        write_part(elsewhere / f"parts/{number}.h5", 9)
    expected = library_reads(folder)
    monkeypatch.setenv("HDF5_VDS_PREFIX", str(elsewhere))
    spec, _ = indexed(folder)
    assert all_of(open_source(spec)).tolist() == expected.tolist()

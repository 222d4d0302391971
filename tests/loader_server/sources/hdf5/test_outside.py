"""Values that an HDF5 file takes from other files: by which ways they may come, and that none of them is followed."""

from __future__ import annotations

import os

import h5py
import pytest

from loader_server.sources.hdf5.outside import link_outside
from shared.errors import DataError
from tests.loader_server.sources.hdf5.data import ragged, write_ragged, write_returnn
from tests.support.sources import decoded, index_source, open_source, spec_of


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

"""Features and custom fields of cuts that Lhotse wrote, read without it, and all that can be wrong with them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from importlib.util import find_spec

import h5py
import numpy as np
import pytest

from loader_server.conformance.case import SourceCase, content_of
from loader_server.conformance.checks import check_source
from shared.errors import DataError, ReadError, SampleError, SettingsError
from tests.loader_server.sources.cuts.lhotse_data import GOLDEN, KEPT
from tests.support.forked_pools import forked_pools
from tests.support.sources import decoded, index_source, open_source, spec_of
from tests.support.stores import plain_server

FIELDS = {"alignment": "array", "embedding": "array", "snr": "float32", "clean": "int32", "domain": "text"}


@pytest.fixture(params=[name for name in KEPT if find_spec("lilcom") or not name.startswith("lilcom")])
def stored(request, tmp_path):
    shutil.copytree(GOLDEN / request.param, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(GOLDEN / "numpy_files", tmp_path, dirs_exist_ok=True)
    return tmp_path


def cuts_of(folder):
    return [json.loads(line) for line in (folder / "cuts.jsonl").read_text().splitlines()]


def indexed(folder, *cuts, **how):
    """The report and the source of features, of these cuts or those that are there."""
    if cuts:
        (folder / "cuts.jsonl").write_text("".join(f"{json.dumps(cut)}\n" for cut in cuts))
    spec = spec_of("lhotse", folder, **{"paths": ["cuts.jsonl"], "values": "features", **how})
    return index_source(spec), open_source(spec)


def bad(folder, *cuts, **how):
    """The bad rows behind a good one."""
    report, source = indexed(folder, cuts_of(folder)[0], *cuts, **how)
    assert source.samples == 1
    return [(row.reason, row.detail) for row in report.bad]


def test_they_are_what_lhotse_loads(stored):
    expected = np.load(stored / "expected.npz")
    report, source = indexed(stored, custom=FIELDS)
    assert (report.samples, report.bad) == (4, ())
    for n in range(4):
        sample = decoded(source, n)
        for key in ("features", "alignment", "embedding"):
            np.testing.assert_array_equal(sample[key], expected[f"c{n} {key}"], strict=True)
            assert source.lengths[key][n] == len(sample[key])
        assert sample["snr"].dtype == np.float32
        assert (sample["snr"], sample["clean"]) == (n % 2 / 4, n % 2 == 0)
        assert sample["domain"] == source.columns["domain"][n] == ("phone", "radio")[n % 2]
    assert source.lengths["features"].tolist() == [100, 114, 51, 51]
    assert "domain" not in source.lengths, "a filter compares the text itself"


def test_they_pass_the_checks(stored):
    def change():
        path = stored / "arrays/a1./a1.npy"
        np.save(path, np.load(path) + 1)

    spec = spec_of("lhotse", stored, paths=["cuts.jsonl"], values="features", custom=FIELDS)
    with forked_pools():
        results = check_source(SourceCase(spec=spec, change=change, bad={}), stored)
    assert [result for result in results if result.passed is False] == []


def test_they_may_be_remote(stored, tmp_path_factory):
    here = tmp_path_factory.mktemp("here")
    shutil.copy(stored / "cuts.jsonl", here)
    _, near = indexed(stored, custom=FIELDS)
    with plain_server(stored, ranges=True) as target:
        report, far = indexed(here, custom=FIELDS, root=f"http://{target}")
        assert report.bad == ()
        assert far.files.are_remote
        far.expect(np.arange(4))
        assert [content_of(decoded(far, n)) for n in range(4)] == [content_of(decoded(near, n)) for n in range(4)]
        assert far.indexed_files().file_at(0)[0] == ""
        far.close()


def test_each_supervision_has_its_part_of_them(folder):
    expected = np.load(folder / "expected.npz")
    cut = cuts_of(folder)[0]
    cut["supervisions"][1]["custom"] = {"domain": "its own"}
    _, source = indexed(folder, cut, sample="supervision", custom=FIELDS)
    assert [source.name(n) for n in range(2)] == ["s0-0", "s0-1"]
    whole = expected["c0 features"]
    assert decoded(source, 0)["features"].tolist() == whole[:40].tolist()
    assert decoded(source, 1)["features"].tolist() == whole[45:].tolist()
    assert decoded(source, 1)["alignment"].tolist() == expected["c0 alignment"][11:25].tolist()  # 11.25 steps
    assert [decoded(source, n)["domain"] for n in range(2)] == ["phone", "its own"]


def test_a_cut_with_one_frame_fewer_gets_its_last_one_twice(folder):
    expected = np.load(folder / "expected.npz")["c0 features"]
    cut = cuts_of(folder)[0]
    _, source = indexed(folder, cut | {"duration": 1.01})
    assert decoded(source, 0)["features"].tolist() == [*expected.tolist(), expected[-1].tolist()]


def test_parts_that_features_do_not_have_are_bad_rows(folder):
    cut = cuts_of(folder)[0]
    found = bad(folder, cut | {"duration": 1.05}, cut | {"start": 2.0, "duration": 0.5}, cut | {"start": -0.5})
    assert [reason for reason, _ in found] == ["outside_features", "empty_array", "outside_features"]
    assert found[0][1] == "expected a part within features from 0 s on, 100 frames, got 1.05 s from 0 s on"


def test_what_cannot_be_read_says_what_to_do(folder):
    cut = cuts_of(folder)[0]
    features = cut["features"]

    def with_features(**changes):
        return cut | {"features": features | changes}

    found = bad(
        folder,
        with_features(storage_type="kaldiio"),
        with_features(storage_type="chunked_lilcom_hdf5"),
        with_features(storage_type="my_own"),
        with_features(storage_key="gone.npy"),
        with_features(num_frames=99),
        {key: value for key, value in cut.items() if key != "features"},
        with_features(frame_shift=0),
        with_features(num_frames="many"),
        with_features(storage_type="numpy_hdf5", storage_path="cuts.jsonl"),
        cut | {"type": "MixedCut"},
    )
    assert [reason for reason, _ in found] == [
        *("storage_type", "storage_type", "storage_type", "missing_file", "other_array", "no_features"),
        *("malformed", "malformed", "undecodable", "cut_type"),
    ]
    known = "numpy_files, numpy_hdf5, lilcom_files, lilcom_url, lilcom_chunky, lilcom_hdf5"
    copy = "copy them by cuts.copy_feats(NumpyFilesWriter(…))"
    assert found[0][1] == f"""expected one of {known}, got "kaldiio": read Kaldi's archives by source = "kaldi\""""
    assert found[2][1].startswith(f'expected one of {known}, got "my_own": {copy}')
    assert found[4][1].startswith("expected an array of shape [99, 5], as the manifest says, got [100, 5]: ./feats/")
    assert found[5][1] == "expected a cut that has features, got one without"


def test_features_in_a_file_that_was_cut_short_are_a_bad_row(folder):
    first, second = cuts_of(folder)[:2]
    path = folder / second["features"]["storage_path"] / second["features"]["storage_key"]
    path.write_bytes(path.read_bytes()[:-9])
    ((reason, detail),) = bad(folder, second)
    assert reason == "undecodable"
    assert "bytes in place of" in detail
    path.write_bytes(b"")
    assert [reason for reason, _ in bad(folder, second)] == ["undecodable"]
    del first


@pytest.mark.parametrize("kind", ["numpy_hdf5", "lilcom_chunky"])
def test_an_archive_that_was_cut_short_is_a_bad_row(tmp_path, kind):
    if kind.startswith("lilcom"):
        pytest.importorskip("lilcom", reason="pip install -e '.[lilcom]'")
    shutil.copytree(GOLDEN / kind, tmp_path, dirs_exist_ok=True)
    (path,) = tmp_path.glob("feats.*")
    path.write_bytes(path.read_bytes()[:-200])
    if kind == "lilcom_chunky":
        ((reason, detail),) = bad(tmp_path, cuts_of(tmp_path)[1])
        assert reason == "truncated"
        assert detail.startswith("expected 5")
    else:
        with pytest.raises(DataError, match="a cut among the first 64 that has all that"):
            indexed(tmp_path)


def test_fields_that_do_not_fit_are_bad_rows(folder):
    cut = cuts_of(folder)[0]

    def with_field(**changes):
        return cut | {"custom": cut["custom"] | changes}

    found = bad(
        folder,
        with_field(snr="loud"),
        with_field(snr=None),
        with_field(snr=[1]),
        with_field(clean=2**40),
        with_field(alignment=3),
        with_field(alignment=cut["custom"]["alignment"] | {"temporal_dim": 1}),
        with_field(alignment=cut["custom"]["embedding"]),
        with_field(domain="\ud800"),
        {**cut, "custom": None},
        custom=FIELDS,
    )
    assert [reason for reason, _ in found] == [
        *("wrong_type", "no_custom_field", "wrong_type", "wrong_type", "wrong_type", "other_axis", "other_array"),
        *("malformed", "no_custom_field"),
    ]
    assert found[0][1] == 'expected float32 in the custom field "snr", got "loud"'
    assert found[1][1] == 'expected a custom field "snr", got a cut without'
    assert found[6][1] == "expected int64 [any], as the first alignment, got float32 [any]"


def test_a_manifest_that_changes_its_type_in_mid_file_tells_so(folder):
    cuts = cuts_of(folder)
    cuts[1]["features"]["num_features"] = 4
    np.save(folder / "feats" / cuts[1]["features"]["storage_key"], np.zeros((114, 4), np.float32))
    report, source = indexed(folder, *cuts[:2])
    assert [(row.reason, row.detail) for row in report.bad] == [
        ("other_array", "expected float32 [any, 5], as the first features, got float32 [any, 4]")
    ]
    assert source.samples == 1


def test_an_array_that_is_too_large_once_unpacked_is_a_bad_row(folder):
    spec = spec_of("lhotse", folder, paths=["cuts.jsonl"], values="features")
    report = index_source(replace(spec, of_job=replace(spec.of_job, largest_sample=2100)))
    assert (report.samples, report.bad_counts) == (2, {"over_largest_sample": 2})


def test_names_that_samples_have_otherwise_are_refused(folder):
    with pytest.raises(SettingsError, match='expected fields with names of their own, got "text", which samples have'):
        indexed(folder, custom={"text": "text"})


def test_too_many_fields_are_refused(folder):
    with pytest.raises(SettingsError, match="expected at most 64 custom fields, got 65"):
        indexed(folder, custom={f"field{n}": "text" for n in range(65)})
    with pytest.raises(DataError, match='got expected a custom field "field0"'):
        indexed(folder, custom={f"field{n}": "text" for n in range(64)})


def test_without_any_cut_that_has_them_the_source_is_refused(folder):
    cut = cuts_of(folder)[0]
    del cut["features"]
    with pytest.raises(DataError, match="64 that has all that `values` and `custom` ask for, got expected a cut that"):
        indexed(folder, cut)


def test_files_that_changed_since_are_refused(folder):
    _, source = indexed(folder, custom={"alignment": "array"})
    path = folder / "arrays/a0./a0.npy"
    before = path.read_bytes()
    path.write_bytes(before[:-8] + bytes(8))
    with pytest.raises(ReadError, match="expected the archive that was indexed"):
        decoded(source, 0)
    with pytest.raises(ReadError, match="same size with other bytes"):
        source.look_for_changes(5.0)
    path.write_bytes(before)
    decoded(source, 0)
    path.unlink()
    with pytest.raises(DataError, match="got No such file"):
        decoded(source, 0)


def test_bytes_that_hold_another_array_are_a_bad_sample(folder):
    _, source = indexed(folder)
    raw = (folder / cuts_of(folder)[0]["features"]["storage_path"]).joinpath(
        cuts_of(folder)[1]["features"]["storage_key"]
    )
    for other in (raw.read_bytes(), b"nonsense"):
        with pytest.raises(SampleError):
            source.decode(0, other)


def test_files_named_are_part_of_the_stamp(folder):
    spec = spec_of("lhotse", folder, paths=["cuts.jsonl"], values="features", custom=FIELDS)
    before = spec.make().stamp()
    (folder / "arrays/a1./a1.npy").touch()
    assert spec.make().stamp() != before


def test_values_in_pieces_of_hdf5_are_a_bad_row(tmp_path):
    shutil.copytree(GOLDEN / "numpy_hdf5", tmp_path, dirs_exist_ok=True)
    cut = cuts_of(tmp_path)[0]
    with h5py.File(tmp_path / "feats.h5", "r+") as file:
        file.create_dataset("chunked", data=np.zeros((100, 5), np.float32), chunks=(10, 5))
        file.create_group("group")
    others = [cut | {"features": cut["features"] | {"storage_key": key}} for key in ("chunked", "group", "gone")]
    found = bad(tmp_path, *others)
    assert [reason for reason, _ in found] == ["other_array", "other_array", "undecodable"]
    assert found[0][1] == "expected values in one piece, got chunks or others: ./feats.h5"


@pytest.mark.skipif(find_spec("lilcom") is not None, reason="lilcom is installed")
def test_without_lilcom_the_sentence_says_what_to_install(tmp_path):
    shutil.copytree(GOLDEN / "lilcom_chunky", tmp_path, dirs_exist_ok=True)
    with pytest.raises(SettingsError, match=r"expected lilcom, which decompresses features of Lhotse.*\[lilcom\]"):
        indexed(tmp_path)

"""What Lhotse wrote is what it loads, value by value: features, custom fields, mixtures, Shar folders."""

from __future__ import annotations

import json
import re
import shutil
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import soundfile

import trainer_client
from loader_server.commands.index import index_streams
from loader_server.conformance.case import SourceCase, content_of
from loader_server.conformance.checks import check_source
from loader_server.job_file import JobFile
from loader_server.sources.cuts import made_places
from loader_server.sources.cuts.plain_cuts import MIXED, WHOLE_CUT, cut_sample
from loader_server.sources.cuts.recipes import planned_frames, recipe_of
from loader_server.stream import Stream
from shared.errors import ReadError, SampleError
from tests.loader_server.sources.cuts import lhotse_data
from tests.loader_server.sources.cuts.lhotse_data import WRITERS, in_folder
from tests.support.forked_pools import forked_pools
from tests.support.loaders import ROOT, running
from tests.support.sources import decoded, index_source, open_source, spec_of
from tests.support.stores import plain_server

lhotse = import_module("lhotse") if find_spec("lhotse") else None
pytestmark = [
    pytest.mark.skipif(lhotse is None, reason="pip install -e '.[lhotse]'"),
    pytest.mark.filterwarnings("ignore"),  # Lhotse and PyTorch use what numpy deprecates
]

FIELDS = {"alignment": "array", "embedding": "array", "snr": "float32", "clean": "int32", "domain": "text"}
MADE = {"paths": ["made.jsonl"], "use_lhotse": True}


@pytest.fixture(autouse=True)
def as_workers_have_it():
    """One thread: how many share a sum changes its last bits. And libsndfile, whatever else is installed."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with lhotse.audio.backend.audio_backend("LibsndfileBackend"):
        yield
    torch.set_num_threads(before)
    lhotse.features.io.close_cached_file_handles()  # it keeps them by their relative paths


def indexed(folder, **how):
    spec = spec_of("lhotse", folder, **{"paths": ["cuts.jsonl.gz"], **how})
    return index_source(spec), open_source(spec)


def samples_of(source):
    return {source.name(n): decoded(source, n) for n in range(source.samples)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    with in_folder(folder):
        cuts = lhotse_data.made_cuts()
        cuts.to_file("made.jsonl")
    return folder


def loaded(folder, cuts, load):
    """What Lhotse loads of each cut, by its id."""
    with in_folder(folder):
        return {cut.id: load(cut) for cut in cuts}


@pytest.mark.parametrize("storage_type", [name for name in WRITERS if not name.startswith("chunked")])
def test_features_and_custom_fields_are_what_lhotse_loads(tmp_path, storage_type):
    with in_folder(tmp_path):
        lhotse_data.with_fields(lhotse_data.plain_cuts(), storage_type).to_file("cuts.jsonl.gz")
        cuts = list(lhotse.CutSet.from_file("cuts.jsonl.gz"))
    report, source = indexed(tmp_path, values="features", custom=FIELDS)
    assert (report.samples, report.bad) == (6, ())
    assert {field.key: (field.dtype, field.shape) for field in source.fields} == {
        "features": ("float32", (None, 5)),
        "alignment": ("int64", (None,)),
        "embedding": ("float32", (None,)),
        "clean": ("int32", ()),
        "snr": ("float32", ()),
    }
    for n, cut in enumerate(cuts):
        with in_folder(tmp_path):
            features, alignment = cut.load_features(), cut.load_alignment()
            embedding = cut.load_embedding()
        sample = decoded(source, n)
        np.testing.assert_array_equal(sample["features"], features, strict=True)
        np.testing.assert_array_equal(sample["alignment"], alignment, strict=True)
        np.testing.assert_array_equal(sample["embedding"], embedding, strict=True)
        assert (sample["snr"], sample["clean"], sample["domain"]) == (cut.snr, cut.clean, cut.domain)
        assert source.lengths["features"][n] == cut.num_frames == len(features)
    assert list(source.columns["domain"]) == [cut.domain for cut in cuts]


def test_a_part_of_long_features_is_read_in_chunks(tmp_path):
    with in_folder(tmp_path):
        (cut,) = lhotse_data.with_fields(lhotse_data.plain_cuts(1, seconds=23.0), "lilcom_chunky").subset(first=1)
        parts = [(0.0, 23.0), (4.99, 0.02), (5.0, 5.0), (4.7, 10.6), (9.99, 13.0), (22.99, 0.01), (0.0, 5.0)]
        cuts = [cut.truncate(offset=at, duration=long).with_id(f"p{n}") for n, (at, long) in enumerate(parts)]
        lhotse.CutSet.from_cuts(cuts).to_file("cuts.jsonl.gz")
    _, source = indexed(tmp_path, values="features")
    expected = loaded(tmp_path, cuts, lambda cut: cut.load_features())
    assert source.samples == len(parts)
    for name, sample in samples_of(source).items():
        np.testing.assert_array_equal(sample["features"], expected[name], strict=True)
    assert source.indexed.numbers["nbytes_0"][1] < source.indexed.numbers["nbytes_0"][0] / 2


def test_made_cuts_are_what_lhotse_makes(made):
    report, source = indexed(made, **MADE)
    cuts = list(lhotse.CutSet.from_file(made / "made.jsonl"))
    assert report.bad == ()
    assert source.samples == len(cuts)
    expected = loaded(made, cuts, lambda cut: cut.load_audio()[0])
    planned = source.lengths["audio"]
    for n, cut in enumerate(cuts):
        sample = decoded(source, n)
        np.testing.assert_array_equal(sample["audio"], expected[cut.id], err_msg=cut.id, strict=True)
        assert planned[n] == cut.num_samples == len(sample["audio"]), cut.id
        assert sample["audio_rate"] == source.lengths["audio_rate"][n] == cut.sampling_rate
        assert sample["text"] == " ".join(s.text for s in sorted(cut.supervisions, key=lambda s: s.start))


def test_lhotse_draws_a_room_anew_though_it_has_seeds(made):
    """That is why such cuts are refused: once this fails, they need not be."""
    try:
        import_module("torchaudio.functional")  # which draws the room
    except (ImportError, OSError) as error:
        pytest.skip(f"torchaudio cannot be imported: {error}")
    with in_folder(made):
        cut = lhotse.Recording.from_file("r0.wav").to_cut()
        seeded = [cut.reverb_rir(room_rng_seed=3, source_rng_seed=4) for _ in range(2)]
        first, second = (cut.load_audio() for cut in seeded)
    assert not np.array_equal(first, second)
    lhotse.CutSet.from_cuts([cut, seeded[0]]).to_file(made / "rooms.jsonl")
    report, _ = indexed(made, **{**MADE, "paths": ["rooms.jsonl"]})
    assert report.bad_counts == {"drawn": 1}


def test_supervisions_of_made_cuts_are_what_lhotse_truncates(made):
    report, source = indexed(made, **MADE, sample="supervision")
    cuts = list(lhotse.CutSet.from_file(made / "made.jsonl"))
    assert report.bad == ()
    n = 0
    for cut in cuts:
        for supervision in cut.supervisions:
            begin, end = max(0, supervision.start), min(cut.duration, supervision.end)  # what of it is in the cut
            part = cut.truncate(offset=begin, duration=end - begin)
            with in_folder(made):
                expected = part.load_audio()[0]
            sample = decoded(source, n)
            np.testing.assert_array_equal(sample["audio"], expected, err_msg=f"{cut.id} {supervision.id}", strict=True)
            assert (source.name(n), sample["text"]) == (supervision.id, supervision.text)
            n += 1
    assert n == source.samples


@pytest.mark.parametrize(("audio", "features"), [("flac", "lilcom"), ("wav", "numpy")])
def test_shar_folders_are_what_lhotse_loads(tmp_path, audio, features):
    with in_folder(tmp_path):
        cuts = lhotse_data.with_fields(lhotse_data.plain_cuts(), "numpy_files")
        for number, cut in enumerate(cuts):
            cut.custom = {**cut.custom, "topic": f"topic {number}"}
        stored = {"recording": audio, "features": features, "alignment": "numpy", "embedding": "lilcom"}
        stored["topic"] = "jsonl"
        lhotse_data.write_shar(cuts, "shar", **stored)
        cuts = list(lhotse.CutSet.from_shar(in_dir="shar"))
    _, source = indexed(tmp_path, paths=["shar"], use_lhotse=True, custom={**FIELDS, "topic": "text"})
    other = spec_of("lhotse", tmp_path, paths=["shar"], values="features")
    index_source(other, tmp_path / "other")
    stored = open_source(other, tmp_path / "other")
    assert source.samples == stored.samples == len(cuts) == 6
    for n, cut in enumerate(cuts):
        sample = decoded(source, n)
        np.testing.assert_array_equal(sample["audio"], cut.load_audio()[0], strict=True)
        np.testing.assert_array_equal(sample["alignment"], cut.load_alignment(), strict=True)
        np.testing.assert_array_equal(sample["embedding"], cut.load_embedding(), strict=True)
        np.testing.assert_array_equal(decoded(stored, n)["features"], cut.load_features(), strict=True)
        assert (source.name(n), sample["domain"], sample["topic"]) == (cut.id, cut.domain, f"topic {n}")
    assert source.place(4) == (str(tmp_path / "shar/cuts.000001.jsonl.gz"), 2)


def test_features_of_mixtures_are_what_lhotse_makes(tmp_path):
    with in_folder(tmp_path):
        first, second, *_ = lhotse_data.with_fields(lhotse_data.plain_cuts(), "lilcom_chunky", numbers=False)
        first, second = (cut.drop_recording() for cut in (first, second))
        made = [first.pad(duration=1.5), first.append(second), first.mix(second, snr=6, offset_other_by=0.2), second]
        cuts = [cut.with_id(str(n)) for n, cut in enumerate(made)]
        lhotse.CutSet.from_cuts(cuts).to_file("cuts.jsonl.gz")
        cuts = list(lhotse.CutSet.from_file("cuts.jsonl.gz"))
    report, source = indexed(tmp_path, values="features", use_lhotse=True)
    assert (report.bad, source.samples) == ((), 4)
    expected = loaded(tmp_path, cuts, lambda cut: cut.load_features().astype(np.float32))
    for name, sample in samples_of(source).items():
        np.testing.assert_array_equal(sample["features"], expected[name], strict=True)
    report, source = indexed(tmp_path, values="features", use_lhotse=True, sample="supervision")
    parts = [(cut, segment) for cut in cuts for segment in cut.supervisions]
    assert (report.bad, source.samples) == ((), len(parts))
    for n, (cut, segment) in enumerate(parts):
        begin, end = max(0, segment.start), min(cut.duration, segment.end)
        part = cut.truncate(offset=begin, duration=end - begin)
        with in_folder(tmp_path):
            expected = part.load_features().astype(np.float32)
        np.testing.assert_array_equal(decoded(source, n)["features"], expected, err_msg=f"{cut.id} {n}", strict=True)


def test_recordings_too_large_to_be_read_whole_are_sought_in(made, monkeypatch):
    monkeypatch.setattr(made_places, "_MOST_READ_BYTES", 100)
    _, source = indexed(made, **MADE)
    cuts = list(lhotse.CutSet.from_file(made / "made.jsonl"))
    assert all(len(raw) < 200 for raw in source.read(range(source.samples)))
    expected = loaded(made, cuts, lambda cut: cut.load_audio()[0])
    for n, cut in enumerate(cuts):
        np.testing.assert_array_equal(decoded(source, n)["audio"], expected[cut.id], strict=True)
    before = (made / "r0.wav").read_bytes()
    (made / "r0.wav").write_bytes(before[:-2] + b"xx")
    try:
        with pytest.raises(ReadError, match="same size with other bytes"):
            decoded(source, 0)
    finally:
        (made / "r0.wav").write_bytes(before)


def test_what_lhotse_cannot_load_is_a_bad_sample(made):
    _, source = indexed(made, **MADE)
    raw = next(iter(source.read([0])))
    with pytest.raises(SampleError, match="expected a cut that Lhotse can load, got"):
        source.decode(0, raw[:-9000])
    with pytest.raises(SampleError, match="expected a cut that Lhotse can load, got"):
        source.decode(0, raw[:8] + bytes(len(raw) - 8))


def test_a_channel_may_be_chosen_of_what_lhotse_makes(tmp_path):
    with in_folder(tmp_path):
        soundfile.write("two.wav", np.random.default_rng(0).uniform(-0.3, 0.3, (8000, 2)), 8000)
        cut = lhotse.Recording.from_file("two.wav").to_cut()
        cuts = [cut.perturb_volume(0.5).with_id("a"), cut.pad(duration=1.5).with_id("b")]
        lhotse.CutSet.from_cuts(cuts).to_file("made.jsonl")
    expected = loaded(tmp_path, cuts, lambda cut: cut.load_audio())
    for channel, make in ((-1, lambda audio: audio.mean(axis=0, dtype=np.float32)), (1, lambda audio: audio[1])):
        _, source = indexed(tmp_path, **MADE, channel=channel)
        for name, sample in samples_of(source).items():
            np.testing.assert_array_equal(sample["audio"], make(expected[name]), strict=True)


def test_the_environment_changes_nothing(made, monkeypatch):
    monkeypatch.setenv("LHOTSE_AUDIO_BACKEND", "AudioreadBackend")
    monkeypatch.setenv("LHOTSE_RESAMPLING_BACKEND", "sox")
    before = lhotse.audio.resampling_backend.CURRENT_RESAMPLING_BACKEND
    monkeypatch.setattr(lhotse.audio.resampling_backend, "CURRENT_RESAMPLING_BACKEND", None)
    _, source = indexed(made, **MADE)
    found = {name: content_of(sample) for name, sample in samples_of(source).items()}
    monkeypatch.undo()
    assert before == lhotse.audio.resampling_backend.CURRENT_RESAMPLING_BACKEND
    assert {name: content_of(sample) for name, sample in samples_of(source).items()} == found


def test_files_may_be_remote(made, tmp_path):
    with in_folder(tmp_path):
        lhotse_data.with_fields(lhotse_data.plain_cuts(), "lilcom_files").to_file("cuts.jsonl.gz")
    with plain_server(made, ranges=True) as target, plain_server(tmp_path, ranges=True) as other:
        for folder, url, how in (
            (made, target, MADE),
            (tmp_path, other, {"paths": ["cuts.jsonl.gz"], "values": "features", "custom": FIELDS}),
        ):
            (folder / "here").mkdir()
            local = spec_of("lhotse", folder, **how)
            index_source(local, folder / "here/local")
            shutil.copy(folder / how["paths"][0], folder / "here")
            far = spec_of("lhotse", folder / "here", **how, root=f"http://{url}")
            index_source(far)
            source, near = open_source(far), open_source(local, folder / "here/local")
            assert source.files.are_remote
            source.expect(np.arange(source.samples))
            for n in range(near.samples):
                assert content_of(decoded(source, n)) == content_of(decoded(near, n))
            source.close()


def conforms(folder, change, **how):
    case = SourceCase(spec=spec_of("lhotse", folder, **how), change=change)
    with forked_pools():
        return [result for result in check_source(case, folder) if result.passed is False]


def test_made_cuts_pass_the_checks(made):
    with in_folder(made):
        lhotse_data.plain_cuts()

    def change():
        with (made / "r1.flac").open("ab") as file:
            file.write(b"more")

    assert conforms(made, change, **MADE) == []
    with in_folder(made):
        lhotse_data.plain_cuts()


@pytest.mark.parametrize("how", [{"values": "features", "custom": FIELDS}, {"custom": FIELDS}])
def test_features_and_fields_pass_the_checks(tmp_path, how):
    with in_folder(tmp_path):
        lhotse_data.with_fields(lhotse_data.plain_cuts(), "lilcom_chunky").to_file("cuts.jsonl.gz")

    def change():
        (path,) = tmp_path.glob("arrays/*/a1.npy")
        np.save(path, np.load(path) + 1)

    assert conforms(tmp_path, change, paths=["cuts.jsonl.gz"], **how) == []


def test_shar_folders_pass_the_checks(tmp_path):
    with in_folder(tmp_path):
        lhotse_data.write_shar(lhotse_data.plain_cuts(), "shar", recording="flac")

    def change():
        path = tmp_path / "shar/recording.000001.tar"
        path.write_bytes(path.read_bytes()[:-1] + b"x")

    assert conforms(tmp_path, change, paths=["shar"], use_lhotse=True) == []


def test_planned_lengths_of_any_part_are_those_that_lhotse_gives(made):
    """Of random mixtures, of which random parts are supervised: nothing is loaded."""
    with in_folder(made):
        mixtures = lhotse_data.random_mixtures()
    tried = 0
    for cut in mixtures:
        line, (whole, parts) = json.dumps(cut.to_dict()).encode(), lhotse_data.lengths_of(cut)
        for place, expected in ((WHOLE_CUT, whole), *enumerate(parts)):
            if expected:
                part = cut_sample(line, place, types=MIXED)
                assert planned_frames(part, recipe_of(part, "audio"), "audio") == expected, cut
                tried += place >= 0
    assert tried > 50


def test_the_example_of_the_page(tmp_path):
    with in_folder(tmp_path):
        cuts = [cut for cut in lhotse_data.made_cuts() if cut.sampling_rate == 8000]
        lhotse.CutSet.from_cuts(cuts).to_file("made.jsonl")
        lhotse_data.write_shar(lhotse_data.plain_cuts(), "shar", recording="flac")
    page = (ROOT / "docs/sources.md").read_text()
    (text,) = (text for text in re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.M) if "use_lhotse" in text)
    (tmp_path / "job.toml").write_text(f'[job]\nname = "x"\n{text}')
    job = JobFile(tmp_path / "job.toml")
    assert index_streams(job, ["train"])["train"].bad_counts == {}
    stream = Stream(job, "train")
    assert [field.per_second for field in stream.chain.fields] == [8000.0]
    with in_folder(tmp_path):
        expected = [cut.load_audio()[0] for cut in (*cuts, *lhotse.CutSet.from_shar(in_dir="shar"))]
    assert stream.samples == len(expected)
    for n, audio in enumerate(expected):
        np.testing.assert_array_equal(decoded(stream.source, n)["audio"], audio, strict=True)


JOB = """
[job]
name = "made"
seed = 3
listen = "tcp://127.0.0.1:*"
[streams.train]
source = "lhotse"
paths = ["made.jsonl"]
use_lhotse = true
filter = "audio_rate < 9000"
length = "audio"
budget = "40000 frames"
"""


def test_two_workers_and_a_resumed_run_give_the_same_bytes(made, tmp_path):
    for path in made.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    (tmp_path / "job.toml").write_text(JOB)
    cuts = {cut.id: cut for cut in lhotse.CutSet.from_file(tmp_path / "made.jsonl")}
    expected = loaded(tmp_path, cuts.values(), lambda cut: cut.load_audio()[0])
    with running(tmp_path / "job.toml", workers=2) as loaders:
        digests, seen = [], {}
        with trainer_client.connect(loaders.endpoint) as feed:
            for batch in feed:
                digests.append(batch.digest)
                for row in np.flatnonzero(batch["weight"]):
                    audio = batch["audio"][row, : batch["audio_length"][row]]
                    seen[feed.tag(int(batch["tag"][row]))] = audio.copy()
        with trainer_client.connect(loaders.endpoint) as feed:
            batches = iter(feed)
            first = [next(batches).digest for _ in range(2)]
            feed.trained(2)
            state = feed.state()
    assert seen.keys() == {name for name, cut in cuts.items() if cut.sampling_rate == 8000}
    for name, audio in seen.items():
        np.testing.assert_array_equal(audio, expected[name])
    with running(tmp_path / "job.toml", workers=1) as loaders, trainer_client.connect(loaders.endpoint) as feed:
        feed.restore(state)
        rest = [batch.digest for batch in feed]
    assert first + rest == digests
    assert len(digests) > 3

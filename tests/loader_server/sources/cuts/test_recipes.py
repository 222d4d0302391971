"""Recipes of what Lhotse makes: lengths are those that it gives, and what would not repeat is refused by name."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.sources.cuts import made_cuts
from loader_server.sources.cuts.custom_fields import array_manifest
from loader_server.sources.cuts.plain_cuts import MIXED, WHOLE_CUT, UnusableCut, cut_sample, samples_in
from loader_server.sources.cuts.recipes import files_named, holders_in, planned_frames, recipe_of, width_of
from loader_server.sources.manifest.cell_forms import CellForm
from loader_server.stream import Stream
from shared.errors import SettingsError
from tests.loader_server.sources.cuts.lhotse_data import GOLDEN, write_recordings_of_made_cuts
from tests.support.sources import index_source, open_source, spec_of

LENGTHS = json.loads((GOLDEN / "made_lengths.json").read_text())
LINES = {json.loads(line)["id"]: line for line in (GOLDEN / "made.jsonl").read_bytes().splitlines()}


def changed(name, change):
    cut = json.loads(LINES[name])
    change(cut)
    return json.dumps(cut).encode()


def refused(line):
    with pytest.raises(UnusableCut) as error:
        recipe_of(cut_sample(line, WHOLE_CUT, types=MIXED), "audio")
    return error.value.args


@pytest.mark.parametrize("name", LINES)
def test_lengths_are_those_that_lhotse_gives(name):
    whole, parts = LENGTHS[name]
    line = LINES[name]
    assert samples_in(line, MIXED) == len(parts)
    for number, frames in ((WHOLE_CUT, whole), *enumerate(parts)):
        part = cut_sample(line, number, types=MIXED)
        assert planned_frames(part, recipe_of(part, "audio"), "audio") == frames


def test_lengths_of_random_mixtures_are_those_that_lhotse_gives():
    with gzip.open(GOLDEN / "mixtures.jsonl.gz", "rb") as file:
        kept = list(map(json.loads, file))
    for cut, whole, parts in kept:
        for number, frames in ((WHOLE_CUT, whole), *enumerate(parts)):
            part = cut_sample(json.dumps(cut).encode(), number, types=MIXED)
            if frames:
                assert planned_frames(part, recipe_of(part, "audio"), "audio") == frames
    assert len(kept) == 60


def test_a_part_without_samples_is_refused():
    def change(cut):
        cut["supervisions"][0] |= {"start": 5.0}

    part = cut_sample(changed("plain", change), 0, types=MIXED)
    with pytest.raises(UnusableCut, match="expected an end after the beginning, got -"):
        planned_frames(part, recipe_of(part, "audio"), "audio")


def test_a_part_stands_in_its_recipe():
    assert recipe_of(cut_sample(LINES["plain"], 1, types=MIXED), "audio")["within"] == [0.45, pytest.approx(0.96125)]
    assert "within" not in recipe_of(cut_sample(LINES["plain"], WHOLE_CUT, types=MIXED), "audio")


def test_only_the_files_of_the_channels_are_read():
    def change(cut):
        source = cut["recording"]["sources"][0]
        cut["recording"]["sources"] = [source, source | {"channels": [1], "source": "other.wav"}]
        cut["channel"] = 1

    (holder,) = holders_in(recipe_of(cut_sample(changed("plain", change), WHOLE_CUT, types=MIXED), "audio"))
    assert [source["source"] for source in holder["sources"]] == ["other.wav"]
    assert refused(changed("plain", lambda cut: cut.update(channel=[0, 3]))) == (
        "wrong_channel",
        "expected a channel that the recording has, got [0, 3]",
    )


def test_frames_of_features_are_those_that_lhotse_gives():
    (cut,) = [json.loads(line) for line in (GOLDEN / "numpy_files/cuts.jsonl").read_text().splitlines()][1:2]
    padding = {
        "id": "p",
        "duration": 0.3,
        "sampling_rate": 8000,
        "num_frames": 30,
        "num_features": 5,
        "frame_shift": 0.01,
    }
    tracks = [{"cut": cut, "type": "MonoCut", "offset": 0.0}, {"cut": padding, "type": "PaddingCut", "offset": 1.13}]
    for line, frames in ((cut, [114, 40, 69]), ({"id": "m", "type": "MixedCut", "tracks": tracks}, [143, 40, 69])):
        for number, expected in zip((WHOLE_CUT, 0, 1), frames, strict=True):
            part = cut_sample(json.dumps(line).encode(), number, types=MIXED)
            recipe = recipe_of(part, "features")
            assert planned_frames(part, recipe, "features") == expected
            assert width_of(recipe) == 5


def test_a_recipe_has_no_labels_and_names_its_data_in_order():
    recipe = recipe_of(cut_sample(LINES["all of it"], WHOLE_CUT, types=MIXED), "audio")
    assert "text" not in json.dumps(recipe)
    sources = [source["source"] for holder in holders_in(recipe) for source in holder["sources"]]
    assert sources == ["r0.wav", "r3.flac", "r2.wav"]
    assert files_named(LINES["in a room"]) == ["r0.wav", "rir.wav"]
    assert files_named(b"nonsense") == files_named(b"[1]") == []


def test_a_command_is_refused_wherever_it_stands():
    command = {"type": "command", "channels": [0], "source": "touch ran"}

    def in_track(cut):
        cut["tracks"][1]["cut"]["recording"]["sources"] = [command]

    def in_room(cut):
        cut["recording"]["transforms"][0]["kwargs"]["rir"]["sources"] = [command]

    for line in (changed("mixed", in_track), changed("in a room", in_room)):
        reason, detail = refused(line)
        assert reason == "not_a_file"
        assert detail.startswith('expected a file, got a source of type "command": bring its audio to files first')


@pytest.mark.parametrize("seeds", [{}, {"room_seed": 1, "source_seed": 2}, None])
def test_a_room_that_is_drawn_at_each_loading_is_refused_whatever_its_seeds(seeds):
    def change(cut):
        generator = None if seeds is None else {"sr": 8000, **seeds}
        cut["recording"]["transforms"][0]["kwargs"] |= {"rir": None, "rir_generator": generator}

    assert refused(changed("in a room", change)) == (
        "drawn",
        "expected the same audio at each loading, got ReverbWithImpulseResponse of a room that is drawn: give "
        "reverb_rir() the recording of an impulse response",
    )


def test_a_transform_that_nobody_knows_is_refused_by_name():
    def change(cut):
        cut["recording"]["transforms"][0]["name"] = "DrawnAnew"

    reason, detail = refused(changed("slow", change))
    assert (reason, "got DrawnAnew: save its audio" in detail) == ("transformed", True)


def test_a_mixture_has_the_custom_fields_of_its_first_track_that_has_them(folder):
    def change(cut):
        for place, custom in enumerate(({"snr": 2.5}, {"snr": 7, "domain": "phone"})):
            cut["tracks"][place]["cut"]["custom"] = custom

    line = changed("appended", change)
    _, source = indexed(folder, line, custom={"snr": "float32", "domain": "text"})
    assert (source.columns["snr"][0], source.columns["domain"][0]) == ("2.5", "phone")
    report, _ = indexed(folder, line, LINES["appended"], custom={"snr": "float32"})
    assert report.bad_counts == {"no_custom_field": 1}


def test_arrays_of_a_mixture_say_what_to_do(folder):
    part = cut_sample(LINES["mixed"], WHOLE_CUT, types=MIXED)
    with pytest.raises(UnusableCut) as error:
        array_manifest(part, CellForm(key="alignment", kind="array"))
    remedy = 'leave "alignment" out of `custom`, or make whole cuts of the mixtures'
    assert error.value.args[1].endswith(f"got a MixedCut: {remedy}")


def test_a_mixture_without_recordings_or_of_another_shape_is_refused():
    def no_recordings(cut):
        for track in cut["tracks"]:
            track["cut"].pop("recording", None)

    assert refused(changed("mixed", no_recordings))[0] == "no_audio"
    for change in (
        lambda cut: cut.update(tracks=[]),
        lambda cut: cut["tracks"].append(3),
        lambda cut: cut.pop("tracks"),
    ):
        assert refused(changed("mixed", change))[0] == "malformed"
    part = cut_sample(LINES["mixed"], WHOLE_CUT, types=MIXED)
    with pytest.raises(UnusableCut, match="expected a cut that has features, got one without"):
        recipe_of(part, "features")


@pytest.fixture
def folder(tmp_path):
    write_recordings_of_made_cuts(tmp_path)
    shutil.copy(GOLDEN / "made.jsonl", tmp_path)
    return tmp_path


def indexed(folder, *lines, **how):
    if lines:
        (folder / "made.jsonl").write_bytes(b"\n".join(lines))
    spec = spec_of("lhotse", folder, **{"paths": ["made.jsonl"], "use_lhotse": True, **how})
    return index_source(spec), open_source(spec)


def test_an_index_needs_no_lhotse(folder):
    report, source = indexed(folder)
    assert report.bad == ()
    assert [source.name(n) for n in range(source.samples)] == list(LENGTHS)
    assert source.lengths["audio"].tolist() == [whole for whole, _ in LENGTHS.values()]
    assert source.indexed_files().file_at(0) == (str(folder / "r0.wav"), 16044)


def test_recordings_that_do_not_fit_are_bad_rows(folder):
    soundfile.write(folder / "r2.wav", np.zeros(5000), 8000, subtype="PCM_16")
    soundfile.write(folder / "rir.wav", np.zeros(800), 16000, subtype="PCM_16")
    (folder / "r3.flac").unlink()
    (folder / "r0.wav").write_bytes(b"no audio")
    report, _ = indexed(folder, LINES["fast"], *(LINES[name] for name in ("slow", "appended", "plain", "in a room")))
    assert [(row.line, row.reason) for row in report.bad] == [
        *((2, "undecodable"), (3, "undecodable"), (4, "missing_file"), (5, "undecodable"))
    ]
    soundfile.write(folder / "r0.wav", np.zeros(8000), 8000, subtype="PCM_16")
    report, _ = indexed(folder, LINES["fast"], LINES["in a room"], LINES["appended"])
    assert [(row.reason, row.detail) for row in report.bad] == [
        ("other_rate", "expected 8000 Hz, as the recording's manifest says, got 16000: rir.wav"),
        ("outside_recording", "expected about 10193 frames, as the recording's manifest says, got 5000: r2.wav"),
    ]


def test_a_change_of_tempo_says_which_torchaudio_it_needs(folder):
    def change(cut):
        cut["recording"]["transforms"][0]["name"] = "Tempo"

    report, _ = indexed(folder, LINES["plain"], changed("fast", change))
    ((reason, detail),) = [(row.reason, row.detail) for row in report.bad]
    assert reason == "no_sox"
    assert detail.startswith("expected torchaudio before 2.9, whose SoX changes the tempo, got ")


def test_what_is_too_large_once_made_is_a_bad_row(folder):
    spec = spec_of("lhotse", folder, paths=["made.jsonl"], use_lhotse=True)
    spec = replace(spec, of_job=replace(spec.of_job, largest_sample=4 * 30000))
    report = index_source(spec)
    assert report.bad_counts == {"over_largest_sample": 1}  # "all of it" has 32 000 frames


def job_of(folder):
    source = 'source = "lhotse"\npaths = ["made.jsonl"]\nuse_lhotse = true\nlength = "audio"\nbudget = "99999 frames"\n'
    (folder / "job.toml").write_text(f'[job]\nname = "x"\n[streams.train]\n{source}')
    return JobFile(folder / "job.toml")


def test_a_machine_without_lhotse_is_told_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "lhotse", None)
    monkeypatch.setattr(made_cuts, "version_or_none", lambda name: None)
    made_cuts._lhotse.cache_clear()
    job = job_of(folder)
    index_streams(job, ["train"])
    stream = Stream(job, "train")
    with pytest.raises(SettingsError, match=r"expected lhotse, which makes cuts that are mixed .*\[lhotse\]"):
        assert stream.builder


def test_pytorch_is_native_code_that_a_processor_level_may_not_reach(folder, monkeypatch):
    monkeypatch.setattr(made_cuts, "version_or_none", {"lhotse": "1.33.0", "torch": "2.9"}.get)
    job = job_of(folder)
    index_streams(job, ["train"])
    stream = Stream(job, "train")
    monkeypatch.setattr(stream, "_level", "x86-64-v3")
    assert stream.source.versions["lhotse"] == "1.33.0"
    assert stream.unproved_code == {"the source of stream train": ["torch"]}

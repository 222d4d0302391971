"""The lhotse source: manifests as Lhotse writes them, samples as it loads them, and all else named."""

from __future__ import annotations

import gzip
import json
import os
import shutil

import numpy as np
import pytest

from shared.errors import DataError
from tests.loader_server.sources.speech.lhotse_golden import GOLDEN, RATE, write_audio
from tests.support.sources import decoded, index_source, open_source, spec_of

FRAMES = json.loads((GOLDEN / "frames.json").read_text())


@pytest.fixture
def audio(tmp_path):
    shutil.copy(GOLDEN / "cuts.jsonl.gz", tmp_path)
    return write_audio(tmp_path)


def indexed(folder, *paths, **how):
    spec = spec_of("lhotse", folder, paths=list(paths) or ["cuts.jsonl.gz"], **how)
    return index_source(spec), open_source(spec)


def golden():
    with gzip.open(GOLDEN / "cuts.jsonl.gz", "rt") as file:
        return {cut["id"]: cut for cut in map(json.loads, file)}


def manifest(folder, *cuts):
    (folder / "my.jsonl").write_text("".join(f"{cut if isinstance(cut, str) else json.dumps(cut)}\n" for cut in cuts))
    report, source = indexed(folder, "my.jsonl")
    return [(bad.line, bad.reason, bad.detail) for bad in report.bad], source


def test_cuts_are_what_lhotse_loads(tmp_path, audio):
    report, source = indexed(tmp_path)
    assert [source.name(n) for n in range(source.samples)] == ["whole", "part", "right", "call"]
    assert source.lengths["audio"].tolist() == [*FRAMES["cuts"].values(), len(audio["call.flac"])]
    samples = [decoded(source, n) for n in range(4)]
    mono, call = audio["mono.wav"][:, 0], audio["call.flac"]
    assert samples[0]["audio"].tolist() == mono.tolist()
    assert samples[1]["audio"].tolist() == mono[2400 : 2400 + 19200].tolist()
    assert samples[2]["audio"].tolist() == call[4800 : 4800 + 12443, 1].tolist()
    assert np.allclose(samples[3]["audio"], call.mean(axis=1), atol=1e-7), "all channels of a MultiCut are averaged"
    assert [sample["text"] for sample in samples] == ["naïve one", "naïve one", "", ""]
    assert [(sample["speaker"], sample["language"]) for sample in samples[1:3]] == [("ann", "en"), ("", "")]
    assert source.lengths["text"].tolist() == [9, 9, 0, 0]
    assert (source.fields[0].per_second, report.rows) == (RATE, 8)


def test_each_supervision_may_be_a_sample(tmp_path, audio):
    report, source = indexed(tmp_path, sample="supervision")
    assert [source.name(n) for n in range(source.samples)] == ["s0", "s1", "s2", "s1", "s0", "s2"]
    whole = dict(zip(("s0", "s1", "s2"), source.lengths["audio"].tolist(), strict=False))
    assert whole == FRAMES["supervisions"]
    assert [decoded(source, n)["text"] for n in range(6)] == ["one", "naïve", "", "naïve", "one", ""]
    mono = audio["mono.wav"][:, 0]
    assert decoded(source, 1)["audio"].tolist() == mono[1600:4800].tolist()
    assert decoded(source, 3)["audio"].tolist() == mono[2400:4800].tolist()  # what of it is in the cut
    assert source.place(3)[1] == 2
    reasons = [(bad.line, bad.reason) for bad in report.bad]
    assert reasons.count((3, "no_supervision")) == 1
    assert report.rows == report.samples + len(reasons)


@pytest.mark.parametrize(
    ("sample", "fingerprint"),
    [("cut", "9901366edfcd926eeaa270a55bf94a8e"), ("supervision", "a3336d6da10ea96e868e9423ed1be504")],
)
def test_indexes_of_plain_cuts_stay_as_they_were_before_there_were_others(tmp_path, audio, sample, fingerprint):
    cuts = [golden()[name] for name in ("whole", "part", "mixed", "fast")]
    (tmp_path / "my.jsonl").write_text("".join(f"{json.dumps(cut)}\n" for cut in cuts))
    report, _ = indexed(tmp_path, "my.jsonl", sample=sample)
    assert report.fingerprint == fingerprint
    assert report.bad_counts == {"cut_type": 1, "transformed": 1 if sample == "cut" else 3}


def test_what_lhotse_would_make_or_fetch_is_a_bad_row_that_says_what_to_do(tmp_path, audio):
    report, _ = indexed(tmp_path)
    assert [(bad.line, bad.reason) for bad in report.bad] == [
        *((4, "cut_type"), (5, "transformed"), (6, "not_a_file"), (8, "wrong_channel")),
    ]
    details = [bad.detail for bad in report.bad]
    assert details[0].startswith(
        "expected a MonoCut or MultiCut, got a MixedCut: a mixture is not made here: write use_lhotse = true"
    )
    assert details[1].startswith(
        "expected a recording as it is on disk, got transforms (Speed): write use_lhotse = true"
    )
    assert details[2].startswith('expected a file, got a source of type "command": bring its audio to files first')
    assert details[3] == "expected a channel that the recording has, got 7"


def test_cuts_that_cannot_be_read_are_bad_rows(tmp_path, audio):
    cut = golden()["right"] | {"channel": 0}
    source = {"type": "command", "channels": [0], "source": f"touch {tmp_path}/ran"}
    recording = cut["recording"]
    cuts = [cut, "nonsense", "[1]", "{}", cut | {"start": 3}, cut | {"duration": 9}, cut | {"start": "x"}]
    cuts += [cut | {"start": float("nan")}, cut | {"duration": -1}, {**cut, "recording": None}]
    cuts += [
        cut | {"recording": recording | {"sources": [source]}},
        cut | {"recording": recording | {"sampling_rate": 8000}},
    ]
    cuts += [cut | {"recording": recording | {"sources": [source | {"type": "file", "source": "gone.wav"}]}}]
    cuts += [cut | {"type": "PaddingCut"}, "", cut | {"supervisions": [{"id": 1}]}]
    bad, good = manifest(tmp_path, *cuts)
    reasons = ["malformed"] * 3 + ["outside_recording"] * 2 + ["malformed"] * 2 + ["empty_stretch", "no_recording"]
    reasons += ["not_a_file", "other_rate", "missing_file", "cut_type"]
    assert [(line, reason) for line, reason, _ in bad] == [*enumerate(reasons, 2), (16, "malformed")]
    assert good.samples == 1
    assert not (tmp_path / "ran").exists()
    assert bad[10][2] == "expected 8000 Hz, as the recording's manifest says, got 16000: call.flac"


def test_some_channels_of_a_file_or_those_of_several_are_not_averaged(tmp_path, audio):
    cut = golden()["call"]
    split = [{"type": "file", "channels": [channel], "source": "mono.wav"} for channel in (0, 1)]
    cuts = [cut, cut | {"channel": [0]}, cut | {"recording": cut["recording"] | {"sources": split}}]
    bad, good = manifest(tmp_path, *cuts)
    said = "expected all channels of one file, which are averaged, got {}: choose one by `channel`, or write cuts"
    for (line, reason, detail), (at, channels) in zip(bad, ((2, [0]), (3, [0, 1])), strict=True):
        assert (line, reason) == (at, "channels")
        assert detail.startswith(said.format(channels))
    assert good.samples == 1


def test_one_of_several_channels_may_be_chosen(tmp_path, audio):
    cut = golden()["call"]
    split = [{"type": "file", "channels": [channel], "source": "mono.wav"} for channel in (0, 1)]
    cuts = [cut, cut | {"recording": cut["recording"] | {"sources": split}}, golden()["whole"], cut | {"channel": [0]}]
    (tmp_path / "my.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in cuts))
    report, source = indexed(tmp_path, "my.jsonl", channel=1)
    mono = audio["mono.wav"][:, 0].tolist()
    expected = [audio["call.flac"][:, 1].tolist(), mono, mono]
    assert [decoded(source, n)["audio"].tolist() for n in range(source.samples)] == expected
    assert [(bad.line, bad.reason) for bad in report.bad] == [(4, "wrong_channel")]
    assert report.bad[0].detail == "expected a cut that has channel 1, got one of [0]"


def test_a_channel_may_have_a_file_of_its_own(tmp_path, audio):
    cut = golden()["right"]
    sources = [{"type": "file", "channels": [channel], "source": "mono.wav"} for channel in (0, 1)]
    bad, source = manifest(tmp_path, cut | {"recording": cut["recording"] | {"sources": sources}})
    assert bad == []
    assert decoded(source, 0)["audio"].tolist() == audio["mono.wav"][4800 : 4800 + 12443, 0].tolist()


def test_text_that_is_not_utf8_is_a_bad_row(tmp_path, audio):
    line = json.dumps(golden()["whole"], ensure_ascii=False).encode()
    (tmp_path / "my.jsonl").write_bytes(line + b"\n" + line.replace("ï".encode(), b"\xef") + b"\n")
    report, _ = indexed(tmp_path, "my.jsonl")
    assert [(bad.line, bad.reason) for bad in report.bad] == [(2, "not_utf8")]


@pytest.mark.parametrize("change", ["cut short", "damaged", "other", "none", "gone"])
def test_a_manifest_that_cannot_be_read_whole_is_refused(tmp_path, audio, change):
    path = tmp_path / "cuts.jsonl.gz"
    raw = path.read_bytes()
    made = {"cut short": raw[:-20], "damaged": raw[:200] + b"xxxx" + raw[204:], "other": b"no gzip at all"}
    expected = "a whole gzip file"
    if change in made:
        path.write_bytes(made[change])
    elif change == "gone":
        path.unlink()
        expected = "a cut manifest that can be read, got No such file"
    with pytest.raises(DataError, match=expected if change != "none" else "at least one manifest, got none"):
        index_source(spec_of("lhotse", tmp_path, paths=[] if change == "none" else ["cuts.jsonl.gz"]))


def test_another_ending_is_refused(tmp_path):
    (tmp_path / "cuts.json").write_text("[]")
    with pytest.raises(DataError, match=r'ends in .jsonl or .jsonl.gz, got "cuts.json"\. Write it with cuts.to_file'):
        index_source(spec_of("lhotse", tmp_path, paths=["cuts.json"]))


@pytest.mark.fault(29)
def test_a_manifest_that_changed_is_refused_and_a_stamp_tells_of_recordings(tmp_path, audio):
    spec = spec_of("lhotse", tmp_path, paths=["my.jsonl"])
    manifest(tmp_path, golden()["whole"])
    before = spec.make().stamp()
    os.utime(tmp_path / "mono.wav", ns=(5, 5))
    assert spec.make().stamp() != before
    manifest_path = tmp_path / "my.jsonl"
    manifest_path.write_text(manifest_path.read_text().replace("one", "two"))
    with pytest.raises(DataError, match="expected the cut manifest that the index was made from"):
        open_source(spec)


def test_lhotse_loads_the_same(tmp_path, audio):
    lhotse = pytest.importorskip("lhotse", reason="it needs torch: what it gave is kept in golden/")
    _, source = indexed(tmp_path)
    cuts = {cut.id: cut for cut in lhotse.CutSet.from_file(tmp_path / "cuts.jsonl.gz")}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        for n in range(3):
            np.testing.assert_array_equal(decoded(source, n)["audio"], cuts[source.name(n)].load_audio()[0])

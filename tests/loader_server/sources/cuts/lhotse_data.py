"""Data sets that Lhotse itself writes: recordings, features of each storage type, arrays, mixtures, Shar folders.

Only those who have Lhotse (`pip install -e '.[lhotse]'`) can call most of these. What they give is kept in golden/ for
the others; `python -m tests.loader_server.sources.cuts.lhotse_data` writes it anew.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import soundfile

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "GOLDEN",
    "KEPT",
    "RATE",
    "WRITERS",
    "in_folder",
    "lengths_of",
    "made_cuts",
    "plain_cuts",
    "random_mixtures",
    "with_fields",
    "write_recordings_of_made_cuts",
    "write_shar",
]

RATE = 8000
GOLDEN = Path(__file__).parent / "golden"
#: Storage types of the features that are kept.
KEPT = ("numpy_files", "numpy_hdf5", "lilcom_chunky")
#: Writers of features by the storage type that manifests have, each with where it writes.
WRITERS = {
    "numpy_files": ("NumpyFilesWriter", "feats"),
    "numpy_hdf5": ("NumpyHdf5Writer", "feats.h5"),
    "lilcom_files": ("LilcomFilesWriter", "feats"),
    "lilcom_chunky": ("LilcomChunkyWriter", "feats"),
    "lilcom_hdf5": ("LilcomHdf5Writer", "feats"),
    "chunked_lilcom_hdf5": ("ChunkedLilcomHdf5Writer", "feats"),
}


@contextlib.contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """Work in a folder, so that manifests have relative paths."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def plain_cuts(count: int = 4, seconds: float = 1.0) -> Any:
    """Cuts of recordings in the working folder, WAV and FLAC in turn, each with two supervisions."""
    import lhotse

    cuts = []
    for number in range(count):
        name = f"r{number}.{('wav', 'flac')[number % 2]}"
        noise = np.random.default_rng(number).uniform(-0.3, 0.3, int(RATE * (seconds + 0.1371 * number)))
        soundfile.write(name, noise, RATE, subtype="PCM_16")
        recording = lhotse.Recording.from_file(name, recording_id=f"r{number}")
        halves = [(0.0, 0.4), (0.45, recording.duration - 0.45)]
        supervisions = [
            lhotse.SupervisionSegment(f"s{number}-{half}", recording.id, *when, text=f"text {number} {half}")
            for half, when in enumerate(halves)
        ]
        cut = lhotse.MonoCut(f"c{number}", 0.0, recording.duration, 0, supervisions=supervisions, recording=recording)
        cuts.append(cut)
    return lhotse.CutSet.from_cuts(cuts)


def with_fields(cuts: Any, storage_type: str, *, numbers: bool = True) -> Any:
    """The cuts with features, arrays and other custom fields, and parts of some of them."""
    import lhotse
    from lhotse.features import io

    kind, path = WRITERS[storage_type]
    extractor = lhotse.Fbank(lhotse.FbankConfig(sampling_rate=RATE, num_filters=5))
    cuts = cuts.compute_and_store_features(extractor, storage_path=path, storage_type=getattr(io, kind))
    made = []
    with io.NumpyFilesWriter("arrays") as arrays:
        for number, cut in enumerate(cuts):
            random = np.random.default_rng(number)
            steps = int(cut.duration / 0.04)
            cut.alignment = arrays.store_array(
                f"a{number}", random.integers(0, 99, steps), frame_shift=0.04, temporal_dim=0, start=0
            )
            cut.embedding = arrays.store_array(f"e{number}", random.normal(size=6).astype(np.float32))
            if numbers:
                cut.snr, cut.domain, cut.clean = number / 4, ("phone", "radio")[number % 2], number % 2 == 0
            made.append(cut)
    made += [cut.truncate(offset=0.2, duration=0.51, preserve_id=True) for cut in made[:2]]
    for number, cut in enumerate(made):
        cut.id = f"c{number}"
    return lhotse.CutSet.from_cuts(made)


def made_cuts() -> Any:
    """Cuts of every kind that only Lhotse can make, of recordings in the working folder."""
    import lhotse
    from lhotse.cut import MixedCut

    first, second, third, fourth = plain_cuts(4)
    soundfile.write("rir.wav", np.exp(-np.arange(800) / 90) * np.random.default_rng(9).normal(size=800) / 4, RATE)
    room = lhotse.Recording.from_file("rir.wav")
    noise = third.truncate(offset=0.1, duration=0.9)
    made = {
        "slow": first.perturb_speed(0.9),
        "fast": second.perturb_speed(1.1),
        "part of fast": second.perturb_speed(1.1).truncate(offset=0.21, duration=0.503),
        "loud": first.perturb_volume(1.7),
        "resampled": second.resample(16000),
        "in a room": first.reverb_rir(room),
        "padded": first.pad(duration=2.003),
        "padded before": first.pad(duration=2.0, direction="left"),
        "appended": first.append(second).append(third),
        "mixed": first.mix(noise, offset_other_by=0.13, snr=10),
        "mixed longer": second.mix(fourth.pad(duration=3.0), snr=-3, offset_other_by=0.4001),
        "all of it": first.perturb_speed(1.1).append(fourth.perturb_volume(0.5)).mix(noise, snr=5).pad(duration=4.0),
        "mixed in a room": first.mix(noise, snr=8).reverb_rir(room, mix_first=True),
        "clipped": first.clip_amplitude(gain_db=6.0),
        "plain": fourth,
    }
    named = [cut.with_id(name) for name, cut in made.items()]
    assert sum(isinstance(cut, MixedCut) for cut in named) == 7
    return lhotse.CutSet.from_cuts(named)


def random_mixtures(count: int = 150) -> list[Any]:
    """Mixtures of recordings in the working folder, of which random parts are supervised, also beyond their ends."""
    import lhotse

    random = np.random.default_rng(5)
    recordings = [lhotse.Recording.from_file(name) for name in ("r0.wav", "r1.flac", "r2.wav")]
    mixtures = []
    for number in range(count):
        cut = None
        for recording in recordings[: random.integers(1, 4)]:
            track = (recording.resample(16000) if number % 5 == 0 else recording).to_cut()
            track = track.perturb_speed(float(random.choice([0.9, 1.0, 1.1])))
            track = track.truncate(offset=random.uniform(0, 0.3), duration=random.uniform(0.2, 0.6))
            if cut is None:
                cut = track
            elif random.random() < 0.5:
                cut = cut.append(track)
            else:
                cut = cut.mix(track, offset_other_by=random.uniform(0, cut.duration), snr=float(random.choice([-5, 5])))
        if random.random() < 0.5:
            cut = cut.pad(duration=random.uniform(0.3, 3), direction=str(random.choice(["left", "right", "both"])))
        for track in getattr(cut, "tracks", ())[1:] if number % 7 == 0 else ():
            track.mute = track.cut.id != "PAD" and random.random() < 0.4 and cut.tracks[0].type != "PaddingCut"
        begin, long = random.uniform(0, cut.duration), random.uniform(0.01, 1)
        first = cut.tracks[-1].cut if hasattr(cut, "tracks") else cut
        if not isinstance(first, lhotse.cut.PaddingCut):
            first.supervisions = [lhotse.SupervisionSegment(f"s{number}", "r", begin, long)]
        mixtures.append(cut.with_id(f"m{number}"))
    return mixtures


def lengths_of(cut: Any) -> tuple[int, list[int]]:
    """How many samples Lhotse gives for a cut, and for the part in it of each of its supervisions; 0 if it has none."""
    parts = [(max(0, s.start), min(cut.duration, s.end)) for s in cut.supervisions]
    return cut.num_samples, [
        cut.truncate(offset=begin, duration=end - begin).num_samples if end - begin > 0.001 else 0
        for begin, end in parts
    ]


def write_recordings_of_made_cuts(folder: Path) -> None:
    """Silence in place of the recordings of golden/made.jsonl, as long as these: an index needs no more of them."""
    for name, frames in (("r0.wav", 8000), ("r1.flac", 9096), ("r2.wav", 10193), ("r3.flac", 11290), ("rir.wav", 800)):
        soundfile.write(folder / name, np.zeros(frames), RATE, subtype="PCM_16")


def write_shar(cuts: Any, folder: str, **fields: str) -> None:
    """Write a Shar folder of shards with three cuts each."""
    from lhotse.shar import SharWriter

    Path(folder).mkdir()
    with SharWriter(folder, fields=fields, shard_size=3, warn_unused_fields=False) as writer:
        for cut in cuts:
            writer.write(cut)


def _main() -> None:
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for storage_type in KEPT:
        folder = GOLDEN / storage_type
        folder.mkdir(parents=True)
        with in_folder(folder):
            cuts = with_fields(plain_cuts(2), storage_type)
            cuts.to_file("cuts.jsonl")
            loads = ("features", "alignment", "embedding")
            values = {f"{cut.id} {what}": getattr(cut, f"load_{what}")() for cut in cuts for what in loads}
            np.savez_compressed("expected.npz", **values)
            for recording in folder.glob("r?.*"):
                recording.unlink()
    with tempfile.TemporaryDirectory() as folder, in_folder(Path(folder)):
        cuts = made_cuts()
        cuts.to_file(GOLDEN / "made.jsonl")
        mixtures = random_mixtures(60)
    lengths = {cut.id: lengths_of(cut) for cut in cuts}
    (GOLDEN / "made_lengths.json").write_text(json.dumps(lengths, indent=1))
    with gzip.open(GOLDEN / "mixtures.jsonl.gz", "wt") as file:
        file.writelines(f"{json.dumps([cut.to_dict(), *lengths_of(cut)])}\n" for cut in mixtures)


if __name__ == "__main__":
    _main()

"""What transforms of audio cost, beside the packages whose conventions they follow.

`python -m tests.benchmarks.features [--json]`: audio seconds a CPU second, one thread, medians of rounds in which all
take turns, 2.6 s of noise at 8 kHz as one utterance. A package that is not installed is named as left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # read when numpy and torch are imported

import numpy as np  # noqa: E402
import soundfile  # noqa: E402

from loader_server.sources.files.file_facts import FilePlaces  # noqa: E402
from loader_server.transforms.chain import Chain  # noqa: E402
from shared.wire.batch_layout import Field  # noqa: E402

RATE, SECONDS, BANDS = 8000, 2.6, 80
RAW = (Field(key="audio", dtype="float32", shape=(None,), per_second=float(RATE)),)
AUDIO = np.random.default_rng(0).normal(0, 0.1, int(SECONDS * RATE)).astype(np.float32)
ROUNDS, CALLS = 15, 20


def ours(folder: Path) -> dict[str, Callable[[int], object]]:
    """Each transform alone, and those of features behind log-mel."""
    for name in ("noise", "room"):
        fade = np.exp(-np.arange(4000) / 600) if name == "room" else 1
        soundfile.write(folder / f"{name}.wav", np.random.default_rng(1).normal(0, 0.1, 4000) * fade, RATE)
        (folder / f"{name}.csv").write_text(f"audio\n{name}.wav\n")
    logmel = {"rate": RATE, "bands": BANDS}
    asked: dict[str, dict[str, Any]] = {
        "logmel": {"logmel": logmel},
        **{f"logmel, {name}": {"logmel": logmel | {"convention": name}} for name in ("kaldi", "librosa", "torchaudio")},
        "mfcc, kaldi": {"mfcc": {"rate": RATE}},
        "waveform, to 16 kHz": {"waveform": {}},
        "waveform, int16": {"waveform": {"rate": RATE, "dtype": "int16"}},
        "speed_perturb, 0.9": {"speed_perturb": {"factors": [0.9]}},
        "noise": {"noise": {"recordings": {"source": "manifest", "paths": ["noise.csv"]}}},
        "reverberation": {"reverberation": {"recordings": {"source": "manifest", "paths": ["room.csv"]}}},
        "logmel, spec_augment": {"logmel": logmel, "spec_augment": {}},
        "logmel, normalise": {"logmel": logmel, "normalise": {}},
    }
    places = FilePlaces(folder)
    return {name: _applied(Chain.make(tuple(tables), tables, name, RAW, places)) for name, tables in asked.items()}


def _applied(chain: Chain) -> Callable[[int], object]:
    def apply(number: int) -> object:
        return chain.apply({"audio": AUDIO, "audio_rate": RATE}, seed=1, epoch=0, number=number)

    return apply


def kaldi_native_fbank() -> Callable[[int], object]:
    import kaldi_native_fbank as knf

    options = knf.FbankOptions()
    options.frame_opts.dither, options.frame_opts.samp_freq, options.mel_opts.num_bins = 0, RATE, BANDS

    def features(number: int) -> object:
        online = knf.OnlineFbank(options)
        online.accept_waveform(RATE, AUDIO)
        online.input_finished()
        return np.stack([online.get_frame(frame) for frame in range(online.num_frames_ready)])

    return features


def librosa_package() -> Callable[[int], object]:
    import librosa

    how = {"sr": RATE, "n_fft": RATE // 40, "hop_length": RATE // 100, "n_mels": BANDS}
    return lambda number: librosa.power_to_db(librosa.feature.melspectrogram(y=AUDIO, **how))


def torchaudio_package() -> Callable[[int], object]:
    import torch

    torch.version.cuda = None  # torchaudio asks for that of its own build, though nothing here runs on a GPU
    torch.set_num_threads(1)
    import torchaudio

    mel = torchaudio.transforms.MelSpectrogram(RATE, n_fft=RATE // 40, hop_length=RATE // 100, n_mels=BANDS)
    decibels, audio = torchaudio.transforms.AmplitudeToDB(), torch.from_numpy(AUDIO)
    return lambda number: decibels(mel(audio))


PEERS = {
    "kaldi-native-fbank": kaldi_native_fbank,
    "librosa's package": librosa_package,
    "torchaudio's package": torchaudio_package,
}


def measured(calls: Mapping[str, Callable[[int], object]]) -> dict[str, int]:
    """Audio seconds a CPU second of each."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            began = time.process_time()
            for number in range(CALLS):
                call(number)
            took[name].append((time.process_time() - began) / CALLS)
    return {name: round(SECONDS / statistics.median(times)) for name, times in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    left_out = []
    with tempfile.TemporaryDirectory() as folder:
        calls = ours(Path(folder))
        for name, make in PEERS.items():
            try:
                calls[name] = make()
            except ImportError as error:
                left_out.append(f"{name}: {error}")
        found = measured(calls)
    if options.json:
        print(json.dumps({"audio_seconds_a_cpu_second": found, "left_out": left_out}))
        return
    for name, seconds in found.items():
        print(f"{name:24} {seconds:8,} audio seconds a CPU second")
    for reason in left_out:
        print(f"left out: {reason}")


if __name__ == "__main__":
    main()

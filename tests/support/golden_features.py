"""Features as Kaldi, librosa and torchaudio make them, in `golden/features.npz`, for the tests of `logmel` and `mfcc`.

The packages are heavy, so the numbers are made once, by `python -m tests.support.golden_features` in an environment
with kaldi-native-fbank, librosa, torch and torchaudio; their versions are kept beside the numbers. Kaldi's own code is
what kaldi-native-fbank ships.
"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["GOLDEN", "golden_cases"]

GOLDEN = Path(__file__).parent / "golden" / "features.npz"

PACKAGES = ("kaldi-native-fbank", "librosa", "torch", "torchaudio", "numpy")

#: Of each case the transform and its settings. Windows of 507 samples are odd.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "kaldi, log-mel": ("logmel", {"convention": "kaldi", "rate": 16_000, "bands": 80}),
    "kaldi, log-mel, narrow": (
        "logmel",
        {"convention": "kaldi", "rate": 8000, "bands": 23, "window": 0.02, "hop": 0.008, "low_hz": 64, "high_hz": 3800},
    ),
    "kaldi, mfcc": ("mfcc", {"convention": "kaldi", "rate": 16_000}),
    "librosa, log-mel": ("logmel", {"convention": "librosa", "rate": 16_000, "bands": 64, "low_hz": 0.0}),
    "librosa, log-mel, odd": (
        "logmel",
        {"convention": "librosa", "rate": 22_050, "bands": 40, "window": 0.023, "low_hz": 30.0, "high_hz": 7000.0},
    ),
    "librosa, mfcc": ("mfcc", {"convention": "librosa", "rate": 16_000, "bands": 64, "coefficients": 20, "low_hz": 0}),
    "torchaudio, log-mel": ("logmel", {"convention": "torchaudio", "rate": 16_000, "bands": 64, "low_hz": 0.0}),
    "torchaudio, log-mel, odd": (
        "logmel",
        {"convention": "torchaudio", "rate": 22_050, "bands": 40, "window": 0.023, "low_hz": 30.0, "high_hz": 7000.0},
    ),
    "torchaudio, mfcc": (
        "mfcc",
        {"convention": "torchaudio", "rate": 16_000, "bands": 64, "coefficients": 40, "low_hz": 0.0},
    ),
}  # fmt: skip


def golden_cases() -> dict[str, tuple[str, dict[str, Any], np.ndarray, np.ndarray]]:
    """Of each case the transform, its settings, the recording and the features."""
    with np.load(GOLDEN, allow_pickle=False) as kept:
        facts = json.loads(str(kept["facts"]))
        audio = kept["audio"].astype(np.float32) / 2**15
        return {name: (*facts["cases"][name], audio, kept[name]) for name in facts["cases"]}


def recording() -> np.ndarray:
    """A rising tone with noise, then next to nothing, then silence, in 16 bits."""
    rng, time = np.random.default_rng(13), np.arange(3200) / 16_000
    loud = 0.3 * np.sin(2 * np.pi * (200 + 8000 * time) * time) + 0.02 * rng.standard_normal(3200)
    return np.concatenate([np.rint(loud * 2**15), rng.integers(-1, 2, 1200), np.zeros(900)]).astype(np.int16)


def sizes(settings: dict[str, Any]) -> tuple[int, int]:
    return round(settings.get("window", 0.025) * settings["rate"]), round(settings.get("hop", 0.01) * settings["rate"])


def by_kaldi(transform: str, settings: dict[str, Any], audio: np.ndarray) -> np.ndarray:
    import kaldi_native_fbank as knf

    options = knf.FbankOptions() if transform == "logmel" else knf.MfccOptions()
    options.frame_opts.dither = 0
    options.frame_opts.samp_freq = settings["rate"]
    options.frame_opts.frame_length_ms = 1000 * settings.get("window", 0.025)
    options.frame_opts.frame_shift_ms = 1000 * settings.get("hop", 0.01)
    options.mel_opts.num_bins = settings.get("bands", 23)
    options.mel_opts.low_freq = settings.get("low_hz", 20.0)
    options.mel_opts.high_freq = settings.get("high_hz", 0.0)
    options.use_energy = False
    online = knf.OnlineFbank(options) if transform == "logmel" else knf.OnlineMfcc(options)
    online.accept_waveform(settings["rate"], (audio * 2**15).tolist())
    online.input_finished()
    return np.stack([online.get_frame(frame) for frame in range(online.num_frames_ready)])


def by_librosa(transform: str, settings: dict[str, Any], audio: np.ndarray) -> np.ndarray:
    import librosa

    window, hop = sizes(settings)
    how = {
        "y": audio,
        "sr": settings["rate"],
        "n_fft": window,
        "hop_length": hop,
        "n_mels": settings["bands"],
        "fmin": settings["low_hz"],
        "fmax": settings.get("high_hz"),
    }
    if transform == "logmel":
        return librosa.power_to_db(librosa.feature.melspectrogram(**how)).T
    return librosa.feature.mfcc(**how, n_mfcc=settings["coefficients"]).T


def by_torchaudio(transform: str, settings: dict[str, Any], audio: np.ndarray) -> np.ndarray:
    import torch

    torch.version.cuda = (
        None  # torchaudio asks for the CUDA version of its own build, though nothing here runs on a GPU
    )
    import torchaudio

    window, hop = sizes(settings)
    how = {
        "n_fft": window,
        "hop_length": hop,
        "n_mels": settings["bands"],
        "f_min": settings["low_hz"],
        "f_max": settings.get("high_hz"),
    }
    tensor = torch.from_numpy(audio)
    if transform == "logmel":
        mel = torchaudio.transforms.MelSpectrogram(settings["rate"], **how)
        return torchaudio.transforms.AmplitudeToDB()(mel(tensor)).numpy().T
    return torchaudio.transforms.MFCC(settings["rate"], settings["coefficients"], melkwargs=how)(tensor).numpy().T


def main() -> None:
    audio = recording()
    made = {"kaldi": by_kaldi, "librosa": by_librosa, "torchaudio": by_torchaudio}
    features = {
        name: made[settings["convention"]](transform, settings, audio.astype(np.float32) / 2**15).astype(np.float32)
        for name, (transform, settings) in CASES.items()
    }
    facts = {"versions": {name: importlib.metadata.version(name) for name in PACKAGES}, "cases": CASES}
    np.savez_compressed(GOLDEN, facts=np.array(json.dumps(facts)), audio=audio, **features)
    print(facts["versions"], {name: value.shape for name, value in features.items()}, GOLDEN.stat().st_size)


if __name__ == "__main__":
    main()

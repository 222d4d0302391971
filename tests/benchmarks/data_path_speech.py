"""A real pipeline, ours and TensorFlow's: WAV files, 80-band log-mel, buckets, `tf.data`; audio seconds a CPU second.

Rules: the same recordings, the same window, hop and bands, the same budget of a batch; one worker and one client each;
CPU of both sides, what starting costs left out. Each side runs in a process of its own, all in turn, a pass at a time.
The first pass is apart: TensorFlow traces, and the feature cache is filled.

    python -m tests.benchmarks.data_path_speech [--rounds 6]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import soundfile

from shared.hashing import hashed, key_of
from tests.benchmarks.sources.row import elsewhere, measured, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.benchmarks.sources.row import Pass

__all__ = ["speech"]

#: Under which it runs in other processes, also when it is the main module here.
_MODULE = "tests.benchmarks.data_path_speech"

_FILES = 2400
_RATE = 8000
_BANDS = 80
_WINDOW, _HOP, _FFT = 200, 80, 256
_BUDGET_FRAMES = 6000
_ROUNDS = 6

_STREAM = f"""
paths = ["corpus.csv"]
transforms = ["logmel"]
length = "audio"
budget = "{_BUDGET_FRAMES} frames"
shapes = 8

[streams.train.logmel]
rate = {_RATE}
bands = {_BANDS}
"""


def speech(rounds: int = _ROUNDS) -> dict[str, Any]:
    """Audio seconds per CPU second in later passes, and how many times those of `tf.data service`: medians, and the
    least and most of any round.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-speech-") as folder, ExitStack() as stack:
        audio_s = _make_corpus(Path(folder))
        sides = {side: stack.enter_context(elsewhere(_MODULE, side, folder)) for side in _SIDES}
        rates: dict[str, list[float]] = {side: [] for side in _SIDES}
        for _ in range(rounds):
            for side, read in sides.items():
                rates[side].append(_rate(read(), audio_s))
    return _summary(rates)


def _rate(made: Pass, audio_s: float) -> float:
    assert made.samples == _FILES, made
    return audio_s / made.cpu_s


def _summary(rates: Mapping[str, list[float]]) -> dict[str, Any]:
    theirs, found = rates["tfdata_service"], dict[str, Any]()
    for side, start in (("stoker", ""), ("stoker_cached", "cached_")):
        ours = rates[side]
        ratios = np.divide(ours, theirs)
        ratio = np.median(ours[1:]) / np.median(theirs[1:])
        found[f"{start}audio_s_per_cpu_s"] = round(float(np.median(ours[1:])), 1)
        found[f"{start}ratio_to_tfdata_service"] = round(float(ratio), 3)
        found[f"{start}ratio_range"] = [round(float(ratios[1:].min()), 2), round(float(ratios[1:].max()), 2)]
        found[f"{start}ratio_of_first_pass"] = round(float(ratios[0]), 3)
    return found


def _make_corpus(folder: Path) -> float:
    """Noise of speech-like lengths, 2.3 s in the middle; its seconds."""
    (folder / "clips").mkdir()
    spread = np.random.default_rng(5).lognormal(np.log(2.3), 0.5, _FILES).clip(0.5, 12)
    with (folder / "corpus.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["audio", "text"])
        for number, seconds in enumerate(spread):
            words = hashed(np.arange(int(seconds * _RATE)), key_of("noise", number)) >> np.uint64(50)
            path = folder / "clips" / f"{number:05d}.wav"
            soundfile.write(path, words.astype(np.int16) - 2**13, _RATE, subtype="PCM_16")
            rows.writerow([f"clips/{path.name}", "x"])
    return float(sum(int(seconds * _RATE) for seconds in spread)) / _RATE


def _stoker(folder: Path, *, cache: str = "") -> None:
    import trainer_client  # each side imports its own
    from tests.benchmarks.data_path_stoker import loaders, make_job

    stream = _STREAM.replace("corpus.csv", str(folder / "corpus.csv"))
    job = make_job(Path(tempfile.mkdtemp(dir=folder)) / "job", stream, source="manifest", settings=cache)
    with loaders(job) as endpoint, trainer_client.connect(endpoint) as feed:
        data = feed.dataset(inputs=("audio", "audio_length", "weight"))
        serve(lambda: measured(int(weight.numpy().sum()) for ((_, _, weight),) in data))


def _tfdata_service(folder: Path) -> None:
    import tensorflow as tf

    from tests.benchmarks.data_path_peers import tf_server

    service = tf.data.experimental.service
    with tf_server() as target:
        data = _tf_features(folder).apply(service.distribute(service.ShardingPolicy.OFF, target, compression=None))
        serve(lambda: measured(int(tf.shape(lengths)[0]) for _, lengths in data))


def _tf_features(folder: Path) -> Any:
    import tensorflow as tf

    mel = tf.signal.linear_to_mel_weight_matrix(_BANDS, _FFT // 2 + 1, _RATE, 20.0, _RATE / 2)

    def features(path: Any) -> tuple[Any, Any]:
        audio, _ = tf.audio.decode_wav(tf.io.read_file(path), desired_channels=1)
        frames = tf.signal.stft(audio[:, 0], _WINDOW, _HOP, _FFT)
        bands = tf.math.log(tf.maximum(tf.matmul(tf.square(tf.abs(frames)), mel), 1e-10))
        return bands, tf.shape(bands)[0]

    paths = sorted(str(path) for path in (folder / "clips").glob("*.wav"))
    bounds = [100, 150, 200, 250, 300, 400, 600]
    sizes = [_BUDGET_FRAMES // bound for bound in (*bounds, 1200)]
    return (
        tf.data.Dataset.from_tensor_slices(paths)
        .shuffle(len(paths), seed=1)
        .map(features)
        .bucket_by_sequence_length(lambda _, length: length, bounds, sizes)
    )


_SIDES: dict[str, Callable[[Path], None]] = {
    "stoker": _stoker,
    "tfdata_service": _tfdata_service,
    "stoker_cached": partial(_stoker, cache='feature_cache_bytes = "4 GiB"'),
}


def main() -> None:
    """Measure; or be one side, which reads a pass for each line of input."""
    if sys.argv[1:2] and sys.argv[1] in _SIDES:
        side, folder = sys.argv[1:]
        _SIDES[side](Path(folder))
        sys.stdout.flush()
        os._exit(0)  # TensorFlow's threads need no goodbye
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="passes of each side")
    print(json.dumps({**speech(parser.parse_args().rounds), "load": round(os.getloadavg()[0], 2)}))


if __name__ == "__main__":
    main()

"""A real pipeline, ours and TensorFlow's: WAV files, 80-band log-mel, buckets, `tf.data`; audio seconds a CPU second.

Rules: the same recordings, the same window, hop and bands, the same budget of a batch; one worker and one client each;
CPU of both sides over one whole pass, what starting costs left out. Each side runs in a process of its own.

    python -m tests.benchmarks.data_path_speech [stoker | tfdata_service] FOLDER
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import soundfile

from shared.hashing import hashed, key_of
from tests.benchmarks.data_path_consumer import children_cpu_s, cpu_s

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["speech"]

_ROOT = Path(__file__).resolve().parents[2]

_FILES = 2400
_RATE = 8000
_BANDS = 80
_WINDOW, _HOP, _FFT = 200, 80, 256
_BUDGET_FRAMES = 6000
_ROUNDS = 3

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


def speech() -> dict[str, float]:
    """Audio seconds per CPU second of Stoker, and that over what `tf.data service` makes of the same; medians."""
    with tempfile.TemporaryDirectory(prefix="stoker-speech-") as folder:
        audio_s = _make_corpus(Path(folder))
        rates: dict[str, list[float]] = {"stoker": [], "tfdata_service": []}
        for _ in range(_ROUNDS):
            for side, found in rates.items():
                found.append(audio_s / _cpu_of(side, folder))
        ratios = [ours / theirs for ours, theirs in zip(*rates.values(), strict=True)]
        return {
            "audio_s_per_cpu_s": round(float(np.median(rates["stoker"])), 1),
            "ratio_to_tfdata_service": round(float(np.median(ratios)), 3),
        }


def _cpu_of(side: str, folder: str) -> float:
    command = [sys.executable, "-m", "tests.benchmarks.data_path_speech", side, folder]
    done = subprocess.run(
        command, cwd=_ROOT, env={**os.environ, "PYTHONPATH": str(_ROOT)}, check=True, capture_output=True
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["rows"] == _FILES, answer
    return float(answer["cpu_s"])


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


def _counted(batches: Iterator[int]) -> dict[str, float]:
    """The rows of a pass, and the CPU that both sides spent on it from its first batch on."""
    own = psutil.Process()
    before = cpu_s(own) + children_cpu_s()
    rows = sum(batches)
    return {"rows": rows, "cpu_s": cpu_s(own) + children_cpu_s() - before}


def _stoker(folder: Path) -> dict[str, float]:
    import trainer_client  # noqa: PLC0415 - each side imports its own
    from tests.benchmarks.data_path_stoker import loaders, make_job  # noqa: PLC0415

    job_folder = Path(tempfile.mkdtemp(dir=folder)) / "job"
    stream = _STREAM.replace("corpus.csv", str(folder / "corpus.csv"))
    job = make_job(job_folder, stream, source="manifest")
    with loaders(job) as endpoint, trainer_client.connect(endpoint) as feed:
        data = feed.dataset(inputs=("audio", "audio_length", "weight"))
        iterator = iter(data)
        return _counted(int(weight.numpy().sum()) for _, _, weight in iterator)


def _tfdata_service(folder: Path) -> dict[str, float]:
    import tensorflow as tf  # noqa: PLC0415

    from tests.benchmarks.data_path_peers import tf_server  # noqa: PLC0415

    service = tf.data.experimental.service
    with tf_server() as target:
        data = _tf_features(folder).apply(service.distribute(service.ShardingPolicy.OFF, target, compression=None))
        iterator = iter(data)
        return _counted(int(tf.shape(lengths)[0]) for _, lengths in iterator)


def _tf_features(folder: Path) -> Any:
    import tensorflow as tf  # noqa: PLC0415

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


def main() -> None:
    """One side, one pass."""
    side, folder = sys.argv[1:]
    print(json.dumps({"stoker": _stoker, "tfdata_service": _tfdata_service}[side](Path(folder))), flush=True)
    os._exit(0)  # TensorFlow's threads need no goodbye


if __name__ == "__main__":
    main()

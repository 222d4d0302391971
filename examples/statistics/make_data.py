"""Makes recordings of one tone each, in noise: data/train.csv and data/clips/."""

import csv
from pathlib import Path

import numpy as np
import soundfile

RATE = 8000
RECORDINGS = 400


def recording(rng):
    """Return a tone of its own pitch, loudness and length, with noise."""
    times = np.arange(int(RATE * rng.uniform(0.3, 2.0))) / RATE
    tone = rng.uniform(0.05, 0.3) * np.sin(2 * np.pi * rng.uniform(200, 2000) * times)
    return tone + rng.normal(0, 0.02, len(times))


def main():
    rng = np.random.default_rng(7)
    Path("data/clips").mkdir(parents=True, exist_ok=True)
    with Path("data/train.csv").open("w", newline="") as manifest:
        rows = csv.writer(manifest)
        rows.writerow(("audio",))
        for number in range(RECORDINGS):
            soundfile.write(f"data/clips/{number:04d}.wav", recording(rng), RATE)
            rows.writerow((f"clips/{number:04d}.wav",))
    print(f"data/train.csv: {RECORDINGS} recordings")


if __name__ == "__main__":
    main()

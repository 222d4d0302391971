"""Makes short sounds that stand for words, with noise: data/train.csv, data/dev.csv and data/clips/."""

import csv
from pathlib import Path

import numpy as np
import soundfile

RATE = 8000
#: From which pitch to which each word goes, in hertz.
PITCHES = {"up": (400, 1200), "down": (1200, 400), "left": (500, 500), "right": (1100, 1100), "stop": (0, 0)}


def recording(word, rng):
    """Return a gliding tone somewhere in noise; for "stop", noise alone."""
    seconds = rng.uniform(0.3, 0.6)
    pitch = np.linspace(*PITCHES[word], int(RATE * seconds)) * rng.uniform(0.9, 1.1)
    tone = 0.1 * np.sin(2 * np.pi * np.cumsum(pitch) / RATE)
    sound = np.pad(tone, rng.integers(0, RATE // 4, 2))
    return sound + rng.normal(0, 0.04, len(sound))


def main():
    rng = np.random.default_rng(7)
    Path("data/clips").mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 500), ("dev", 100)):
        with Path(f"data/{name}.csv").open("w", newline="") as manifest:
            rows = csv.writer(manifest)
            rows.writerow(("audio", "text"))
            for number, word in enumerate(rng.choice(list(PITCHES), count)):
                soundfile.write(f"data/clips/{name}-{number}.wav", recording(word, rng), RATE)
                rows.writerow((f"clips/{name}-{number}.wav", word))
        print(f"data/{name}.csv: {count} recordings")


if __name__ == "__main__":
    main()

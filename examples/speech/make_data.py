"""Makes recordings of dialled digits, with noise: data/train.csv, data/dev.csv and data/clips/."""

import csv
from pathlib import Path

import numpy as np
import soundfile

RATE = 8000
LOW_HZ, HIGH_HZ = (697, 770, 852, 941), (1209, 1336, 1477)
KEYS = "123456789*0#"


def recording(digits, rng):
    """Each digit is two tones at a time, and a pause."""
    parts = []
    for row, column in (divmod(KEYS.index(digit), 3) for digit in digits):
        time = np.arange(int(RATE * rng.uniform(0.1, 0.2))) / RATE
        parts.append(np.sin(2 * np.pi * LOW_HZ[row] * time) + np.sin(2 * np.pi * HIGH_HZ[column] * time))
        parts.append(np.zeros(int(RATE * rng.uniform(0.05, 0.15))))
    sound = 0.2 * np.concatenate(parts)
    return sound + rng.normal(0, 0.02, len(sound))


def main():
    rng = np.random.default_rng(7)
    Path("data/clips").mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 600), ("dev", 60)):
        with Path(f"data/{name}.csv").open("w", newline="") as manifest:
            rows = csv.writer(manifest)
            rows.writerow(("audio", "text"))
            for number in range(count):
                digits = "".join(rng.choice(list("0123456789"), rng.integers(2, 9)))
                soundfile.write(f"data/clips/{name}-{number}.wav", recording(digits, rng), RATE)
                rows.writerow((f"clips/{name}-{number}.wav", digits))
        print(f"data/{name}.csv: {count} recordings")


if __name__ == "__main__":
    main()

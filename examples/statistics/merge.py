"""Adds the sums of all batches: data/statistics.npz has the mean and the deviation of each band."""

from pathlib import Path

import numpy as np


def main():
    parts = [dict(np.load(path)) for path in sorted(Path("data/parts").glob("*.npz"))]
    frames = sum(int(part["frames"]) for part in parts)
    mean = sum(part["sum"] for part in parts) / frames
    deviation = np.sqrt(sum(part["squares"] for part in parts) / frames - mean**2)
    np.savez("data/statistics.npz", mean=mean, deviation=deviation)
    print(f"data/statistics.npz: {len(mean)} bands of {frames} frames in {len(parts)} batches, mean {mean.mean():.3f}")


if __name__ == "__main__":
    main()

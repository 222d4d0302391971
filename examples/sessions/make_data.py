"""Makes sessions of a shop: the items that a visitor looked at, by 64-bit ids, and whether the visitor bought."""

from pathlib import Path

import numpy as np

ITEMS = 20_000


def write(folder, sessions, rng, ids, is_wanted):
    lengths = rng.integers(5, 21, sessions)
    bought = rng.integers(0, 2, sessions)
    wanted, others = np.flatnonzero(is_wanted), np.flatnonzero(~is_wanted)
    seen = []
    for length, label in zip(lengths, bought, strict=True):
        is_of_kind = rng.random(length) < 0.8  # who buys looks mostly at items of the first kind
        first, second = (wanted, others) if label else (others, wanted)
        seen.append(ids[np.where(is_of_kind, rng.choice(first, length), rng.choice(second, length))])
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "items_values.npy", np.concatenate(seen))
    np.save(folder / "items_offsets.npy", np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    np.save(folder / "bought.npy", bought.astype(np.float32))
    print(f"{folder}: {sessions} sessions of {len(np.unique(np.concatenate(seen)))} items")


def main():
    rng = np.random.default_rng(7)
    ids = rng.integers(1, 2**62, ITEMS)  # as a hash of names or a database makes them
    is_wanted = rng.random(ITEMS) < 0.5
    write(Path("data/train"), 8000, rng, ids, is_wanted)
    write(Path("data/dev"), 500, rng, ids, is_wanted)


if __name__ == "__main__":
    main()

"""Takes batches from the queue, beside any number of others, and leaves the sums of each in data/parts/."""

import os
from pathlib import Path

import numpy as np
import trainer_client

PARTS = Path("data/parts")


def sums_of(batch):
    """Return the sums over all frames of a batch that are no padding; raise ValueError for silence."""
    valid = np.arange(batch["audio"].shape[1]) < batch["audio_length"][:, None]
    frames = batch["audio"][valid].astype(np.float64)
    if not frames.any():
        raise ValueError("there is nothing but silence")
    return {"frames": len(frames), "sum": frames.sum(0), "squares": (frames**2).sum(0)}


def write(number, sums):
    """Write a batch's sums under its number, whole or not at all: if it comes again, it counts once all the same."""
    draft = PARTS / f"{number}.{os.getpid()}.tmp"
    with draft.open("wb") as file:
        np.savez(file, **sums)
    draft.replace(PARTS / f"{number}.npz")


def main():
    PARTS.mkdir(exist_ok=True)
    done = 0
    with trainer_client.connect("tcp://127.0.0.1:7400", epochs=1) as feed:
        while feed.epoch < 1:  # the others may have done all there was
            for batch in feed:
                try:
                    write(batch.number, sums_of(batch))
                except ValueError as error:
                    batch.failed(str(error))  # another trainer tries it; after three tries it is given up
                    continue
                done += 1
                batch.done()  # only now is it never leased again: its sums are on disk
    print(f"{done} batches done here")


if __name__ == "__main__":
    main()

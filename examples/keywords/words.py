"""A transform: the transcript, one of five words, becomes its number."""

import numpy as np
from loader_server.transforms import transform

WORDS = ("up", "down", "left", "right", "stop")


@transform({"label": ("int32",)}, removes=("text",), draws=False)
def label(sample, rng):
    sample["label"] = np.int32(WORDS.index(sample.pop("text")))

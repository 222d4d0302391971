"""`ctc_fit`: refuses samples with more labels than CTC can emit in their frames.

Rules: pure; changes nothing. CTC needs a frame for each label, and one more between two that are equal. Comes after the
transforms that make labels and frames. Samples that are doubtful by their lengths are tried while indexing, and are bad
rows if they do not fit; one that fails only because of repeated labels is masked, counted and named when it is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.transforms import SampleError, setting, text, transform, whole
from loader_server.transforms.declare import built_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loader_server.transforms.declare import Lengths

__all__ = ["CtcFit", "CtcFitSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CtcFitSettings:
    """The table [streams.<name>.ctc_fit]."""

    labels: str = setting(text, "the key of the labels", default="text")
    frames: str = setting(text, "the key of the frames", default="audio")
    reduction: int = setting(whole(1), "how many frames the model merges into one", default=1)


@built_in("ctc_fit")
@transform(settings=CtcFitSettings, draws=False)
class CtcFit:
    """Transform that refuses a sample whose labels do not fit its frames."""

    def __init__(self, settings: CtcFitSettings) -> None:
        self._labels, self._frames, self._reduction = settings.labels, settings.frames, settings.reduction

    def may_refuse(self, lengths: Lengths) -> NDArray[np.bool_]:
        """Return which samples may have too few frames, judging by lengths; lengths do not show repeated labels.

        Raise KeyError if there is no length of the labels or of the frames.
        """
        doubtful: NDArray[np.bool_] = lengths[self._labels] > lengths[self._frames] // self._reduction
        return doubtful

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Raise SampleError if the labels, and a blank between equal neighbours, do not fit the frames.

        Change nothing.
        """
        labels, frames = sample[self._labels], len(sample[self._frames]) // self._reduction
        repeats = int(np.count_nonzero(labels[1:] == labels[:-1]))
        # Between two equal labels CTC has to emit a blank, or they would be one.
        if len(labels) + repeats > frames:
            raise SampleError(
                reason="labels_do_not_fit",
                expected=f'at most {frames} labels and repeats of these in "{self._labels}", as many as frames',
                got=f"{len(labels)} labels and {repeats} repeats",
                where="transform ctc_fit",
                remedy="Mend the transcript or the audio, or remove the sample.",
            )

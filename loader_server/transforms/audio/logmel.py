"""`logmel`: audio to logarithmic mel bands, float32, a whole utterance at once.

Rules: pure; exactly as many frames as declared, and at least one where there is any audio. Without a convention the
bytes are ours, and stay what they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.transforms import Outputs, transform
from loader_server.transforms.audio.mel_bands import MelBands, logarithms
from shared.audio.conventions import CONVENTIONS, OWN
from shared.audio.features import LogMelSettings

if TYPE_CHECKING:
    import numpy as np

__all__ = ["LogMelSettings", "LogMelTransform"]


@transform(settings=LogMelSettings, draws=False, packages=("soxr",))
class LogMelTransform:
    """The transform: `audio` becomes float32 `[frames, bands]`."""

    def __init__(self, settings: LogMelSettings) -> None:
        self._convention = CONVENTIONS[settings.convention] if settings.convention else OWN
        self._mel = MelBands(settings, settings.bands, self._convention)
        self.outputs = Outputs.of(
            {"audio": ("float32", None, settings.bands)},
            lengths={"audio": self._mel.length},
            per_second={"audio": self._mel.per_second},
        )

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:  # noqa: ARG002 - every transform gets it
        """Replace the audio by its bands."""
        sample["audio"] = logarithms(self._mel.energies(sample), self._convention, self._convention.range_db)

"""`logmel`: audio to logarithmic mel bands, float32, a whole utterance at once.

Rules: pure; exactly as many frames as declared, and at least one if there is any audio. Without a convention the bytes
are ours, and never change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.transforms import Outputs, transform
from loader_server.transforms.audio.low_rates import OfOneRate
from loader_server.transforms.audio.mel_bands import MelBands, logarithms, recordings_of
from loader_server.transforms.declare import built_in
from shared.audio.conventions import CONVENTIONS, OWN
from shared.audio.features import LogMelSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.sources.batch_columns import Columns
    from loader_server.transforms.audio.mel_bands import Recording

__all__ = ["LogMelSettings", "LogMelTransform"]


@built_in("logmel")
@transform(settings=LogMelSettings, draws=False, packages=("soxr",))
class LogMelTransform(OfOneRate):
    """Transform of `audio` to float32 `[frames, bands]`."""

    def __init__(self, settings: LogMelSettings) -> None:
        self._convention = CONVENTIONS[settings.convention] if settings.convention else OWN
        self._mel = MelBands(settings, settings.bands, self._convention)
        self.rate = settings.rate
        self.outputs = Outputs.of(
            {"audio": ("float32", None, settings.bands)},
            lengths={"audio": self._mel.length},
            per_second={"audio": self._mel.per_second},
        )

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Replace the audio by its log-mel bands."""
        (sample["audio"],) = self._features([(sample["audio"], sample["audio_rate"])])

    def empty_bands(self, highest_hz: float) -> tuple[int, int]:
        """Return how many bands take in no frequency below `highest_hz`, and how many there are."""
        return self._mel.empty_bands(highest_hz)

    def on_columns(self, columns: Columns) -> None:
        """Replace the audio of all samples by its log-mel bands."""
        columns["audio"] = self._features(recordings_of(columns))

    def _features(self, recordings: Sequence[Recording]) -> list[NDArray[np.float32]]:
        said = self._convention
        return [logarithms(energies, said, said.range_db) for energies in self._mel.energies(recordings)]

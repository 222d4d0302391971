"""`logmel`: audio to logarithmic mel bands, float32, a whole utterance at once.

Rules: pure; exactly as many frames as declared, and at least one if there is any audio. Without a convention the bytes
are ours, and never change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.transforms import transform
from loader_server.transforms.audio.mel_bands import MelTransform, logarithms
from loader_server.transforms.declare import built_in
from shared.audio.conventions import CONVENTIONS, OWN
from shared.audio.features import LogMelSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["LogMelSettings", "LogMelTransform"]


@built_in("logmel")
@transform(settings=LogMelSettings, draws=False, packages=("soxr",))
class LogMelTransform(MelTransform):
    """Transform of `audio` to float32 `[frames, bands]`.

    Raise SettingsError if the settings allow no frame or no band, as `mel_frames` does.
    """

    def __init__(self, settings: LogMelSettings) -> None:
        super().__init__(
            settings, settings.bands, settings.bands, CONVENTIONS[settings.convention] if settings.convention else OWN
        )

    def _features_of(self, energies: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logarithms of the energies, which are overwritten."""
        return logarithms(energies, self._convention, self._convention.range_db)

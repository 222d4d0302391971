"""`mfcc`: audio to mel-frequency cepstral coefficients, float32: the cosine transform (DCT-II) of log-mel bands.

Rules: pure; frames are those of `logmel` with the same settings. The first coefficient is the sum of bands, not a
frame's energy, as in Kaldi's recipes (`--use-energy=false`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loader_server.transforms import SettingsError, choice, setting, transform, whole
from loader_server.transforms.audio.mel_bands import MelTransform, logarithms
from loader_server.transforms.declare import built_in
from shared.audio.conventions import CONVENTIONS, NAMED
from shared.audio.features import MelSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Mfcc", "MfccSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MfccSettings(MelSettings):
    """The table [streams.<name>.mfcc]."""

    bands: int = setting(whole(1, 1024), "mel bands that they are made from", default=23)
    coefficients: int = setting(whole(1, 1024), "how many are kept, from the first on", default=13)
    convention: str = setting(choice(*NAMED), "whose definition: kaldi, librosa or torchaudio", default="kaldi")


@built_in("mfcc")
@transform(settings=MfccSettings, draws=False, packages=("soxr",))
class Mfcc(MelTransform):
    """Transform of `audio` to float32 `[frames, coefficients]`.

    Raise SettingsError for more coefficients than bands, or settings that allow no frame or no band.
    """

    def __init__(self, settings: MfccSettings) -> None:
        if settings.coefficients > settings.bands:
            raise SettingsError(
                expected=f"at most {settings.bands} coefficients, as many as bands",
                got=str(settings.coefficients),
                where="coefficients",
                remedy="Lower it, or raise bands.",
            )
        convention = CONVENTIONS[settings.convention]
        super().__init__(settings, settings.bands, settings.coefficients, convention)
        self._cosines = _cosines(settings.bands, settings.coefficients, convention.lifter)

    def _features_of(self, energies: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the cepstral coefficients, `[frames, coefficients]`; the energies are overwritten."""
        return logarithms(energies, self._convention, self._convention.cepstral_range_db) @ self._cosines


def _cosines(bands: int, coefficients: int, lifter: int) -> NDArray[np.float32]:
    """Return the orthonormal cosine transform (DCT-II), `[bands, coefficients]`, liftered unless `lifter` is 0."""
    order = np.arange(coefficients)
    cosines = np.cos(np.pi / bands * np.outer(np.arange(bands) + 0.5, order)) * np.sqrt(2 / bands)
    cosines[:, 0] = np.sqrt(1 / bands)
    if lifter:  # Kaldi's liftering weights, 1 + L/2 sin(πn/L)
        cosines *= 1 + lifter / 2 * np.sin(np.pi * order / lifter)
    made: NDArray[np.float32] = cosines.astype(np.float32)
    return made

"""`mfcc`: audio to mel-frequency cepstral coefficients, float32: the cosine transform of logarithmic bands.

Rules: pure; frames are those of `logmel` with the same settings. The first coefficient is the sum of bands, not a
frame's energy, as in Kaldi's recipes (`--use-energy=false`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.transforms import Outputs, SettingsError, choice, setting, transform, whole
from loader_server.transforms.audio.low_rates import OfOneRate
from loader_server.transforms.audio.mel_bands import MelBands, logarithms, recordings_of
from loader_server.transforms.declare import built_in
from shared.audio.conventions import CONVENTIONS, NAMED
from shared.audio.features import MelSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from loader_server.sources.batch_columns import Columns
    from loader_server.transforms.audio.mel_bands import Recording

__all__ = ["Mfcc", "MfccSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MfccSettings(MelSettings):
    """The table [streams.<name>.mfcc]."""

    bands: int = setting(whole(1, 1024), "mel bands that they are made from", default=23)
    coefficients: int = setting(whole(1, 1024), "how many are kept, from the first on", default=13)
    convention: str = setting(choice(*NAMED), "whose definition: kaldi, librosa or torchaudio", default="kaldi")


@built_in("mfcc")
@transform(settings=MfccSettings, draws=False, packages=("soxr",))
class Mfcc(OfOneRate):
    """Transform of `audio` to float32 `[frames, coefficients]`."""

    def __init__(self, settings: MfccSettings) -> None:
        if settings.coefficients > settings.bands:
            raise SettingsError(
                expected=f"at most {settings.bands} coefficients, as many as bands",
                got=str(settings.coefficients),
                where="coefficients",
                remedy="Lower it, or raise bands.",
            )
        self._convention = CONVENTIONS[settings.convention]
        self._mel = MelBands(settings, settings.bands, self._convention)
        self._cosines = _cosines(settings.bands, settings.coefficients, self._convention.lifter)
        self.rate = settings.rate
        self.outputs = Outputs.of(
            {"audio": ("float32", None, settings.coefficients)},
            lengths={"audio": self._mel.length},
            per_second={"audio": self._mel.per_second},
        )

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Replace the audio by its cepstral coefficients."""
        (sample["audio"],) = self._coefficients([(sample["audio"], sample["audio_rate"])])

    def empty_bands(self, highest_hz: float) -> tuple[int, int]:
        """Return how many bands take in no frequency below `highest_hz`, and how many there are."""
        return self._mel.empty_bands(highest_hz)

    def on_columns(self, columns: Columns) -> None:
        """Replace the audio of all samples by its cepstral coefficients."""
        columns["audio"] = self._coefficients(recordings_of(columns))

    def _coefficients(self, recordings: Sequence[Recording]) -> list[NDArray[np.float32]]:
        said = self._convention
        made = self._mel.energies(recordings)
        return [logarithms(energies, said, said.cepstral_range_db) @ self._cosines for energies in made]


def _cosines(bands: int, coefficients: int, lifter: int) -> NDArray[np.float32]:
    """Return the orthonormal discrete cosine transform (DCT-II), `[bands, coefficients]`, with liftering."""
    order = np.arange(coefficients)
    cosines = np.cos(np.pi / bands * np.outer(np.arange(bands) + 0.5, order)) * np.sqrt(2 / bands)
    cosines[:, 0] = np.sqrt(1 / bands)
    if lifter:  # Kaldi's liftering weights, 1 + L/2 sin(πn/L)
        cosines *= 1 + lifter / 2 * np.sin(np.pi * order / lifter)
    made: NDArray[np.float32] = cosines.astype(np.float32)
    return made

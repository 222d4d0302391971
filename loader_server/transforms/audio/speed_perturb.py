"""`speed_perturb`: plays the recording faster or slower, in pitch as well, by a factor that is drawn.

Rules: pure; the declared length is that of the slowest factor, an upper bound; the batch carries the real one. Factor 1
leaves the audio as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from loader_server.transforms import Outputs, numbers, setting, transform
from loader_server.transforms.audio.resampling import resampled, resampled_length
from loader_server.transforms.declare import built_in

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from loader_server.transforms.declare import Lengths

__all__ = ["SpeedPerturb", "SpeedPerturbSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPerturbSettings:
    """The table [streams.<name>.speed_perturb]."""

    factors: tuple[float, ...] = setting(
        numbers(0.25, 4), "one of these is drawn for a sample; below 1 is slower and longer", default=(0.9, 1.0, 1.1)
    )


@built_in("speed_perturb")
@transform(settings=SpeedPerturbSettings, packages=("soxr",))
class SpeedPerturb:
    """Transform that makes `audio` longer or shorter; it keeps its rate."""

    def __init__(self, settings: SpeedPerturbSettings) -> None:
        # As a float 0.9 is not exactly 9/10; small whole numbers keep lengths predictable with integers alone.
        self._factors = [Fraction(factor).limit_denominator(1000) for factor in settings.factors]
        # Only the length changes: dtype, shape and steps a second stay as declared before.
        self.outputs = Outputs.of(lengths={"audio": self._longest})

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Resample as if the recording had another rate, by a factor that is drawn.

        Raise SampleError unless it is float32.
        """
        factor = self._factors[int(rng.integers(len(self._factors)))]
        sample["audio"] = resampled(sample["audio"], factor.numerator, factor.denominator)

    def _longest(self, lengths: Lengths) -> NDArray[np.int64]:
        slowest = min(self._factors)
        return resampled_length(lengths["audio"], slowest.numerator, slowest.denominator)  # type: ignore[arg-type]

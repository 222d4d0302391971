"""The blame for a sample longer than its batch has room for: the source's, or one of the transforms'.

Rules: pure except for the transforms, which run once more and draw the same numbers; the first that breaks its
declaration is named, and only if none does, those without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loader_server.transforms.chain import Chain

__all__ = ["blame_for_length"]

_Lengths = dict[str, Any]


def blame_for_length(
    chain: Chain, sample: dict[str, Any], lengths: Mapping[str, int], key: tuple[int, int, int]
) -> str:
    """Return a sentence that names the culprit and the remedy; `lengths` are the raw sample's, from the index.

    Errors of the transforms and of their rules for lengths pass, such as a SampleError, a ReadError or a SettingsError.
    """
    foretold: _Lengths = {name: np.array([length]) for name, length in lengths.items()}
    for name, most, made in _longer(sample, foretold):
        return f'The source gave {made} steps of "{name}" where the index says {most}: run loader-server index.'
    undeclared = []
    # The first that breaks its declaration is to blame: those after it only pass on what is too long.
    for step, sample in chain.stages(sample, key):  # noqa: B020, PLR1704 - each makes the next
        foretold |= chain.foretold(step, foretold)
        for name, most, made in _longer(sample, foretold):
            if step.outputs is not None:
                return f'The transform {step.name} declares at most {most} steps of "{name}" and made {made}: mend it.'
            undeclared.append(step.name)
            foretold[name] = np.array([made])
    names = " or ".join(dict.fromkeys(undeclared)) or "which changed since it was indexed"
    return f"The transform {names} made fewer steps while indexing: declare the most that it makes, or index again."


def _longer(sample: Mapping[str, Any], foretold: _Lengths) -> list[tuple[str, int, int]]:
    """Return the keys that are longer than declared, with both lengths: the most, and the one made.

    Empty if none is longer; a value that is missing or no array with axes counts as 0 long, and a string by its
    characters. `<key>_width` stands for the second axis of an array.
    """
    found = [(key, int(most[0]), _length_under(sample, key)) for key, most in foretold.items()]
    return [(key, most, made) for key, most, made in found if made > most]


def _length_under(sample: Mapping[str, Any], key: str) -> int:
    """Return the length of a sample's value, or along the second axis of the array whose width the key names."""
    wide = sample.get(key.removesuffix("_width"))
    if key not in sample and key.endswith("_width") and isinstance(wide, np.ndarray) and wide.ndim > 1:
        return int(wide.shape[1])
    return _length(sample.get(key))


def _length(value: object) -> int:
    if isinstance(value, np.ndarray):
        return len(value) if value.ndim else 0
    return len(value) if isinstance(value, str) else 0

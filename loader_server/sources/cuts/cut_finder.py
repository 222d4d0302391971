"""What the samples of cuts are made of, found while an index is made: recordings, features, arrays, and mixtures.

Rules: each cut is looked at by itself; what cannot be used is an UnusableCut or a bad row. The first usable cut decides
dtype and width of features and arrays, and others are bad rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from loader_server.sources.audio.stretches import Headers
from loader_server.sources.cuts.custom_fields import array_manifest
from loader_server.sources.cuts.made_places import MadeCut, MadeCutPlaces
from loader_server.sources.cuts.plain_cuts import UnusableCut, plain_audio
from loader_server.sources.cuts.shar_folders import PROBLEM
from loader_server.sources.cuts.stored_places import ArrayPlaces, StoredArray
from loader_server.sources.source import BadRow

if TYPE_CHECKING:
    from loader_server.sources.audio.stretches import AudioStretch
    from loader_server.sources.cuts.plain_cuts import CutSample
    from loader_server.sources.cuts.stored_places import RootedPaths
    from loader_server.sources.files.opening import Files
    from loader_server.sources.manifest.cell_forms import CellForm

__all__ = ["FEATURES", "CutFinder", "MadeOf", "PlainStretch", "form_found"]

FEATURES = "features"


@dataclass(frozen=True, slots=True)
class PlainStretch:
    """The stretch of a recording that makes a sample, and the path that the manifest has for its file."""

    path: str
    stretch: AudioStretch


#: What a sample is made of, besides arrays of custom fields.
MadeOf: TypeAlias = "PlainStretch | StoredArray | MadeCut"


class CutFinder:
    """Finds what samples are made of; each file is looked at once. Close it after use.

    `values` is "audio" or "features"; `makes` says that Lhotse makes the samples. A sample that is more than `largest`
    bytes once decoded is a bad row (0: no limit).
    """

    def __init__(self, files: Files, paths: RootedPaths, values: str, largest: int, *, makes: bool) -> None:
        self._values = values
        self._paths = paths
        self._headers = Headers(files, largest=largest)
        self._arrays = ArrayPlaces(files, paths, largest)
        self._made = MadeCutPlaces(files, paths, values, largest) if makes else None

    def close(self) -> None:
        """Close the files that are open."""
        self._arrays.close()
        if self._made is not None:
            self._made.close()

    def find(self, part: CutSample, where: tuple[str, int]) -> MadeOf | BadRow:
        """Return what a sample is made of; a BadRow at `where` if a recording cannot be used.

        Raise an UnusableCut if the cut or its features cannot be used; a ReadError if a remote file cannot be fetched,
        and an OSError if a local one cannot be read. SettingsError and MachineError of looking at files pass through.
        """
        if problem := part.cut.get(PROBLEM):
            raise UnusableCut("no_data", str(problem))
        if self._made is not None:
            return self._made.find(part, where)
        if self._values == FEATURES:
            manifest = part.cut.get("features")
            if not isinstance(manifest, dict):
                raise UnusableCut("no_features", "expected a cut that has features, got one without")
            return self._arrays.features(manifest, part.cut["start"] + part.begin_s, part.duration_s)
        return self._plain(part, where)

    def _plain(self, part: CutSample, where: tuple[str, int]) -> PlainStretch | BadRow:
        """Return the stretch of a plain cut's recording, or a BadRow if its file or its rate does not fit.

        Raise an UnusableCut if it is no plain cut, and a ReadError if a remote file cannot be fetched. SettingsError
        and MachineError of `find` pass through.
        """
        plain = plain_audio(part)
        audio = self._headers.find(self._paths.here(plain.path), plain.stretch, where)
        if isinstance(audio, BadRow):
            return audio
        # Another rate means another file than the manifest was made of: its seconds may be of another recording.
        if audio.header.rate == plain.rate:
            return PlainStretch(plain.path, audio)
        return BadRow(
            *where,
            "other_rate",
            f"expected {plain.rate} Hz, as the recording's manifest says, got {audio.header.rate}: {plain.path}",
        )

    def array(self, part: CutSample, form: CellForm) -> StoredArray:
        """Return the array of a custom field; raise an UnusableCut if it is missing or cannot be used.

        Raise besides what `find` raises.
        """
        return self._arrays.array(array_manifest(part, form), part.cut["start"] + part.begin_s, part.duration_s)


def form_found(form: CellForm, found: MadeOf) -> CellForm:
    """Return the form with dtype and inner shape of what was found; raise an UnusableCut if it has another form.

    A form without a dtype takes any.
    """
    if isinstance(found, MadeCut):  # Lhotse computes in floats
        known = replace(form, dtype="float32", shape=(found.columns,))
    elif isinstance(found, StoredArray):
        known = replace(form, dtype=found.dtype, shape=found.shape[1:] if found.shape else None)
    else:
        return form
    if form.dtype and known != form:
        expected = f"{form.dtype} {_shown(form)}, as the first {form.key}"
        raise UnusableCut("other_array", f"expected {expected}, got {known.dtype} {_shown(known)}")
    return known


def _shown(form: CellForm) -> str:
    """Return the shape of a form as messages show it."""
    return f"[{', '.join(map(str, () if form.shape is None else ('any', *form.shape)))}]"

"""The index: made once from a source, and what planner and source work from.

A folder with `meta.json` and a folder of columns that it names. Rules: columns are written and synced under a name
that nothing refers to, then `meta.json` is replaced: a crash leaves the old index or the new one. One indexer at a
time. The bytes do not depend on the number of processes. Opening maps files and reads nothing for each sample.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.index.columns import file_of, mapped, open_strings
from loader_server.sources.largest import LARGEST_SAMPLE, OVER_LARGEST
from loader_server.sources.source import Indexed
from shared.errors import DataError
from shared.hashing import fingerprint
from shared.settings.values import settings_that_count
from shared.wire.layout import Field

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from loader_server.transforms.chain import Chain

__all__ = ["FORMAT", "Index", "Meta", "columns_fingerprint", "meta_json", "open_index", "read_meta"]

#: To be raised whenever the meaning of the folder's content changes.
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What `meta.json` says: `recipe` is that of the transforms that samples were put through, or empty; `about` holds
    further facts of the source's; `made_from` names all that the index was made from, or is empty if nobody can tell.
    """

    format: int
    source: str
    settings: dict[str, Any]
    origin: list[dict[str, Any]]
    folder: str
    samples: int
    numbers: list[str]
    strings: list[str]
    measured: list[str]
    fields: list[dict[str, Any]]
    recipe: str
    bad: dict[str, int]
    fingerprint: str
    about: dict[str, Any]
    made_from: str = ""
    #: The most bytes that a sample may have once decoded; 0: however many.
    largest_sample: int = LARGEST_SAMPLE


#: All other keys of `meta.json` are the source's: earlier releases wrote them among these.
_OWN = tuple(field.name for field in fields(Meta) if field.name != "about")


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """An open index: the source's columns, `measured` lengths after undeclared transforms, with the `fields` that came
    out; `meta.bad` counts rows left out.
    """

    folder: Path
    meta: Meta
    indexed: Indexed
    measured: Mapping[str, NDArray[np.int64]]
    fields: tuple[Field, ...]

    @property
    def fingerprint(self) -> str:
        """The fingerprint of all columns and the source's settings."""
        return self.meta.fingerprint

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return self.meta.samples

    def measured_lengths(self, chain: Chain) -> Mapping[str, NDArray[np.int64]]:
        """The length of every padded field that a chain makes; the chain must be the one that was measured."""
        self._refuse_other_chain(chain)
        return self.measured

    def bound(self, chain: Chain) -> Chain:
        """The chain with its fields: as declared, or as found while indexing."""
        if not chain.measured:
            return chain
        self._refuse_other_chain(chain)
        return chain.bound(self.fields)

    def refuse_other_source(self, source: str, settings: Any) -> None:
        """Refuse an index that was made before the stream's source settings were changed."""
        wanted = json.loads(json.dumps({"source": source, **settings_that_count(settings)}))
        made = {"source": self.meta.source, **self.meta.settings}
        if made != wanted:
            raise DataError(
                expected=f"an index made with {_listed(wanted)}",
                got=f"one made with {_listed(made)}",
                where=str(self.folder),
                remedy="The stream's source has changed: run loader-server index.",
            )

    def refuse_lacking(self, columns: frozenset[str]) -> None:
        """Refuse an index that was made before these columns were kept."""
        lacking = sorted(columns - set(self.meta.numbers))
        if lacking and self.samples:
            raise DataError(
                expected=f"an index with the columns {', '.join(sorted(columns))}",
                got=f"one without {', '.join(lacking)}",
                where=str(self.folder),
                remedy="It was made by another version: run loader-server index.",
            )

    def refuse_other_limit(self, largest: int) -> None:
        """Refuse an index that was made when samples might be of another size, decoded.

        Cutting recordings, for which there is no limit (0), leaves their index alone, unless that lacks some for their
        size. Without a limit none is missing, and what is too large is refused when it is decoded.
        """
        made = self.meta.largest_sample
        if made and largest != made and (largest or OVER_LARGEST in self.meta.bad):
            raise DataError(
                expected=f"an index made with largest_sample = {_limit(largest)}",
                got=f"one made with {_limit(self.meta.largest_sample)}",
                where=str(self.folder),
                remedy="[job] has changed, or whether recordings are cut: run loader-server index.",
            )

    def refuse_other_trial(self, chain: Chain) -> None:
        """Refuse an index whose samples were tried with other transforms, if some of these refuse samples."""
        if chain.index_recipe != self.meta.recipe:
            raise DataError(
                expected="an index without the samples that the transforms refuse",
                got="one made with other transforms, or with other settings of these",
                where=str(self.folder),
                remedy="Run loader-server index.",
            )

    def _refuse_other_chain(self, chain: Chain) -> None:
        if chain.recipe != self.meta.recipe:
            raise DataError(
                expected="an index whose lengths were measured with these transforms",
                got="one measured with others" if self.meta.recipe else "one without measured lengths",
                where=str(self.folder),
                remedy="Run loader-server index, or declare the transforms with @transform(…).",
            )


def _limit(largest: int) -> str:
    return f'"{largest} B"' if largest else "no limit, as recordings are cut"


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items())


def open_index(folder: Path) -> Index:
    """Open an index; a DataError if there is none, or if it has another format."""
    meta = read_meta(folder)
    columns = folder / meta.folder
    try:
        return Index(
            folder=folder,
            meta=meta,
            indexed=_indexed(folder, meta),
            measured={
                key: mapped(columns / f"measured_{place}.npy").view(np.int64) for place, key in enumerate(meta.measured)
            },
            fields=tuple(Field(**{**field, "shape": tuple(field["shape"])}) for field in meta.fields),
        )
    except (OSError, ValueError) as error:
        raise _damaged(folder, error) from None


def _indexed(folder: Path, meta: Meta) -> Indexed:
    columns = folder / meta.folder
    return Indexed(
        samples=meta.samples,
        numbers={name: mapped(columns / file_of(name)).view(np.int64) for name in meta.numbers},
        strings={name: open_strings(columns, name) for name in meta.strings},
        origin=meta.origin,
        about=meta.about,
        fingerprint=meta.fingerprint,
        place=folder,
    )


def read_meta(folder: Path) -> Meta:
    """What the index says about itself; a DataError if there is none, or if it has another format."""
    try:
        found = json.loads((folder / "meta.json").read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(expected="an index", got="none", where=str(folder), remedy="Run loader-server index.") from None
    except (OSError, ValueError) as error:
        raise _damaged(folder, error) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        got = found.get("format") if isinstance(found, dict) else "none"
        raise DataError(
            expected=f"an index of format {FORMAT}",
            got=f"format {got}",
            where=str(folder),
            remedy="It was made by another version: run loader-server index.",
        )
    own = {name: found.pop(name) for name in _OWN if name in found}
    about = found.pop("about", {})
    try:
        return Meta(**own, about={**found, **about})
    except TypeError as error:
        raise _damaged(folder, error) from None


def _damaged(folder: Path, error: Exception) -> DataError:
    remedy = "It is damaged: run loader-server index."
    if isinstance(error, PermissionError):
        remedy = "Let this user read it (chown, chmod), or run as the user that it belongs to."
    return DataError(expected="a whole index", got=str(error), where=str(folder), remedy=remedy)


def columns_fingerprint(columns: Path, settings: str, local: frozenset[str]) -> str:
    """The fingerprint of all columns except `local` ones, so that copies of a data set on several machines share it."""
    files = sorted(file for file in columns.glob("*.npy") if file.name.removesuffix(".npy") not in local)
    parts = (part for file in files for part in (file.name, mapped(file).view(np.uint8).data))
    return fingerprint(settings, *parts)


def meta_json(meta: Meta) -> str:
    """The content of `meta.json`."""
    return json.dumps(asdict(meta), indent=1, ensure_ascii=False, sort_keys=True)

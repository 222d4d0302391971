"""Shar folders of Lhotse: shards of cuts, each a manifest beside tar files with what its cuts hold.

Rules: nothing is unpacked. A cut's line is completed by where its data lie in the tar files, and by the manifests that
stand beside them there, so that it reads like a line of any manifest. Data that are missing, or are another cut's, make
the cut a bad row.
"""

from __future__ import annotations

import gzip
import itertools
import json
import mmap
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from loader_server.sources.cuts.stored_places import SHAR
from loader_server.sources.records.tar_file import BrokenTar, TarMember, members_of, refuse_no_tar
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loader_server.sources.files.opening import Files

__all__ = ["PROBLEM", "Shard", "manifest_lines", "shard_lines", "shards_of"]

#: What cannot be read of a cut stands under this key of its line.
PROBLEM = "shar_problem"

_CUTS = "cuts"
_MANIFESTS = (".jsonl", ".jsonl.gz")
#: Suffixes of what stands for data that a cut lacks.
_PLACEHOLDERS = (".nodata", ".nometa")


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard: the path of its cuts, and those of the files of its other fields, by field."""

    cuts: str
    fields: dict[str, str]


def shards_of(folder: str, files: Files) -> list[Shard]:
    """Return the shards of a folder, in the order of their names.

    Raise a DataError if it has no cuts, or a field has another number of files than the cuts; a ReadError if a store
    cannot be asked. SettingsError of `found` passes through.
    """
    by_field = defaultdict[str, list[str]](list)
    for path in files.found([folder], *_MANIFESTS, ".tar", ".tar.gz"):
        by_field[PurePosixPath(path).name.split(".")[0]].append(path)
    cuts = by_field.pop(_CUTS, [])
    uneven = [field for field, paths in by_field.items() if len(paths) != len(cuts)]
    if not cuts or uneven:
        field = uneven[0] if cuts else _CUTS
        raise DataError(
            expected=f"files of each field, as many as of its cuts ({len(cuts)})"
            if cuts
            else "a Shar folder with cuts",
            got=f'{len(by_field[field])} of "{field}"' if cuts else f"only {', '.join(sorted(by_field)) or 'nothing'}",
            where=files.where(folder),
            remedy="Name a folder that SharWriter wrote, whole.",
        )
    return [Shard(path, {field: paths[place] for field, paths in by_field.items()}) for place, path in enumerate(cuts)]


def shard_lines(shard: Shard, files: Files) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a shard's cuts, with their numbers (from 1), completed by where their data lie.

    Raise a DataError if a file is missing, is no tar file or is a damaged gzip file; a ReadError if a store cannot be
    asked or read, or an OSError if the disk fails. SettingsError and MachineError of reading pass through.
    """
    fields = {
        field: _values_in(path, field, files) if path.endswith(_MANIFESTS) else _data_in(path, files)
        for field, path in shard.fields.items()
    }
    for number, line in manifest_lines(shard.cuts, files):
        # Each field has an entry for each cut, so all go one step further, whatever the line is.
        found = {field: next(entries, None) for field, entries in fields.items()}
        yield number, _completed(line, found, shard)


def manifest_lines(path: str, files: Files) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a manifest that are not empty, with their numbers (from 1).

    Raise a DataError if it cannot be opened or is a damaged gzip file; a ReadError if a store cannot be read, or an
    OSError if the disk fails. SettingsError and MachineError of reading pass through.
    """
    with files.open(path) as raw:
        try:
            lines = gzip.GzipFile(fileobj=raw) if path.endswith(".gz") else raw
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, line
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(
                expected="a whole gzip file",
                got=f"{type(error).__name__}: {error}",
                where=files.where(path),
                remedy="It is cut short or damaged: write or copy it anew.",
            ) from None


#: What a field has for a cut: its id, and a value or a manifest, which is None if there is none.
_Entry = tuple[str, Any]


def _values_in(path: str, field: str, files: Files) -> Iterator[_Entry]:
    """Yield the values of a field that is no data, in the order of its lines."""
    for _, line in manifest_lines(path, files):
        try:
            table = json.loads(line)
            yield str(table["cut_id"]), table.get(field)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            yield "", None  # belongs to no cut, so the cut is a bad row


def _data_in(path: str, files: Files) -> Iterator[_Entry]:
    """Yield the manifests in a tar file, each completed by where its data lie; end where the file is broken.

    Raise a DataError if it is no tar file, or compressed.
    """
    with files.local(path) as place, place.open("rb") as file:
        size = file.seek(0, 2)
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        refuse_no_tar(data, files.where(path))
        members = members_of(data)
        try:
            while pair := tuple(itertools.islice(members, 2)):
                yield _entry(path, data, *pair) if len(pair) == 2 else ("", None)
        except BrokenTar:
            return  # cuts without data are bad rows


def _entry(path: str, data: mmap.mmap | bytes, held: TarMember, described: TarMember) -> _Entry:
    """Return what a tar file has for a cut, from the members of the data and of their manifest."""
    name, suffix = _parted(held.name)
    if suffix in _PLACEHOLDERS:
        return name, None
    try:
        manifest = json.loads(data[described.offset : described.offset + described.size])
        place = f"{held.offset}:{held.size}:{suffix}"
        if "sources" in manifest:
            manifest["sources"] = [{**manifest["sources"][0], "type": SHAR, "source": f"{path}:{place}"}]
        else:
            stored = manifest.get("array", manifest)
            stored |= {"storage_type": SHAR, "storage_path": path, "storage_key": place}
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        return "", None  # belongs to no cut, so the cut is a bad row
    return name, manifest


def _parted(name: str) -> tuple[str, str]:
    """Return the name of a member without its suffix, which is the cut's, and the suffix."""
    path = PurePosixPath(name)
    return str(path.parent / path.stem), path.suffix


def _completed(line: bytes, found: dict[str, _Entry | None], shard: Shard) -> bytes:
    """Return a cut's line with what its fields hold; the line as it is if it is no cut."""
    try:
        cut = json.loads(line)
        name = str(PurePosixPath(cut["id"]))
        for field, entry in found.items():
            if entry is None or entry[0] != name:
                got = "none" if entry is None else f'those of "{entry[0]}"'
                cut[PROBLEM] = f"expected data of the cut in {shard.fields[field]}, got {got}"
            elif entry[1] is not None and field in ("recording", "features"):
                cut[field] = entry[1]
            elif entry[1] is not None:
                cut["custom"] = {**(cut.get("custom") or {}), field: entry[1]}
        return json.dumps(cut).encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return line

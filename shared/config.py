"""Settings: the job file as frozen dataclasses, read once, refusing what it does not know.

Rules: pure (text in, dataclasses out); a setting is declared once, with its parser and its help text, and the tables
of docs/settings.md are made from these declarations; unknown keys are refused with the nearest known one named;
numbers carry units.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from shared.bad_limit import BadLimit
from shared.errors import SettingsError
from shared.wire.payload import COMPRESSIONS, FLOAT32_FORMS

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

__all__ = [
    "Amount",
    "FileName",
    "JobSettings",
    "StreamSettings",
    "Table",
    "amount",
    "by_key",
    "byte_count",
    "choice",
    "duration_s",
    "file",
    "flag",
    "label",
    "nearest",
    "number",
    "numbers",
    "parse_job",
    "read_table",
    "read_tables",
    "setting",
    "tables",
    "text",
    "texts",
    "whole",
]

Table = Mapping[str, Any]
_T = TypeVar("_T")
_Parser = Callable[[object], Any]


class _BadValue(Exception):  # noqa: N818 - a verdict that never leaves this module
    """A parser refused a value; the reader adds the place and turns this into a SettingsError."""

    def __init__(self, expected: str) -> None:
        self.expected = expected
        super().__init__(expected)


def setting(parse: _Parser, help_text: str, *, default: Any = dataclasses.MISSING) -> Any:  # noqa: ANN401 - a dataclass field
    """Declare one setting of a dataclass: its parser, its help text, its default (none: it is required)."""
    return dataclasses.field(default=default, metadata={"parse": parse, "help": help_text})


# --- parsers: each takes a value as TOML gives it and returns the setting, or says what it expected ---


def text(value: object) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise _BadValue("a string")
    return value


_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def label(value: object) -> str:
    """A name that can serve as a folder, as a metric's label and as one word of a log line."""
    if not isinstance(value, str) or not _LABEL.fullmatch(value):
        raise _BadValue("up to 100 letters, digits, dots, dashes and underscores, the first a letter or digit")
    return value


def texts(value: object) -> tuple[str, ...]:
    """A list of strings; a single string counts as a list of one."""
    if isinstance(value, str):
        return (text(value),)
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise _BadValue("a list of strings")
    return tuple(value)


class FileName(str):
    """A file as a job file names it, relative to the job file's folder; `remedy` is what to do where it is missing."""

    __slots__ = ()

    remedy: ClassVar[str] = "Mend its name, which is relative to the job file, or put the file there."


def file(value: object) -> FileName:
    """The name of a file. A transform gets its path instead, and its content counts where otherwise its name would."""
    return FileName(text(value))


def by_key(parse: _Parser) -> _Parser:
    """A table of key = value, all values of one kind: as pairs in the order of the keys, for settings are hashed."""

    def parse_each(value: object) -> tuple[tuple[str, Any], ...]:
        if not isinstance(value, dict) or not value:
            raise _BadValue("a table such as { text = … }")
        try:
            return tuple((key, parse(value[key])) for key in sorted(value))
        except _BadValue as bad:
            raise _BadValue(f"a table such as {{ text = … }} whose values are each {bad.expected}") from None

    return parse_each


def tables(value: object) -> tuple[Table, ...]:
    """A list of tables, as [[…]] makes it."""
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise _BadValue("a list of tables")
    return tuple(value)


def flag(value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise _BadValue("true or false")
    return value


def whole(minimum: int, maximum: int = 2**62) -> _Parser:
    """An integer between bounds."""

    def parse(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            above = f"an integer of at least {minimum}"
            raise _BadValue(above if maximum == 2**62 else f"an integer from {minimum} to {maximum}")
        return value

    return parse


def number(minimum: float, maximum: float = float("inf")) -> _Parser:
    """A number between bounds."""

    def parse(value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise _BadValue(f"a number from {minimum} to {maximum}")
        return float(value)

    return parse


def numbers(minimum: float, maximum: float = float("inf")) -> _Parser:
    """A list of numbers between bounds, of which there is at least one; a single number counts as a list of one."""
    one = number(minimum, maximum)

    def parse(value: object) -> tuple[float, ...]:
        listed = value if isinstance(value, list) else [value]
        try:
            return tuple(map(one, listed or [None]))
        except _BadValue as bad:
            raise _BadValue(f"a list with at least one entry, each {bad.expected}") from None

    return parse


def choice(*names: str) -> _Parser:
    """One of several names."""

    def parse(value: object) -> str:
        if value not in names:
            raise _BadValue("one of " + ", ".join(f'"{name}"' for name in names) + nearest(value, names))
        return str(value)

    return parse


@dataclass(frozen=True, slots=True)
class Amount:
    """A number with its unit, such as 300 s of audio or 4096 tokens."""

    value: float
    unit: str

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit}"


_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def amount(*units: str) -> _Parser:
    """A number with one of these units, written as one string: "300 s"."""

    def parse(value: object) -> Amount:
        expected = " or ".join(f'"<number> {unit}"' for unit in units)
        found = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            raise _BadValue(f"an amount with its unit, {expected}")
        if found[2] not in units:
            raise _BadValue(f"an amount with its unit, {expected}{nearest(found[2], units)}")
        return Amount(float(found[1]), found[2])

    return parse


def duration_s(value: object) -> float:
    """A duration such as "2 s" or "500 ms", in seconds."""
    parsed: Amount = amount(*_SECONDS)(value)
    return parsed.value * _SECONDS[parsed.unit]


def _timeout_s(value: object) -> float:
    timeout_s = duration_s(value)
    if not 0.01 <= timeout_s <= 3600:
        raise _BadValue('a duration from "10 ms" to "1 h"')
    return timeout_s


def byte_count(value: object) -> int:
    """A size such as "2 GiB", in bytes."""
    parsed: Amount = amount(*_BYTES)(value)
    return int(parsed.value * _BYTES[parsed.unit])


_BAD_LIMIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(%|samples?)\s*")


def bad_limit(value: object) -> BadLimit:
    """A share such as 0.01 or "1 %", or a number such as "20 samples"."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return BadLimit(float(value))
    found = _BAD_LIMIT.fullmatch(value) if isinstance(value, str) else None
    if found is not None and found[2] == "%" and float(found[1]) <= 100:
        return BadLimit(float(found[1]) / 100)
    if found is not None and found[2] != "%" and found[1].isdigit():
        return BadLimit(samples=int(found[1]))
    raise _BadValue('a share such as "1 %" or 0.01, or a number such as "20 samples"')


# --- the reader ---


def read_table(kind: type[_T], table: Table, where: str) -> _T:
    """Read one dataclass of settings from one table, refusing unknown and missing keys."""
    one: _T = read_tables((kind,), table, where)[0]
    return one


def read_tables(
    kinds: tuple[type, ...], table: Table, where: str, *, also_known: tuple[str, ...] = ()
) -> tuple[Any, ...]:
    """Read several dataclasses of settings that share one flat table; `also_known` are keys that others read."""
    known = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    for key in table:
        if key not in known and key not in also_known:
            raise SettingsError(
                expected="a known setting" + nearest(key, (*sorted(known), *also_known)),
                got=f'"{key}"',
                where=where,
                remedy="Known here: " + ", ".join(sorted((*known, *also_known))) + ".",
            )
    return tuple(_read(kind, table, where) for kind in kinds)


def _read(kind: type[_T], table: Table, where: str) -> _T:
    values = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in table:
            values[field.name] = _parsed(field, table[field.name], where)
        elif field.default is dataclasses.MISSING:
            raise SettingsError(
                expected=f'"{field.name}" ({field.metadata["help"]})',
                got="no such setting",
                where=where,
                remedy=f"Add {field.name} = … there.",
            )
    return kind(**values)


def _parsed(field: dataclasses.Field[Any], value: object, where: str) -> object:
    try:
        return field.metadata["parse"](value)
    except _BadValue as bad:
        raise SettingsError(
            expected=bad.expected,
            got=repr(value),
            where=f"{where}, {field.name}",
            remedy=f"It means: {field.metadata['help']}.",
        ) from None
    except SettingsError as bad:  # of a parser that knows the remedy, and only the place within the setting
        place = f"{where}, {bad.where}" if bad.where else where
        raise SettingsError(expected=bad.expected, got=bad.got, where=place, remedy=bad.remedy) from None


def nearest(got: object, known: Iterable[str]) -> str:
    """The hint that a refusal adds: the known name nearest to what was written, if any is near."""
    near = difflib.get_close_matches(str(got), known)
    return f', perhaps "{near[0]}"' if near else ""


# --- the job file ---


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """The table [job]."""

    name: str = setting(label, "the job's name, in metrics, logs and checkpoints")
    seed: int = setting(whole(0), "the number that all orders and augmentations come from", default=0)
    listen: str = setting(text, "the coordinator's endpoint", default="tcp://127.0.0.1:7400")
    group: int = setting(
        whole(0, 4096),
        "consecutive batches of one shape; 0: as many as the world has ranks when a stream first starts",
        default=0,
    )
    workers: int = setting(whole(0, 1024), "worker processes on this machine; 0: one per core", default=0)
    state: str = setting(
        text, "folder for index, journal and quarantine log, relative to the job file", default=".stoker"
    )
    heartbeat_timeout: float = setting(
        _timeout_s, 'silence after which the other side is suspect, such as "2 s"', default=2.0
    )
    build_timeout: float = setting(
        _timeout_s,
        'longest that one sample may take, such as "60 s": a longer read is an error, else the sample is masked',
        default=60.0,
    )
    accept_graphs: bool = setting(flag, "trainers may send graphs, which can use files of loaders", default=False)
    max_bad: BadLimit = setting(
        bad_limit,
        'most samples that may be bad, "1 %" of them or "20 samples" of an epoch: with more, indexing is refused and a '
        'feed ends ("100 %": never)',
        default=BadLimit(0.5),
    )
    queue_bytes: int = setting(
        byte_count, 'most bytes of built batches that wait in a worker, such as "256 MiB"', default=256 * 2**20
    )
    remote_cache: str = setting(
        text,
        "folder on this machine's disk where remote files are kept, for all its workers; without it remote/ in `state`",
        default="",
    )
    remote_cache_bytes: int = setting(
        byte_count, 'most bytes of remote files that are kept there, such as "200 GiB"', default=32 * 2**30
    )
    feature_cache: str = setting(
        text,
        "folder on this machine's disk where samples are kept as the transforms made them, for all its workers; "
        "without it features/ in `state`",
        default="",
    )
    feature_cache_bytes: int = setting(
        byte_count, 'most bytes of samples that are kept there, such as "50 GiB"; "0 B": none are', default=0
    )
    float32: str = setting(
        choice(*FLOAT32_FORMS),
        "precision that float32 values have, by whatever way they come; bfloat16 and float16 halve what goes by TCP",
        default="float32",
    )
    compression: str = setting(
        choice(*COMPRESSIONS), "compression of batches that go by TCP: none, lz4 or zstd", default="none"
    )
    keys: str = setting(
        text, "folder with CURVE keys; without it there is no encryption and only loopback is served", default=""
    )
    metrics_port: int = setting(
        whole(0, 65535),
        "loopback port of the coordinator's metrics, those of this machine's workers follow; 0: any free ports",
        default=0,
    )

    @property
    def heartbeat_timeout_s(self) -> float:
        """In seconds."""
        return self.heartbeat_timeout

    @property
    def build_timeout_s(self) -> float:
        """In seconds."""
        return self.build_timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """What every table [streams.<name>] may hold; source, planner and transforms add settings of their own."""

    source: str = setting(text, 'such as "manifest": the kind of source; or else there are `sources`', default="")
    sources: tuple[Table, ...] = setting(
        tables, "several sources that are mixed, each a table with its `source` and settings", default=()
    )
    length: str = setting(text, "the key whose length decides the bucket")
    transforms: tuple[str, ...] = setting(texts, "transforms in order: built-in names, or module:function", default=())
    filter: str = setting(
        text,
        "a condition on lengths and columns, such as 'text / audio < 0.3': samples that do not meet it are left out",
        default="",
    )
    like: str = setting(text, "another stream whose settings hold here too, unless said otherwise", default="")
    evaluation: bool = setting(
        flag, "the same epoch each time it is opened; true where `like` is used, unless said otherwise", default=False
    )
    mode: str = setting(choice("lockstep", "queue"), "trainers share batches in step, or by leases", default="lockstep")
    lease_timeout: float = setting(
        _timeout_s, 'in queue mode, the least time that a trainer has for a batch, such as "30 s"', default=30.0
    )
    tries: int = setting(whole(1, 100), "in queue mode, after so many failures a batch is given up", default=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job file as read: the job's settings, and the table of each stream with `like` resolved."""

    settings: JobSettings
    streams: Mapping[str, Table]


def parse_job(toml: str, where: str) -> Job:
    """Read a job file; the tables of streams stay raw until source, planner and transforms have read their parts."""
    try:
        document = tomllib.loads(toml)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(expected="a TOML file", got=str(error), where=where, remedy="Mend the syntax.") from None
    for key in document:
        if key not in ("job", "streams"):
            near = nearest(key, ("job", "streams"))
            raise SettingsError(
                expected=f"the tables [job] and [streams.<name>]{near}",
                got=f"[{key}]",
                where=where,
                remedy="Rename it.",
            )
    job, streams = document.get("job", {}), document.get("streams", {})
    if not isinstance(job, dict):
        raise SettingsError(
            expected="the table [job]", got=f"job = {job!r}", where=where, remedy='Write [job] and below it name = "…".'
        )
    if not streams or not isinstance(streams, dict) or not all(isinstance(table, dict) for table in streams.values()):
        raise SettingsError(
            expected="at least one table [streams.<name>]",
            got=repr(streams) if streams else "none",
            where=where,
            remedy="Add [streams.train].",
        )
    _check_names(streams, where)
    settings = read_table(JobSettings, job, f"{where}, [job]")
    return Job(settings=settings, streams={name: _resolved(name, streams, where) for name in streams})


def _check_names(streams: Mapping[str, Table], where: str) -> None:
    for name in streams:
        try:
            label(name)
        except _BadValue as bad:
            raise SettingsError(
                expected=f"a stream's name of {bad.expected}",
                got=repr(name),
                where=f"{where}, [streams.<name>]",
                remedy="Rename the stream.",
            ) from None


def _resolved(name: str, streams: Mapping[str, Table], where: str) -> Table:
    """The stream's own table, laid over that of the stream it is like; sub-tables are merged key by key."""
    own = streams[name]
    model = own.get("like")
    if model is None:
        return own
    if not isinstance(model, str) or model not in streams or "like" in streams[model] or model == name:
        others = ", ".join(f'"{other}"' for other in streams if other != name and "like" not in streams[other])
        place = f"{where}, [streams.{name}], like"
        raise SettingsError(
            expected=f"the name of a stream that is not like another ({others})",
            got=repr(model),
            where=place,
            remedy="Name one of these.",
        )
    merged: dict[str, Any] = {"evaluation": True}
    other_form = "sources" if "source" in own else "source" if "sources" in own else ""
    for table in ({key: value for key, value in streams[model].items() if key != other_form}, own):
        for key, value in table.items():
            both = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = {**merged[key], **value} if both else value
    if merged["evaluation"] and "epoch_parts" not in own:
        merged.pop("epoch_parts", None)  # each epoch is the same, so with parts only the first part would ever be read
    return merged

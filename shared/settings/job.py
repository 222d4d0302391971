"""The job file: the settings of [job] and of every stream's table, and its parser.

Rules: text in, dataclasses out. A setting is declared once, with its parser and its help text, and the tables of
docs/settings.md are made from these declarations. Pure.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from shared.bad_limit import BadLimit
from shared.errors import SettingsError, require
from shared.settings.parsers import (
    BadValue,
    Table,
    bad_limit,
    by_key,
    byte_count,
    choice,
    flag,
    label,
    named,
    nearest,
    refuse_beyond_bounds,
    setting,
    tables,
    text,
    texts,
    timeout_s,
    whole,
)
from shared.settings.tables import read_table
from shared.wire.payload import COMPRESSIONS, FLOAT32_FORMS

if TYPE_CHECKING:
    from collections.abc import Mapping

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

__all__ = ["LARGEST_SAMPLE", "PROCESSORS", "Job", "JobSettings", "PaddingValue", "StreamSettings", "parse_job"]

#: Levels of x86-64 processors, as its psABI, glibc and numpy name them; each has all that those before it have.
PROCESSORS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")

#: What a key is padded with: a number, or "tokenizer" for the padding token of its tokenizer.
PaddingValue: TypeAlias = "float | str"

#: Default limit on a decoded sample's bytes: 4.6 hours of audio at 16 kHz.
LARGEST_SAMPLE = 2**30


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
        timeout_s, 'silence after which the other side is suspect, such as "2 s"', default=2.0
    )
    build_timeout: float = setting(
        timeout_s,
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
    largest_sample: int = setting(
        byte_count,
        'most bytes that one sample may have once decoded, such as "1 GiB": indexing leaves out larger ones; and a '
        "sample that runs out of memory is masked only if this much was free, otherwise the machine is at fault",
        default=LARGEST_SAMPLE,
        later=True,
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
    share: bool = setting(
        flag,
        "built batches go to other jobs on this machine as well, and come from them, where the bytes are the same",
        default=False,
    )
    share_bytes: int = setting(
        byte_count,
        "most bytes of such batches, the newest ones, in memory: how far jobs may be apart; the first job decides",
        default=2**30,
    )
    bundle_bytes: int = setting(
        byte_count,
        "most bytes that hosts which join by endpoint fetch: job file, index, and files that transforms name",
        default=2**30,
    )
    not_finite: str = setting(
        choice("keep", "mask"),
        "what becomes of samples that have NaN or infinite values as floats: they are kept, or their rows are masked; "
        "they are counted in any case",
        default="keep",
    )
    float32: str = setting(
        choice(*FLOAT32_FORMS),
        "precision that float32 values have, by whatever way they come; bfloat16 and float16 halve what goes by TCP",
        default="float32",
    )
    processor: str = setting(
        choice(*PROCESSORS),
        "level of processor that all machines keep to, so that machines of several kinds build the same bytes: "
        "x86-64-v2, x86-64-v3 or x86-64-v4; without it their processors need the same features",
        default="",
        later=True,
    )
    compression: str = setting(
        choice(*COMPRESSIONS), "compression of batches that go by TCP: none, lz4 or zstd", default="none"
    )
    keys: str = setting(
        text, "folder with CURVE keys; without it there is no encryption and only loopback is served", default=""
    )
    metrics_port: int = setting(
        whole(0, 65535),
        "port of the coordinator's metrics, those of this machine's workers follow; 0: any free ports",
        default=0,
    )

    @property
    def heartbeat_timeout_s(self) -> float:
        """Return after how many seconds of silence the other side is suspect."""
        return self.heartbeat_timeout

    @property
    def build_timeout_s(self) -> float:
        """Return how many seconds a sample may take: a longer read is an error, and another sample is masked."""
        return self.build_timeout


def _padding_value(value: object) -> PaddingValue:
    """Return a number, true or false, or "tokenizer"; raise BadValue for anything else."""
    if isinstance(value, int | float) or (isinstance(value, str) and value == "tokenizer"):
        return value
    raise BadValue('a number, true, false or "tokenizer"')


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """Settings of every table [streams.<name>]; source, planner and transforms add their own."""

    source: str = setting(text, 'such as "manifest": the kind of source; or else there are `sources`', default="")
    sources: tuple[Table, ...] = setting(
        tables, "several sources that are mixed, each a table with its `source` and settings", default=()
    )
    length: str = setting(
        text,
        "the key whose length decides the bucket; required without `rows`, which makes one bucket then",
        default="",
    )
    transforms: tuple[str, ...] = setting(texts, "transforms in order: built-in names, or module:function", default=())
    filter: str = setting(
        text,
        "a condition on lengths and columns, such as 'text / audio < 0.3': samples that do not meet it are left out",
        default="",
    )
    padding: tuple[tuple[str, PaddingValue], ...] = setting(
        by_key(_padding_value),
        "what fills a key where no sample is, instead of 0: `{ tokens = 3, labels = -100 }`, or "
        '`{ tokens = "tokenizer" }` for the padding token of its tokenizer',
        default=(),
    )
    strings: tuple[tuple[str, str], ...] = setting(
        named,
        'strings that come with each batch, such as `["text", "id"]`: values of a sample, or columns of its source; '
        '`{ transcript = "text" }` gives them other keys there',
        default=(),
    )
    like: str = setting(text, "another stream whose settings hold here too, unless said otherwise", default="")
    evaluation: bool = setting(
        flag, "the same epoch each time it is opened; true where `like` is used, unless said otherwise", default=False
    )
    mode: str = setting(choice("lockstep", "queue"), "trainers share batches in step, or by leases", default="lockstep")
    lease_timeout: float = setting(
        timeout_s, 'in queue mode, the least time that a trainer has for a batch, such as "30 s"', default=30.0
    )
    tries: int = setting(whole(1, 100), "in queue mode, after so many failures a batch is given up", default=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Parsed job file: the job's settings, and the table of each stream with `like` resolved."""

    settings: JobSettings
    streams: Mapping[str, Table]


def parse_job(toml: str, where: str) -> Job:
    """Parse a job file; raise SettingsError if it is not valid.

    That is wrong syntax, a value that no setting takes, an unknown table, an unknown, missing or bad setting of the
    job, no stream, a stream that is no table or whose name is no label, or a wrong `like`. The tables of streams stay
    raw: source, planner and transforms read their parts later.
    """
    document = _document(toml, where)
    for key in document:
        if key not in ("job", "streams"):
            raise SettingsError(
                expected="the tables [job] and [streams.<name>]" + nearest(key, ("job", "streams")),
                got=f"[{key}]",
                where=where,
                remedy="Rename it.",
            )
    job, streams = document.get("job", {}), document.get("streams", {})
    require(
        isinstance(job, dict),
        expected="the table [job]",
        got=f"job = {job!r}",
        where=where,
        remedy='Write [job] and below it name = "…".',
    )
    require(
        isinstance(streams, dict) and streams != {} and all(isinstance(table, dict) for table in streams.values()),
        expected="at least one table [streams.<name>]",
        got=repr(streams) if streams else "none",
        where=where,
        remedy="Add [streams.train].",
    )
    _check_names(streams, where)
    return Job(
        settings=read_table(JobSettings, job, f"{where}, [job]"),
        streams={name: _resolved(name, streams, where) for name in streams},
    )


def _document(toml: str, where: str) -> dict[str, Any]:
    """Return the parsed TOML; raise SettingsError for wrong syntax, and for values that no setting takes."""
    try:
        document: dict[str, Any] = tomllib.loads(toml)
        refuse_beyond_bounds(document)
    except BadValue as bad:
        raise SettingsError(
            expected=bad.expected, got=bad.got, where=where, remedy="No setting takes that: mend the file."
        ) from None
    except (ValueError, RecursionError) as error:  # also of a number of very many digits, and of very many brackets
        raise SettingsError(
            expected="a TOML file", got=_wrong_syntax(error), where=where, remedy="Mend the syntax."
        ) from None
    return document


def _wrong_syntax(error: ValueError | RecursionError) -> str:
    """Return what is wrong with the syntax.

    A number of thousands of digits is described without Python's own message, which advises to raise its limit.
    """
    if isinstance(error, RecursionError):
        return "brackets within brackets, without end"
    is_number = not isinstance(error, tomllib.TOMLDecodeError)
    return "a number of thousands of digits" if is_number else str(error)


def _check_names(streams: Mapping[str, Table], where: str) -> None:
    """Raise SettingsError if a stream's name is not a label."""
    for name in streams:
        try:
            label(name)
        except BadValue as bad:
            raise SettingsError(
                expected=f"a stream's name of {bad.expected}",
                got=repr(name),
                where=f"{where}, [streams.<name>]",
                remedy="Rename the stream.",
            ) from None


def _resolved(name: str, streams: Mapping[str, Table], where: str) -> Table:
    """Return the stream's own table laid over the one it is `like`; sub-tables are merged key by key.

    Without `like` it is the stream's own table. Otherwise it is for evaluation unless a table sets that, and then it
    inherits no `epoch_parts`, and of a curriculum of `max_length` only the last stage. Raise SettingsError if `like`
    names no other stream of the job, or one that is like another itself.
    """
    own = streams[name]
    model = own.get("like")
    if model is None:
        return own
    if not isinstance(model, str) or model not in streams or "like" in streams[model] or model == name:
        others = ", ".join(f'"{other}"' for other in streams if other != name and "like" not in streams[other])
        raise SettingsError(
            expected=f"the name of a stream that is not like another ({others})",
            got=repr(model),
            where=f"{where}, [streams.{name}], like",
            remedy="Name one of these.",
        )
    # A stream that is like another is usually the one that judges it: for evaluation, unless a table sets it.
    merged: dict[str, Any] = {"evaluation": True}
    for table in (_inherited(streams[model], own), own):  # later ones take precedence
        for key, value in table.items():
            both = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = {**merged[key], **value} if both else value
    if merged["evaluation"]:  # each epoch is the same, so only the first part or stage would ever be read
        if "epoch_parts" not in own:
            merged.pop("epoch_parts", None)
        if "max_length" not in own and _is_curriculum(merged.get("max_length")):
            merged["max_length"] = merged["max_length"][max(merged["max_length"], key=int)]
    return merged


#: Settings of which a stream has one form; one that it has itself takes the place of the others that it would inherit.
_EXCLUDED = {
    "source": ("sources",),
    "sources": ("source",),
    "budget": ("rows",),
    "rows": ("budget", "max_rows", "rows_multiple", "quadratic_length", "limits"),
}


def _inherited(model: Table, own: Table) -> Table:
    """Return the settings that a stream inherits.

    The other form of sources and of the size of batches is left out, and so are tables of transforms that the stream
    does not have.
    """
    other_forms = {other for name, others in _EXCLUDED.items() if name in own for other in others}
    # Such a table would be an unknown setting of a stream without that transform.
    gone = _transform_tables(model) - _transform_tables({**model, **own})
    return {
        key: value
        for key, value in model.items()
        if key not in other_forms and not (key in gone and isinstance(value, dict))
    }


def _transform_tables(stream: Table) -> set[str]:
    """Return the names that tables of a stream's transforms may have: whole names, and parts after a colon; or none."""
    names = stream.get("transforms", ())
    known = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    return {part for name in known for part in (name, name.rpartition(":")[2])}


def _is_curriculum(value: object) -> bool:
    """Return whether a value is a table that is not empty and whose keys are all epochs, of at most 9 digits."""
    if not isinstance(value, dict) or not value:
        return False
    return all(epoch.isascii() and epoch.isdecimal() and len(epoch) < 10 for epoch in value)

"""One Markdown table for each benchmark, from its kept runs.

A cell has the figure of the last run and, if there are several, the range over them in brackets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["TABLES", "Run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of a benchmark: its time (UTC), its machine and command, and the figures that it printed."""

    benchmark: str
    date: str
    machine: str
    command: str
    figures: Mapping[str, Any]


#: How the pages call the paths and payloads of `data_path`.
_PATHS = {
    "shared_memory": "Stoker, shared memory",
    "tcp": "Stoker, TCP",
    "tcp_keys": "Stoker, TCP with keys",
    "torch_tensors": "Stoker into PyTorch",
    "jax_arrays": "Stoker into JAX",
    "tfdata_service": "tf.data service",
    "tfdata_service_default": "tf.data service as it comes (compressed)",
    "torch": "torch DataLoader",
    "grain": "Grain",
    "raw_zmq": "bare pyzmq",
    "memcpy": "memcpy",
}
_PAYLOADS = {"features_10mb": "10 MB features", "tokens_small": "64 x 50 tokens", "dict_bucketed": "bucketed dict"}
_KINDS = {"bare": "bare pyzmq", "open": "Stoker without keys", "sealed": "Stoker with keys"}


#: How the pages call the formats of `sources`; one that is missing here goes by its own name.
_FORMATS = {
    "tfrecord": "TFRecord",
    "webdataset": "WebDataset",
    "array_record": "ArrayRecord",
    "parquet": "Parquet",
    "kaldi": "Kaldi features",
    "kaldi_compressed": "Kaldi features, compressed",
    "hdf5": "HDF5",
    "hdf5_chunks": "HDF5, gzip",
    "manifest_wav": "manifest, WAV to log-mel",
    "manifest_flac": "manifest, FLAC to log-mel",
    "hub_audio_wav": "Audio column, WAV to log-mel",
    "hub_audio_flac": "Audio column, FLAC to log-mel",
    "hub_images_source": "Image column, JPEG resized by the source",
    "hub_images_transform": "Image column, JPEG resized by a transform",
    "jsonl": "JSON lines",
    "tfds": "TensorFlow Datasets",
    "tokens": "ragged arrays",
    "remote": "remote files",
}
_STOKER = "stoker"
_NOT_MEASURED = "-"


def _data_path(runs: Sequence[Run]) -> str:
    payloads = dict.fromkeys(row["payload"] for row in runs[-1].figures["rows"])
    return "\n\n".join([_caption(runs), *(_of_payload(runs, payload) for payload in payloads)])


def _of_payload(runs: Sequence[Run], payload: str) -> str:
    def cells(path: str) -> list[str]:
        rows = [row for run in runs for row in run.figures["rows"] if (row["payload"], row["path"]) == (payload, path)]
        return [
            _PATHS[path],
            _spread([row["batches_per_s"] for row in rows], ".0f"),
            _spread([row["ratio_to_tfdata_service"] for row in rows], ".2f"),
            _spread([row["worker_cpu_ms"] for row in rows], ".2f"),
            _spread([row["trainer_cpu_ms"] for row in rows], ".2f"),
        ]

    head = [_PAYLOADS[payload], "batches/s", "times tf.data service", "loader CPU ms", "trainer CPU ms"]
    paths = {row["path"] for row in runs[-1].figures["rows"] if row["payload"] == payload}
    return _table(head, [cells(path) for path in _PATHS if path in paths])


def _between_hosts(runs: Sequence[Run]) -> str:
    def cells(case: str, kind: str) -> list[str]:
        rows = [row for run in runs for row in run.figures["rows"] if (row["case"], row["kind"]) == (case, kind)]
        ends = [end for row in rows for end in row["spread"]]
        return [
            case.replace("x", " x "),
            _KINDS[kind],
            _spread([row["batches_per_s"] for row in rows], ".0f"),
            _with_ends(rows[-1]["ratio_to_bare"], ends, ".2f"),
            _spread([row["loader_cpu_ms"] for row in rows], ".1f"),
            _spread([row["trainer_cpu_ms"] for row in rows], ".1f"),
        ]

    head = ["workers x trainers", "by", "batches/s", "of bare (range over rounds)", "loader CPU ms", "trainer CPU ms"]
    rows = [cells(row["case"], row["kind"]) for row in runs[-1].figures["rows"]]
    return f"{_caption(runs)}\n\n{_table(head, rows, texts=2)}"


def _joining_hosts(runs: Sequence[Run]) -> str:
    fresh = [run.figures["fresh"] for run in runs]
    crowd = [run.figures["crowd"] for run in runs]
    last = crowd[-1]

    def of(parts: list[Any], name: str, form: str, unit: str) -> str:
        return _spread([part[name] for part in parts], form, unit)

    def between(parts: list[Any], name: str, spread: str, form: str, unit: str) -> str:
        return _with_ends(parts[-1][name], [end for part in parts for end in part[spread]], form, unit)

    fetched_gb = last["hosts"] * last["bundle_mb"] / 1e3
    rows = [
        ["a fresh host, from its start to a trainer's first batch"],
        ["of that until its bundle was there"],
        [f"{last['hosts']} hosts at once, until all have their bundles, {fetched_gb:.1f} GB in all"],
        [f"`Progress` of {last['hosts']} trainers meanwhile, 99th percentile"],
        ["by how much that is above the same without the hosts"],
        ["the coordinator's own memory grew by"],
        ["by at most"],
    ]
    figures = [
        between(fresh, "first_batch_s", "first_batch_spread", ".1f", " s"),
        of(fresh, "fetched_s", ".1f", " s"),
        of(crowd, "fetched_s", ".1f", " s"),
        of(crowd, "p99_ms", ".0f", " ms"),
        between(crowd, "more_ms", "more_spread", ".0f", " ms"),
        of(crowd, "grown_mib", ".0f", " MiB"),
        of(crowd, "most_grown_mib", ".0f", " MiB"),
    ]
    cells = [[*row, figure] for row, figure in zip(rows, figures, strict=True)]
    return f"{_caption(runs)}\n\n{_table(['what', 'median (range over rounds)'], cells)}"


def _fleet_size(runs: Sequence[Run]) -> str:
    def cells(process: str, workers: int) -> list[str]:
        sizes = [size[process] for run in runs for size in run.figures["sizes"] if size["workers"] == workers]
        return [
            process,
            f"{workers:,}",
            _spread([size["connections"] for size in sizes], ",d"),
            _spread([size["messages_per_s"] for size in sizes], ",d"),
            _spread([size["kb_per_s"] for size in sizes], ".0f"),
            _spread([size["cpu_cores"] for size in sizes], ".2f"),
            _spread([size["own_mib"] for size in sizes], ".0f", " MiB"),
        ]

    head = ["process", "workers", "connections", "messages/s", "kB/s", "cores", "own memory"]
    counts = [size["workers"] for size in runs[-1].figures["sizes"]]
    rows = [cells(process, count) for process in ("coordinator", "trainer") for count in counts]
    return f"{_caption(runs)}\n\n{_table(head, rows)}"


def _lanes(runs: Sequence[Run]) -> str:
    rows = runs[-1].figures["rows"]
    head = ["LibriSpeech's lengths, chunk", "recordings", *(f"{lanes} lanes" for lanes in rows[0]["masked"])]
    cells = [
        [row["lists"], f"{row['recordings']:,}", *(f"{100 * share:.2f} %" for share in row["masked"].values())]
        for row in rows
    ]
    return f"{_caption(runs)}\n\n{_table(head, cells)}"


def _finite_check(runs: Sequence[Run]) -> str:
    last = runs[-1].figures
    rows = [
        [f"10 MB of {dtype}", _spread([run.figures["large_ms"][dtype] for run in runs], ".2f", " ms")]
        for dtype in last["large_ms"]
    ]
    small = [_spread([run.figures[name] for run in runs], ".1f", " µs") for name in ("small_check_us", "small_us")]
    rows += [["four samples of a few numbers", small[0]], ["building a batch of these", small[1]]]
    return f"{_caption(runs)}\n\n{_table(['batch', 'time'], rows)}"


def _decisions(runs: Sequence[Run]) -> str:
    counts = runs[-1].figures["decide_ms"]
    rows = [[f"{int(count):,}", _spread([run.figures["decide_ms"][count] for run in runs], ".3f")] for count in counts]
    return f"{_caption(runs)}\n\n{_table(['workers', 'CPU ms a decision'], rows)}"


def _sources(runs: Sequence[Run]) -> str:
    rows = runs[-1].figures["rows"]
    sides = dict.fromkeys((row["format"], row["side"]) for row in rows)
    pairs = [
        (name, own, peer)
        for name, own in sides
        for same, peer in sides
        if same == name and own.startswith(_STOKER) and not peer.startswith(_STOKER)
    ]
    out = {(row["format"], row["side"]) for row in rows if row["left_out"]}
    head = ["format", "beside", "first epoch", "later epochs", "CPU µs a sample, later", "of the peer"]
    cells = [
        [
            _FORMATS.get(name, name) + own.removeprefix(_STOKER),
            peer,
            *(["not installed", *3 * [_NOT_MEASURED]] if (name, peer) in out else _beside(runs, name, own, peer)),
        ]
        for name, own, peer in pairs
    ]
    return f"{_caption(runs)}\n\n{_table(head, cells, texts=2)}"


def _beside(runs: Sequence[Run], name: str, own: str, peer: str) -> list[str]:
    """Return the cells of a side of Stoker beside a peer, with a dash for what no run has measured."""

    def spread(epoch: str, figure: Callable[[float, float], float], form: str) -> str:
        found = [_cpu_us(run, name, epoch) for run in runs]
        values = [figure(cpu_us[own], cpu_us[peer]) for cpu_us in found if {own, peer} <= cpu_us.keys()]
        return _spread(values, form) if values else _NOT_MEASURED

    return [
        spread("first", lambda ours, theirs: theirs / ours, ".2f"),
        spread("later", lambda ours, theirs: theirs / ours, ".2f"),
        spread("later", lambda ours, _theirs: ours, ".1f"),
        spread("later", lambda _ours, theirs: theirs, ".1f"),
    ]


def _cpu_us(run: Run, name: str, epoch: str) -> dict[str, float]:
    """Return the CPU time a sample of each side that a run has measured, by side."""
    rows = [row for row in run.figures["rows"] if (row["format"], row["epoch"]) == (name, epoch)]
    return {row["side"]: row["cpu_us_per_sample"] for row in rows if not row["left_out"]}


#: The tables by the names of their benchmarks.
TABLES: dict[str, Callable[[Sequence[Run]], str]] = {
    "between_hosts": _between_hosts,
    "data_path": _data_path,
    "decisions": _decisions,
    "finite_check": _finite_check,
    "fleet_size": _fleet_size,
    "joining_hosts": _joining_hosts,
    "lanes": _lanes,
    "sources": _sources,
}


def _caption(runs: Sequence[Run]) -> str:
    last = runs[-1]
    load = last.figures.get("load_1_min", last.figures.get("load_15_min"))
    busy = "" if load is None else f", load {load:.1f}"
    several = f"; in brackets the range over {len(runs)} runs" if len(runs) > 1 else ""
    return f"`{last.command}`, {last.date[:10]}, {last.machine}{busy}{several}:"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1) -> str:
    """Return a table whose first columns have texts and whose others have figures."""
    rule = ["---"] * texts + ["--:"] * (len(head) - texts)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def _spread(values: Sequence[float], form: str, unit: str = "") -> str:
    return _with_ends(values[-1], values, form, unit)


def _with_ends(last: float, ends: Iterable[float], form: str, unit: str = "") -> str:
    """Return a figure with the range of `ends` behind it, unless they read the same."""
    low, high = format(min(ends := [*ends]), form), format(max(ends), form)
    return f"{last:{form}}{unit}" + (f" ({low} to {high})" if low != high else "")

"""`loader-server show`: any batch of a job, shown as a table, as JSON, as a picture and as sound.

A minibatch is a number, so no job has to run. Rules: what is printed is made of one dict of plain facts. The batch is
built in `shown_batch`, and drawn in `batch_picture`.
"""

from __future__ import annotations

import json
import math
import wave
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from loader_server.commands.plan import found, open_stream, places_table
from loader_server.commands.recall import recall
from loader_server.commands.showing.batch_picture import draw
from loader_server.commands.showing.shown_batch import BatchNumber, ShownBatch, ShownSample, build_batch
from shared.errors import SettingsError
from shared.system.system_errors import system_error
from shared.wire.batch_layout import RESET

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loader_server.job_file import JobFile
    from loader_server.transforms.generators import Drawn
    from shared.errors import StokerError

__all__ = ["ShowQuestion", "show"]

#: Limits of a text's characters, and of a draw's values, in the table.
_SHOWN_TEXT = 60
_SHOWN_VALUES = 4
_LEAST_NAME = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowQuestion:
    """The options of the command: `group` 0 stands for the job's own, `wav` is a row or -1."""

    stream: str
    epoch: int
    batch: int
    group: int
    sample: str
    png: Path | None
    wav: int
    as_json: bool


def show(job: JobFile, asked: ShowQuestion) -> None:
    """Print one batch, or the places of a sample; write the picture and the sound that are asked for.

    A batch that can be printed but not drawn is printed first; then the error is raised.
    """
    stream = open_stream(job, asked.stream)
    remembered = recall(job)
    group = asked.group or job.settings.group or remembered.groups.get(asked.stream, 1)
    try:
        if asked.sample:
            places = found(stream, asked.sample, group, asked.epoch)
            _print(places, [places_table(places)], as_json=asked.as_json)
            return
        of = BatchNumber(epoch=asked.epoch, number=asked.batch, group=group)
        batch = build_batch(stream, of, remembered.culprits)
    finally:
        stream.close()
    facts = _facts(batch)
    not_drawn = _picture(batch, asked.png, facts) if asked.png is not None else None
    if asked.wav >= 0:
        facts["wav"] = _write_sound(batch, asked.wav)
    _print(facts, _tables(facts), as_json=asked.as_json)
    if not_drawn is not None:
        raise not_drawn


def _picture(batch: ShownBatch, path: Path, facts: dict[str, Any]) -> StokerError | None:
    """Draw a batch, and add the picture and what it leaves out to the facts; return the error if that fails."""
    try:
        left_out = draw(batch, path)
    except SettingsError as error:
        return error
    except OSError as error:
        return system_error(error, str(path))
    facts["png"] = str(path)
    if left_out:
        facts["png_leaves_out"] = left_out
    return None


def _print(facts: dict[str, Any], tables: list[Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts))
    else:
        Console().print(*tables, sep="\n", soft_wrap=True)


# --- facts ---


def _facts(batch: ShownBatch) -> dict[str, Any]:
    stream, reasons = batch.stream, Counter(one.error.reason for one in batch.samples if one.error is not None)
    weight = batch.arrays["weight"]
    return {
        "stream": stream.name,
        "epoch": batch.of.epoch,
        "batch": batch.of.number,
        "batches": batch.batches,
        "group": batch.of.group,
        "bucket": batch.bucket,
        "plan": stream.digest,
        "digest": f"{batch.digest:016x}",
        "shapes": {field.key: list(batch.arrays[field.key].shape) for field in stream.chain.fields},
        "rows": {
            "all": len(weight),
            "valid": batch.rows,
            "empty": len(weight) - len({one.row for one in batch.samples}),
        },
        "masked": dict(sorted(reasons.items())),
        "samples": [_sample_facts(batch, one) for one in batch.samples],
    }


def _sample_facts(batch: ShownBatch, one: ShownSample) -> dict[str, Any]:
    packed = batch.stream.packed
    carried = {"reset": bool(batch.arrays[RESET.key][one.row])} if batch.stream.carries else {}
    keys = [field.key for field in batch.stream.chain.fields if field.padded]
    return {
        "row": one.row,
        "offset": one.offset,
        **carried,
        "sample": one.number,
        "name": one.name,
        "place": one.place,
        "lengths": {} if packed else {key: int(batch.arrays[f"{key}_length"][one.row]) for key in keys},
        "texts": dict(one.texts),
        "masked": None if one.error is None else {"reason": one.error.reason, "error": str(one.error)},
        "drawn": [_draw_facts(step, drawn) for step, drawn in one.drawn],
    }


def _draw_facts(step: str, drawn: Drawn) -> dict[str, Any]:
    """Return the first values of a draw and, if there are more numbers, their mean and deviation."""
    got = np.asarray(drawn.got)
    facts: dict[str, Any] = {"transform": step, "method": drawn.method, "shape": list(got.shape)}
    facts["first"] = got.ravel()[:_SHOWN_VALUES].tolist()
    if got.size > _SHOWN_VALUES and np.issubdtype(got.dtype, np.number):
        facts |= {"mean": float(got.mean()), "deviation": float(got.std())}
    return facts


# --- for people ---


def _tables(facts: dict[str, Any]) -> list[Any]:
    keys = list(facts["samples"][0]["lengths"]) if facts["samples"] else []
    texts = list(dict.fromkeys(key for one in facts["samples"] for key in one["texts"]))
    title = "{stream}, epoch {epoch}, batch {batch} of {batches} (bucket {bucket}, groups of {group})".format(**facts)
    table = Table("row", "sample", title=title, caption=_caption(facts), box=SIMPLE, caption_justify="left")
    table.add_column("name", overflow="fold", min_width=_LEAST_NAME)
    carries = any("reset" in one for one in facts["samples"])
    for name in (*(f"{key}\nsteps" for key in keys), *(["reset"] if carries else []), *texts, "drawn", "masked"):
        table.add_column(name)
    for one in facts["samples"]:
        cells = [f"{one['row']}" + (f" at {one['offset']}" if one["offset"] else ""), str(one["sample"]), one["name"]]
        cells += [str(one["lengths"][key]) for key in keys]
        cells += ["yes" if one["reset"] else ""] if carries else []
        cells += [_shortened(one["texts"].get(key, "")) for key in texts]
        table.add_row(
            *cells, "\n".join(map(_drawn_text, one["drawn"])), one["masked"]["reason"] if one["masked"] else ""
        )
    lines = [f"masked, row {one['row']}: {one['masked']['error']}" for one in facts["samples"] if one["masked"]]
    if "png" in facts:
        without = facts.get("png_leaves_out", [])
        lines.append(f"png: {facts['png']}" + (f", without {', '.join(without)}" if without else ""))
    lines += [f"wav: {facts['wav']}"] if "wav" in facts else []
    return [table, *lines]


def _caption(facts: dict[str, Any]) -> str:
    shapes = ", ".join(f"{key} {' x '.join(map(str, shape))}" for key, shape in facts["shapes"].items())
    masked = ", ".join(f"{count} {reason}" for reason, count in facts["masked"].items()) or "none"
    rows = "{all} rows, {valid} valid, {empty} without a sample".format(**facts["rows"])
    return f"{shapes}; {rows}; masked: {masked}; digest {facts['digest']}"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_TEXT else text[: _SHOWN_TEXT - 1] + "…"


def _drawn_text(drawn: dict[str, Any]) -> str:
    """Return the values as text; if there are many, only their number."""
    what = f"{drawn['transform'].rpartition(':')[2]}: {drawn['method']}"
    if "mean" in drawn:
        return f"{what} x {math.prod(drawn['shape'])}"
    return f"{what} " + ", ".join(
        f"{value:.4g}" if isinstance(value, float) else str(value) for value in drawn["first"]
    )


# --- sound ---


def _write_sound(batch: ShownBatch, row: int) -> str:
    """Write the row's last value that is a sound to a WAV file; return its description.

    Raises SettingsError if the row has no sample or no sound.
    """
    here = [one for one in batch.samples if one.row == row]
    if not here:
        last = max((one.row for one in batch.samples), default=-1)
        raise SettingsError(
            expected=f"a row from 0 to {last}, which has a sample",
            got=str(row),
            where="--wav",
            remedy="Name another row.",
        )
    sound, of = here[0].sound, batch.of
    if sound is None:
        raise SettingsError(
            expected="a row that is a sound, or was made of one",
            got=here[0].error.reason if here[0].error else "a sample without a value that has a rate",
            where=f"--wav, {here[0].name}",
            remedy="Look at it with --png or --json.",
        )
    path = Path(f"{batch.stream.name}-epoch{of.epoch}-batch{of.number}-row{row}.wav")
    with path.open("wb") as opened, wave.open(opened, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sound.rate)
        file.writeframes(_as_int16(sound.values).tobytes())
    return f"{path} ({sound.when}, {len(sound.values) / sound.rate:.2f} s)"


def _as_int16(sound: NDArray[Any]) -> NDArray[np.int16]:
    """Return samples as int16; for floats full scale is 1, and louder samples are clipped."""
    if sound.dtype == np.int16:
        return sound
    return np.round(np.clip(sound.astype(np.float64), -1, 1) * (2**15 - 1)).astype("<i2")

"""`loader-server show`: any batch of a job, shown as a table, as JSON, as a picture and as sound.

A minibatch is a number, so no job has to run. Rules: what is printed is made of one dict of plain facts. The batch is
built in `shown_batch`, and drawn in `batch_picture`.
"""

from __future__ import annotations

import json
import math
import wave
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE
from rich.table import Table

from loader_server.commands.plan_command import find_sample, open_stream, places_table
from loader_server.commands.plan_report import shown_lengths
from loader_server.commands.progress import plain_console
from loader_server.commands.remembered import recall
from loader_server.commands.showing.batch_picture import draw
from loader_server.commands.showing.shown_batch import BatchNumber, ShownBatch, ShownBatches, ShownSample
from loader_server.job_file import read_job
from shared.errors import SettingsError
from shared.system.system_errors import system_error
from shared.wire.batch_layout import RESET

if TYPE_CHECKING:
    import argparse

    from numpy.typing import NDArray

    from loader_server.transforms.generators import Drawn
    from shared.errors import StokerError

__all__ = ["run"]

#: Limits of a text's characters, and of a draw's values, in the table.
_SHOWN_TEXT = 60
_SHOWN_VALUES = 4
_LEAST_NAME = 16


def run(options: argparse.Namespace) -> int:
    """Print one batch, or the places of a sample; write the picture and the sound that are asked for.

    Return the exit code. If the picture cannot be written, the batch is printed first; then the error is raised. Raises
    SettingsError for a mistake in the job file, or a stream, batch, sample or row that it does not have, ValueError if
    no key can be drawn, MachineError or MemoryError if memory or descriptors ran out, OSError if the sound cannot be
    written, and what `open_stream`, `find_sample`, `ShownBatches.build` and `recall` raise, such as a ReadError.
    """
    job = read_job(options.job)
    stream = open_stream(job, options.stream)
    groups, culprits = recall(job)
    group = options.group or job.settings.group or groups.get(options.stream, 1)
    try:
        if options.sample:
            places = find_sample(stream, options.sample, group, options.epoch)
            _print(places, [places_table(places)], as_json=options.json)
            return 0
        position = BatchNumber(epoch=options.epoch, number=options.batch, group=group)
        batch = ShownBatches(stream, culprits).build(position)
    finally:
        stream.close()
    facts = _facts(batch)
    not_drawn = _picture(batch, options.png, facts) if options.png is not None else None
    if options.wav >= 0:
        facts["wav"] = _write_sound(batch, options.wav)
    _print(facts, _tables(facts), as_json=options.json)
    if not_drawn is not None:
        raise not_drawn
    return 0


def _picture(batch: ShownBatch, path: Path, facts: dict[str, Any]) -> StokerError | None:
    """Draw a batch, and add the picture and the keys it lacks to the facts; return the error if that fails, or None.

    Such errors are missing matplotlib, and a file that cannot be written; others are raised. ValueError of `draw`
    passes through.
    """
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
        plain_console().print(*tables, sep="\n", soft_wrap=True)


# --- facts ---


def _facts(batch: ShownBatch) -> dict[str, Any]:
    stream, weight = batch.stream, batch.arrays["weight"]
    reasons = Counter(sample.error.reason for sample in batch.samples if sample.error is not None)
    return {
        "stream": stream.name,
        "epoch": batch.position.epoch,
        "batch": batch.position.number,
        "batches": batch.batches,
        "group": batch.position.group,
        "bucket": batch.bucket,
        "plan": stream.digest,
        "digest": f"{batch.digest:016x}",
        "shapes": {field.key: list(batch.arrays[field.key].shape) for field in stream.chain.fields},
        "rows": {
            "all": len(weight),
            "valid": batch.rows,
            "empty": len(weight) - len({sample.row for sample in batch.samples}),
        },
        "masked": dict(sorted(reasons.items())),
        "samples": [_sample_facts(batch, sample) for sample in batch.samples],
    }


def _sample_facts(batch: ShownBatch, sample: ShownSample) -> dict[str, Any]:
    packed = batch.stream.packed
    carried = {"reset": bool(batch.arrays[RESET.key][sample.row])} if batch.stream.carries else {}
    fields = [field for field in batch.stream.chain.fields if field.padded]
    of_keys = {field.key: f"{field.key}_length" for field in fields}
    of_keys |= {f"{field.key}_width": f"{field.key}_width" for field in fields if field.is_wide}
    return {
        "row": sample.row,
        "offset": sample.offset,
        **carried,
        "sample": sample.number,
        "name": sample.name,
        "place": sample.place,
        # The length of a packed row is that of all its samples together.
        "lengths": {} if packed else {key: int(batch.arrays[of][sample.row]) for key, of in of_keys.items()},
        "texts": dict(sample.texts),
        "masked": None if sample.error is None else {"reason": sample.error.reason, "error": str(sample.error)},
        "drawn": [_draw_facts(step, drawn) for step, drawn in sample.drawn],
    }


def _draw_facts(step: str, drawn: Drawn) -> dict[str, Any]:
    """Return transform, method, shape and first values of a draw; if there are more numbers, mean and deviation too."""
    got = np.asarray(drawn.got)
    facts: dict[str, Any] = {"transform": step, "method": drawn.method, "shape": list(got.shape)}
    facts["first"] = got.ravel()[:_SHOWN_VALUES].tolist()
    if got.size > _SHOWN_VALUES and np.issubdtype(got.dtype, np.number):
        facts |= {"mean": float(got.mean()), "deviation": float(got.std())}
    return facts


# --- for people ---


def _tables(facts: dict[str, Any]) -> list[Any]:
    """Return the table of the batch, and lines on errors, picture and sound.

    There is a line for each masked row, and none on picture and sound unless they were written.
    """
    samples = facts["samples"]
    lengths = samples[0]["lengths"] if samples else {}
    keys = [(key, "size" if f"{key}_width" in lengths else "steps") for key in shown_lengths(lengths)]
    texts = list(dict.fromkeys(key for sample in samples for key in sample["texts"]))
    carries = any("reset" in sample for sample in samples)
    title = "{stream}, epoch {epoch}, batch {batch} of {batches} (bucket {bucket}, groups of {group})".format(**facts)
    table = Table("row", "sample", title=title, caption=_caption(facts), box=SIMPLE, caption_justify="left")
    table.add_column("name", overflow="fold", min_width=_LEAST_NAME)
    for name in (*(f"{key}\n{unit}" for key, unit in keys), *(["reset"] if carries else []), *texts, "drawn", "masked"):
        table.add_column(name)
    for sample in samples:
        table.add_row(*_cells(sample, texts, carries=carries))
    masked = ((sample["row"], _printable(sample["masked"]["error"])) for sample in samples if sample["masked"])
    lines = [f"masked, row {row}: {error}" for row, error in masked]
    return [table, *lines, *_lines_on_files(facts)]


def _cells(sample: dict[str, Any], texts: list[str], *, carries: bool) -> list[str]:
    """Return the cells of a sample's row, in the order of the columns."""
    row = f"{sample['row']} at {sample['offset']}" if sample["offset"] else str(sample["row"])
    resets = ["yes" if sample["reset"] else ""] if carries else []
    return [
        row,
        str(sample["sample"]),
        _printable(sample["name"]),
        *shown_lengths(sample["lengths"]).values(),
        *resets,
        *(_printable(_shortened(sample["texts"].get(key, ""))) for key in texts),
        "\n".join(map(_drawn_text, sample["drawn"])),
        sample["masked"]["reason"] if sample["masked"] else "",
    ]


def _lines_on_files(facts: dict[str, Any]) -> list[str]:
    """Return lines on the picture, with what it leaves out, and on the sound; none for what was not written."""
    lines = []
    if "png" in facts:
        without = ", ".join(facts.get("png_leaves_out", []))
        lines.append(f"png: {facts['png']}" + (f", without {without}" if without else ""))
    return lines + ([f"wav: {facts['wav']}"] if "wav" in facts else [])


def _caption(facts: dict[str, Any]) -> str:
    shapes = ", ".join(f"{key} {' x '.join(map(str, shape))}" for key, shape in facts["shapes"].items())
    masked = ", ".join(f"{count} {reason}" for reason, count in facts["masked"].items()) or "none"
    rows = "{all} rows, {valid} valid, {empty} without a sample".format(**facts["rows"])
    return f"{shapes}; {rows}; masked: {masked}; digest {facts['digest']}"


def _printable(text: str) -> str:
    """Return a text with Python's escapes for all that a terminal would obey, and for what it cannot show."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_TEXT else text[: _SHOWN_TEXT - 1] + "…"


def _drawn_text(drawn: dict[str, Any]) -> str:
    """Return transform, method and values of a draw as a text; of many numbers, only how many there are."""
    call = f"{drawn['transform'].rpartition(':')[2]}: {drawn['method']}"
    if "mean" in drawn:
        return f"{call} x {math.prod(drawn['shape'])}"
    return f"{call} " + ", ".join(
        f"{value:.4g}" if isinstance(value, float) else str(value) for value in drawn["first"]
    )


# --- sound ---


def _write_sound(batch: ShownBatch, row: int) -> str:
    """Write the last value of the row's first sample that is a sound to a WAV file here; return its description.

    Raises SettingsError if the row has no sample, or its first sample no sound. Raises OSError if the file cannot be
    written.
    """
    in_row = [sample for sample in batch.samples if sample.row == row]
    if not in_row:
        last = max((sample.row for sample in batch.samples), default=-1)
        raise SettingsError(
            expected=f"a row from 0 to {last}, which has a sample",
            got=str(row),
            where="--wav",
            remedy="Name another row.",
        )
    sound, position = in_row[0].sound, batch.position
    if sound is None:
        raise SettingsError(
            expected="a row that is a sound, or was made of one",
            got=in_row[0].error.reason if in_row[0].error else "a sample without a value that has a rate",
            where=f"--wav, {in_row[0].name}",
            remedy="Look at it with --png or --json.",
        )
    path = Path(f"{batch.stream.name}-epoch{position.epoch}-batch{position.number}-row{row}.wav")
    with path.open("wb") as opened, wave.open(opened, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sound.rate)
        file.writeframes(_as_int16(sound.values).tobytes())
    return f"{path} ({sound.when}, {len(sound.values) / sound.rate:.2f} s)"


def _as_int16(sound: NDArray[Any]) -> NDArray[np.int16]:
    """Return samples as int16: such samples as they are; for others full scale is 1, and louder ones are clipped."""
    if sound.dtype == np.int16:
        return sound
    return np.round(np.clip(sound.astype(np.float64), -1, 1) * (2**15 - 1)).astype("<i2")

"""A batch as a picture: a column for each padded key and a strip for each row, with their padding.

A strip shows a spectrogram, a wave or tokens. Rules: the picture shows the numbers of the batch. Padding is hatched, so
that it is not taken for zeros of the data; a masked row is named in red with the reason; packed samples are separated
by lines and numbered. Keys without steps, or with too many axes, are left out and named in the title. matplotlib is
imported only to draw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.commands.plan_report import new_figure
from loader_server.commands.showing.image_strip import draw_image, is_image

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from loader_server.commands.showing.shown_batch import ShownBatch, ShownSample
    from shared.wire.batch_layout import Field

__all__ = ["draw", "segment_starts"]

#: Limit of rows in a picture.
_MOST_ROWS = 24
#: Limit of tokens in a row whose numbers are written.
_MOST_TOKENS = 40
_WIDTH_INCHES = 7.0
_STRIP_INCHES, _IMAGE_INCHES = 0.75, 2.0
_MOST_NAME = 34
#: How padding is drawn.
_HATCHED: dict[str, Any] = {"facecolor": "0.93", "edgecolor": "0.75", "hatch": "////", "linewidth": 0}
#: The colour of the lines between packed samples, which is in none of the colour maps.
_PARTING = "deepskyblue"


def draw(batch: ShownBatch, path: Path) -> list[str]:
    """Write a PNG file of at most `_MOST_ROWS` rows, and return the keys that it leaves out, each with the reason.

    Raises SettingsError without matplotlib, OSError if the file cannot be written, or ValueError if there is no key
    that can be drawn: a padded one with at most two axes, or an image.
    """
    fields = [field for field in batch.stream.fields if _is_drawn(field)]
    rows = min(len(batch.arrays["weight"]), _MOST_ROWS)
    strip = _IMAGE_INCHES if any(map(is_image, fields)) else _STRIP_INCHES
    figure = new_figure(2 + _WIDTH_INCHES * len(fields), 1.2 + strip * rows, where="show --png")
    axes = figure.subplots(rows, len(fields), squeeze=False, sharex="col")
    for column, field in enumerate(fields):
        axes[0, column].set_title(_title(batch, field), fontsize=10)
        axes[-1, column].set_xlabel(
            "pixels"
            if is_image(field)
            else "steps"
            if field.per_second is None
            else f"steps, {field.per_second:g} a second"
        )
        for row in range(rows):
            _draw_row(axes[row, column], batch, field, row)
    for row in range(rows):
        _label(axes[row, 0], [sample for sample in batch.samples if sample.row == row], row)
    left_out = [f"{field.key} ({_why_not(field)})" for field in batch.stream.chain.fields if not _is_drawn(field)]
    without = f"\nwithout {', '.join(left_out)}" if left_out else ""
    figure.suptitle(_headline(batch, rows) + without, fontsize=11)
    figure.savefig(path, format="png", dpi=110)
    return left_out


def _is_drawn(field: Field) -> bool:
    return (field.padded and len(field.shape) <= 2) or is_image(field)


def _why_not(field: Field) -> str:
    return "one value a row" if not field.padded else f"{len(field.shape)} axes a step"


def _headline(batch: ShownBatch, rows: int) -> str:
    position, total = batch.position, len(batch.arrays["weight"])
    more = f", the first {rows} of {total} rows" if rows < total else ""
    where = f"epoch {position.epoch}, batch {position.number} of {batch.batches}, bucket {batch.bucket}"
    return f"{batch.stream.name}, {where}{more}"


def _title(batch: ShownBatch, field: Field) -> str:
    array = batch.arrays[field.key]
    cells = array.shape[0] * array.shape[1] * (array.shape[2] if field.is_wide else 1)
    own = batch.arrays.get(f"{field.key}_length", np.array(cells)).astype(np.int64)
    filled = int((own * (batch.arrays[f"{field.key}_width"] if field.is_wide else 1)).sum())
    return f"{field.key}  {array.dtype} {list(array.shape)}, {1 - filled / cells:.1%} padding"


def _draw_row(axes: Any, batch: ShownBatch, field: Field, row: int) -> None:
    """Draw a row's strip: an image for two axes, a curve for floats, tokens for integers, and its padding hatched."""
    if is_image(field):
        draw_image(axes, batch.arrays, field, row)
        return
    array = batch.arrays[field.key]
    lengths = batch.arrays.get(f"{field.key}_length")
    length = array.shape[1] if lengths is None else int(lengths[row])
    own = array[row, :length, : batch.arrays[f"{field.key}_width"][row]] if field.is_wide else array[row, :length]
    axes.set_yticks([])
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.tick_params(labelsize=7)
    if field.is_wide:
        # All is hatched first, because padding lies above a sample as well as behind it.
        axes.axvspan(-0.5, array.shape[1] - 0.5, **_HATCHED)
        length = array.shape[1]
    if own.ndim == 2 and own.size:
        low, high = _span(array)
        colours = {"cmap": "magma", "vmin": low, "vmax": high}
        axes.imshow(own.T, origin="lower", aspect="auto", interpolation="nearest", zorder=2, **colours)
    elif np.issubdtype(array.dtype, np.floating) and own.size:
        axes.plot(own, linewidth=0.5, color="tab:blue")
        axes.set_ylim(*_span(array))
    elif own.size:
        _draw_tokens(axes, own, array)
    if f"{field.key}_segment" in batch.arrays:
        _part_segments(axes, batch.arrays[f"{field.key}_segment"][row, :length])
    if length < array.shape[1]:
        axes.axvspan(length - 0.5, array.shape[1] - 0.5, **_HATCHED)
    axes.set_xlim(-0.5, array.shape[1] - 0.5)
    if field.is_wide:
        axes.set_ylim(-0.5, array.shape[2] - 0.5)


def _part_segments(axes: Any, segments: NDArray[Any]) -> None:
    """Draw a line between packed samples, and the number of each where it begins."""
    for step in segment_starts(segments):
        if step:
            axes.axvline(step - 0.5, color=_PARTING, linewidth=1.5)
        place = axes.get_xaxis_transform()  # steps across, and shares of the strip's height upward
        words = {"fontsize": 6, "color": "white", "ha": "left", "va": "top", "transform": place}
        axes.text(
            step - 0.3, 0.95, str(segments[step]), bbox={"facecolor": _PARTING, "pad": 1, "linewidth": 0}, **words
        )


def segment_starts(segments: NDArray[Any]) -> list[int]:
    """Return the steps of a row at which a packed sample begins; gaps, with the number 0, are not counted.

    Return none for a row without samples.
    """
    before = np.concatenate([[0], segments[:-1]]) if len(segments) else segments
    return [int(step) for step in np.flatnonzero((segments != before) & (segments != 0))]


def _draw_tokens(axes: Any, tokens: NDArray[Any], batch: NDArray[Any]) -> None:
    axes.imshow(tokens[None], aspect="auto", interpolation="nearest", cmap="viridis", vmin=0, vmax=max(1, batch.max()))
    if batch.shape[1] <= _MOST_TOKENS:
        for step, token in enumerate(tokens.tolist()):
            colour = "black" if token > 0.7 * batch.max() else "white"  # the largest are yellow
            axes.text(step, 0, str(token), ha="center", va="center", fontsize=6, color=colour)


def _span(batch: NDArray[Any]) -> tuple[float, float]:
    """Return the range of colours or heights: one for all rows, so that they can be compared.

    It is that of the finite values, or 0 to 1 without any; a single value gets a range of 1 around it.
    """
    finite = batch[np.isfinite(batch)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _label(axes: Any, samples: list[ShownSample], row: int) -> None:
    errors = [sample.error for sample in samples if sample.error is not None]
    name = samples[0].name if samples else "no sample"
    shown = name if len(name) <= _MOST_NAME else f"…{name[1 - _MOST_NAME :]}"
    more = f" and {len(samples) - 1} more" if len(samples) > 1 else ""
    text = f"{row}: {shown}{more}" + (f"\nmasked: {errors[0].reason}" if errors else "")
    colour = "tab:red" if errors else "0.6" if not samples else "black"
    axes.set_ylabel(text, rotation=0, ha="right", va="center", fontsize=7, color=colour)

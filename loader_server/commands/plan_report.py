"""Reports on a plan, for people and machines: the `plan` command's facts, tables, plot, `--find` and `--diff`.

Rules: facts are plain numbers, strings, lists and dicts, ready for JSON, and every table is made from them; shares are
fractions of all padded cells of a pass over the data, in steps of the bucketed key. This module must not know job files
or the command line. matplotlib is imported only to draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.commands.progress import filled_table
from loader_server.machine.room import shown_bytes
from loader_server.planning.windows.fill import groups_needed, samples_taken
from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from rich.table import Table

    from loader_server.planning import EpochPlan, Plan
    from loader_server.planning.epoch import Recipe
    from loader_server.planning.stages import PlanStage

    Integers = NDArray[np.int64]

__all__ = ["diff", "diff_table", "facts", "find", "new_figure", "plot", "shown_lengths", "tables"]

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocks:
    """Blocks of batches with one bucket and shape: the samples and batches of each, and their shape."""

    samples: Integers
    batches: Integers
    rows: Integers
    lengths: Integers
    buckets: Integers

    def padding(self, total: int, unspilled: int) -> dict[str, float]:
        """Return the shares of cells without a sample: "all", and by cause.

        `total` is the samples' length; `unspilled` is the cells that they would take if each were in its own bucket.
        """
        batch = self.rows * self.lengths
        cells = int((self.batches * batch).sum())
        filled = int((self.samples * self.lengths).sum())
        empty = int(((self.batches - -(-self.samples // self.rows)) * batch).sum())
        parts = {
            "time": unspilled - total,
            "leftovers": filled - unspilled,
            "masked_rows": cells - filled - empty,
            "empty_batches": empty,
        }
        return {"all": 1 - total / cells} | {name: part / cells for name, part in parts.items()}


def facts(plan: Plan, group: int, epoch: int = 0) -> Facts:
    """Return all facts about a plan in one epoch, for groups of `group`.

    Raises SettingsError if batches cannot come in such groups; errors of the plan pass through.
    """
    if objection := plan.objection(group):
        raise objection
    recipe = plan.stage(epoch).recipe
    opened = plan.epoch(epoch, group)
    counted = recipe.counted and recipe.fixed_shapes
    blocks = _blocks_of_counts(plan, group, epoch) if counted else _blocks_of_windows(opened)
    batches, total = int(blocks.batches.sum()), plan.total(epoch)
    unspilled = int((plan.window_counts(epoch).sum(axis=0) * recipe.tally.edges).sum()) if counted else None
    filled = int((blocks.samples * blocks.lengths).sum())
    used = blocks.batches > 0
    return {
        "key": recipe.limits.key,
        "order": recipe.settings.order,
        "objective": "area" if recipe.settings.rows else recipe.settings.objective,
        "epoch": epoch,
        "group": group,
        "samples": int(plan.window_counts(epoch).sum()),
        "dropped": recipe.tally.dropped_by_reason(),
        "rows": recipe.settings.rows,
        "above_budget": _above_budget(recipe, blocks),
        "buckets": _buckets(plan, blocks),
        "shapes": len(set(zip(blocks.rows[used].tolist(), blocks.lengths[used].tolist(), strict=True))),
        "batches": opened.batches,
        "most_batches": plan.most_batches(group),
        "batches_ratio": None if recipe.settings.rows else batches * recipe.limits.budget / total,
        "padding": blocks.padding(total, filled if unspilled is None else unspilled),
    } | ({"curriculum": [_stage(plan, stage, group) for stage in plan.stages]} if len(plan.stages) > 1 else {})


def _stage(plan: Plan, stage: PlanStage, group: int) -> Facts:
    """Return the facts of a curriculum stage, from its first epoch that begins a pass over the data."""
    parts = plan.recipe.settings.epoch_parts
    epoch = -(-stage.first_epoch // parts) * parts
    recipe = plan.stage(epoch).recipe
    return {
        "epoch": epoch,
        "max_length": recipe.limits.max_length,
        "samples": int(plan.window_counts(epoch).sum()),
        "shapes": len(recipe.shapes),
        "batches": plan.epoch(epoch, group).batches,
    }


def mixture(plan: Plan, names: Sequence[str], epoch: int = 0) -> list[Facts]:
    """Return what each source of a mixture gives to the pass of an epoch, by its name; [] without weights.

    Raises ValueError unless there is a name for each source; errors of the plan pass through.
    """
    given = plan.mixed(epoch)
    total = sum(source.given for source in given)
    return [
        {
            "source": name,
            "weight": source.weight,
            "samples": source.samples,
            "given": source.given,
            "share": source.given / total,
            "times": source.given / source.samples if source.samples else 0.0,
            "cycle": source.cycles,
        }
        for name, source in zip(names if given else (), given, strict=True)
    ]


def tables(plan: Facts) -> tuple[Table, ...]:
    """Return tables of buckets, a curriculum's stages, a mixture's sources and totals, from facts with a `digest`."""
    buckets = filled_table(
        ("bucket", *shown_lengths(plan["buckets"][0]["lengths"]), "rows", "samples", "batches"),
        (_bucket_cells(number, bucket) for number, bucket in enumerate(plan["buckets"])),
        title=f"Plan {plan['digest'][:8]}: buckets",
    )
    totals = filled_table(
        ("", ""),
        _totals(plan).items(),
        title="Totals",
        show_header=False,
        caption=plan["above_budget"]["advice"] or None,
        caption_justify="left",
    )
    parts = [make(plan[name]) for name, make in (("curriculum", _curriculum), ("mixture", _mixture)) if name in plan]
    return (buckets, *parts, totals)


def _bucket_cells(number: int, bucket: Facts) -> list[str]:
    counts = [bucket["rows"], bucket["samples"], bucket["batches"]]
    return [str(number), *shown_lengths(bucket["lengths"]).values(), *(f"{count:,}" for count in counts)]


def shown_lengths(lengths: Mapping[str, int]) -> dict[str, str]:
    """Return lengths by key as tables show them, those along two axes in one cell: "480 x 640"."""
    shown = {key: f"{length:,}" for key, length in lengths.items()}
    for key in lengths:
        if (width := shown.pop(f"{key}_width", None)) is not None:
            shown[key] += f" x {width}"
    return shown


def _curriculum(stages: list[Facts]) -> Table:
    names = ("epoch", "max_length", "samples", "shapes", "batches")
    rows = ([f"{stage[name]:,}" for name in names] for stage in stages)
    return filled_table(("from epoch", "up to", "samples", "shapes", "batches"), rows, title="Curriculum")


def _mixture(sources: list[Facts]) -> Table:
    names = ("weight", "samples", "in a pass", "share", "times each")
    table = filled_table((), (), title="Mixture")
    table.add_column("source", overflow="fold")
    for name in names:
        table.add_column(name)
    for source in sources:
        counts = (f"{source['samples']:,}", f"{source['given']:,}", f"{source['share']:.1%}")
        times = f"{source['times']:.2f}" + (", starts over" if source["cycle"] else "")
        table.add_row(source["source"], f"{source['weight']:g}", *counts, times)
    return table


def _totals(plan: Facts) -> dict[str, str]:
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in plan["dropped"].items()) or "none"
    return {
        "digest": plan["digest"],
        "order": f"{plan['order']}, least {plan['objective']}, groups of {plan['group']}",
        "samples": f"{plan['samples']:,}",
        "dropped": dropped,
        **({} if plan["rows"] else {"above the budget": f"{plan['above_budget']['batches']:,} batches"}),
        "shapes in use": str(plan["shapes"]),
        "batches an epoch": f"{plan['batches']:,} (at most {plan['most_batches']:,})",
        **({} if plan["rows"] else {"batches x budget / lengths": f"{plan['batches_ratio']:.4f}"}),
        "padding, all": f"{plan['padding']['all']:.2%}",
        "  in time": f"{plan['padding']['time']:.2%}",
        "  by leftovers in larger buckets": f"{plan['padding']['leftovers']:.2%}",
        "  masked rows": f"{plan['padding']['masked_rows']:.2%}",
        "  empty batches": f"{plan['padding']['empty_batches']:.2%}",
    } | ({"a joining host fetches": _fetched(plan["bundle"])} if "bundle" in plan else {})


def _fetched(bundle: Facts) -> str:
    return f"{shown_bytes(bundle['bytes'])} (at most {shown_bytes(bundle['most'])})"


def find(plan: Plan, sample: int, group: int, epoch: int = 0) -> Facts:
    """Return the batches of an epoch that a sample is in, and the samples that it shares them with.

    There are none if the sample is dropped, or in another part of the data. `sample` must be one of the stream, and
    batches come in such groups; nothing checks either. IndexError of `batch` passes through.
    """
    opened = plan.epoch(epoch, group)
    seats = []
    for seat in opened.find(sample):
        batch = opened.batch(seat.batch)
        shape = {"rows": batch.shape.rows, "lengths": dict(batch.shape.lengths)}
        place = {"batch": seat.batch, "row": seat.row, "group": seat.batch // group, "bucket": batch.bucket}
        seats.append(place | {"shape": shape, "samples": batch.samples.tolist()})
    return {"sample": sample, "epoch": epoch, "seats": seats}


def diff(old: Facts, new: Facts) -> dict[str, tuple[object, object]]:
    """Return old and new of every fact that differs between two plans, by its path; None where a plan lacks it.

    Return an empty table if none differs.
    """
    left, right = _flat(old), _flat(new)
    return {path: (left.get(path), right.get(path)) for path in left | right if left.get(path) != right.get(path)}


def diff_table(changed: Mapping[str, tuple[object, object]]) -> Table:
    """Return a table of the differences, empty and titled "No difference" if there are none."""
    rows = ((path, _shown(old), _shown(new)) for path, (old, new) in changed.items())
    return filled_table(("", "this", "other"), rows, title="Differences" if changed else "No difference")


def plot(plan: Plan, path: Path) -> None:
    """Draw the histogram of lengths and the boundaries of the buckets as a PNG file.

    Raises SettingsError without matplotlib, or OSError if the file cannot be written.
    """
    figure = new_figure(9, 4, where="plan --plot")
    tally, limits = plan.recipe.tally, plan.recipe.limits
    axes = figure.subplots()
    axes.hist(tally.lengths, bins=200, weights=tally.samples, color="tab:blue", alpha=0.7)
    for edge in tally.edges:
        axes.axvline(edge, color="tab:red", linewidth=0.8)
    axes.set_xlabel(f"length of {limits.key}, steps")
    axes.set_ylabel("samples")
    axes.set_title(f"{int(tally.samples.sum()):,} samples, {len(tally.edges)} buckets")
    figure.savefig(path, format="png", dpi=120)


def new_figure(width: float, height: float, where: str) -> Figure:
    """Return an empty figure of this size in inches; raise SettingsError without matplotlib."""
    try:
        from matplotlib.figure import Figure  # only who draws needs it
    except ImportError:
        raise SettingsError(
            expected="matplotlib",
            got="none installed",
            where=where,
            remedy="pip install matplotlib, and try again.",
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def _blocks_of_counts(plan: Plan, group: int, epoch: int) -> _Blocks:
    """Return one block for each bucket of each window, from counts alone, without a look at samples."""
    recipe = plan.stage(epoch).recipe
    counts, rows = plan.window_counts(epoch), recipe.rows
    subs = recipe.limits.subs
    groups = groups_needed(counts, rows, group, subs)
    windows, buckets = counts.shape
    return _Blocks(
        samples=samples_taken(counts, groups * rows * group, subs).ravel(),
        batches=groups.ravel() * group,
        rows=np.tile(rows, windows),
        lengths=np.tile(recipe.tally.edges, windows),
        buckets=np.tile(np.arange(buckets), windows),
    )


def _blocks_of_windows(opened: EpochPlan) -> _Blocks:
    """Return one block for each group, for plans whose shapes follow the samples."""
    limits = opened.recipe.limits
    planned = list(opened.windows())
    return _Blocks(
        samples=np.concatenate([window.stops - window.starts for window in planned]),
        batches=np.concatenate([np.full(len(window.starts), opened.group) for window in planned]),
        rows=np.concatenate([window.rows for window in planned]),
        lengths=np.concatenate([limits.padded(window.longest[limits.key]) for window in planned]),
        buckets=np.concatenate([window.buckets for window in planned]),
    )


def _buckets(plan: Plan, blocks: _Blocks) -> list[Facts]:
    size = len(plan.buckets)
    samples = np.bincount(blocks.buckets, weights=blocks.samples, minlength=size)
    batches = np.bincount(blocks.buckets, weights=blocks.batches, minlength=size)
    return [
        {"lengths": dict(shape.lengths), "rows": shape.rows, "samples": int(samples[at]), "batches": int(batches[at])}
        for at, shape in enumerate(plan.buckets)
    ]


def _above_budget(recipe: Recipe, blocks: _Blocks) -> Facts:
    """Return how many batches and samples exceed the budget, as even one row is too long, the longest, and the budget.

    With it comes advice, which is empty if no batch exceeds it.
    """
    limits, tally = recipe.limits, recipe.tally
    used = np.where(blocks.batches > 0, limits.used(blocks.lengths), 0)
    above = {
        "batches": int(blocks.batches[used > limits.budget].sum()),
        "samples": int(tally.above[0]),
        "longest": int(tally.lengths[-1]),
        "budget": None if recipe.settings.rows else limits.budget,
    }
    return above | {"advice": _advice(recipe, above, int(used.max())) if above["batches"] else ""}


def _advice(recipe: Recipe, above: Facts, most: int) -> str:
    """Return advice on batches above the budget, the largest of which needs a budget of `most`."""
    budget, raised = f"the budget of {recipe.settings.budget}", f'budget = "{most} steps"'
    if not above["samples"]:
        return f"The longest shape is above {budget}: shorten it, or write {raised}."
    within = recipe.limits.longest_within
    drop = f'max_length = "{within} steps" to drop them, or ' if within else ""
    return (
        f"Samples longer than {budget}: {above['samples']:,}, the longest of {above['longest']:,} steps. Each makes a "
        f"batch above it: write {drop}{raised}."
    )


def _flat(nested: object, path: str = "") -> dict[str, object]:
    """Return the leaves of nested facts, by path; an empty table or list has none."""
    if not isinstance(nested, dict | list):
        return {path: nested}
    flat: dict[str, object] = {}
    for name, inner in nested.items() if isinstance(nested, dict) else enumerate(nested):
        flat |= _flat(inner, f"{path}.{name}" if path else str(name))
    return flat


def _shown(value: object) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)

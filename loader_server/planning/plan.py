"""The plan of a stream: from an index, settings and a seed, every minibatch of every epoch.

Rules: pure; the same inputs give the same batches on any machine and at any time. The plan does not depend on how many
ranks or workers there are; an epoch, once opened, depends on the group. Opening one costs O(segments). Must not know
sockets, clocks or disks: results that took long to compute go to a `Keeper` and come back from it.

A stream whose batches are made whole has an `OrdinalPlan`: batch n is element n div S of shard n mod S, of S shards.
The number of batches depends neither on who makes them nor on how long a shard turns out to be: each epoch has room for
`elements` of every shard, in whole groups, and places that a shard does not fill are empty batches.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from loader_server.planning.batch_size import refuse_wrong_size
from loader_server.planning.epoch import EpochPlan, PlannedBatch, Recipe
from loader_server.planning.order import Arrangement, DataPass, MixedSource, arranged, mixture_of
from loader_server.planning.settings import NO_KEY, limits_by_epoch, limits_of
from loader_server.planning.stages import Keeper, kept_tally, stages_of
from loader_server.planning.tally import tally_lengths
from loader_server.planning.windows.fill import groups_needed
from shared.errors import SettingsError
from shared.hashing import fingerprint
from shared.wire.batch_layout import BucketShape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.planning.settings import Limits, PlanSettings
    from loader_server.planning.stages import PlanStage
    from loader_server.planning.tally import LengthTable, LengthTally, Progress

__all__ = ["PLANNER_VERSION", "OrdinalEpoch", "OrdinalPlan", "Plan"]

#: Version of the planner, part of every digest: raise it whenever the same inputs would give other batches than before.
PLANNER_VERSION = 2
#: The same for batches that are made whole: raise it whenever the same shards would give other batches than before.
_ORDINAL_VERSION = 1


class Plan:
    """All minibatches of a stream, as a function of epoch, group and batch number.

    A plan never changes, so any thread may call any method at any time. `epoch` may take seconds if bucket counts do
    not determine the number of batches (packing, `carry`, `shapes = "none"`) and the keeper does not have it: a loop
    that must not stall calls it in another thread.
    """

    @classmethod
    def make(  # noqa: PLR0913 - a plan is a function of all these
        cls,
        table: LengthTable,
        settings: PlanSettings,
        *,
        key: str,
        per_second: Mapping[str, float | None],
        seed: int,
        sources: Sequence[int] = (0,),
        keeper: Keeper | None = None,
        progress: Progress | None = None,
    ) -> Plan:
        """Plan a stream whose samples are bucketed by `key`; if the `keeper` has this plan, no lengths are read.

        With `NO_KEY` they are in one bucket; then the table has a length of 1 under that key for each sample.

        For mixing by weight, `sources` has the number of each source's first sample, which starts a segment. Raise
        SettingsError if settings do not fit the stream or each other, or if an epoch might be empty, and DataError if
        no sample is left to plan. Errors of the table pass through.
        """
        refuse_wrong_size(settings, key)
        limits = limits_of(settings, key=key, per_second=per_second)
        if settings.packing is not None and len(table.keys) > 1:
            raise SettingsError(
                expected="one padded key",
                got=", ".join(f'"{other}"' for other in table.keys if other != key) + " beside it",
                where="packing",
                remedy="Leave packing out, or drop the other keys with a transform.",
            )
        mixture = mixture_of(settings, sources, table.segments)
        by_epoch = limits_by_epoch(settings, key=key, per_second=per_second)
        stage_limits = [stage for _, stage in by_epoch if stage != limits]
        digest = _digest(table, settings, (limits, *stage_limits), (seed, *sources))
        keeper = keeper or Keeper()
        tally = kept_tally(keeper, digest, partial(tally_lengths, table, settings, limits, progress))
        shapes = _shapes(settings, limits, tally)
        recipe = Recipe(
            table=table,
            settings=settings,
            limits=limits,
            tally=tally,
            shapes=shapes,
            rows=np.array([shape.rows for shape in shapes]),
            mixture=mixture,
        )
        plan = cls(recipe, stages_of(recipe, by_epoch, keeper, digest), digest, seed, keeper)
        # Refused now, not when an epoch turns out to be empty in the middle of a run.
        if objection := plan.objection(group=1):
            raise objection
        return plan

    def __init__(self, recipe: Recipe, stages: tuple[PlanStage, ...], digest: str, seed: int, keeper: Keeper) -> None:
        #: Recipe for all samples that take part in any epoch.
        self.recipe = recipe
        #: Stages by first epoch, each with its own samples: more than one only with a curriculum.
        self.stages = stages
        #: Hash of planner version, index, settings, key and seed; not of the group. A cursor has the stream's digest.
        self.digest = digest
        #: All shapes that batches may have, or upper bounds if batches are padded to their longest sample.
        self.buckets = recipe.shapes
        #: How many samples are dropped in every epoch, by reason.
        self.dropped = recipe.tally.dropped_by_reason()
        self._seed = seed
        self._keeper = keeper
        #: Samples of each segment.
        self._sizes = np.diff(recipe.table.segments)

    def most_batches(self, group: int) -> int:
        """Return an upper bound on the batches of any epoch, exact for bucket counts, one window and no mixing."""
        return max(stage.most_batches(group) for stage in self.stages)

    def fewest_groups(self, group: int) -> int:
        """Return a lower bound on the groups of any pass, exact for bucket counts, one window and no mixing."""
        return min(stage.fewest_groups(group) for stage in self.stages)

    @property
    def shortest(self) -> int:
        """Return the length of the shortest sample that takes part in any epoch, at least 1."""
        return max(1, int(self.recipe.tally.lengths[0]))

    def stage(self, epoch: int) -> PlanStage:
        """Return the stage of an epoch: that in force when the epoch's pass began."""
        parts = self.recipe.settings.epoch_parts
        # Parts of a pass must fit together, so the stage does not change between them.
        return [stage for stage in self.stages if stage.first_epoch <= epoch // parts * parts][-1]

    def objection(self, group: int) -> SettingsError | None:
        """Return a SettingsError if some epoch might have no batch with groups of `group`, else None."""
        # A bound that holds in every pass, so no later epoch can turn out to be empty.
        parts, fewest = self.recipe.settings.epoch_parts, self.fewest_groups(group)
        if fewest >= parts:
            return None
        return SettingsError(
            expected=f"a group of batches for each of the {parts} parts of the data",
            got=f"data for {fewest} groups of {group}",
            where="epoch_parts",
            remedy=f"Write epoch_parts = {max(fewest, 1)} or less, or lower the budget. A group is as many batches as "
            "there are ranks, unless [job] says otherwise: fewer ranks make more groups.",
        )

    def epoch(self, epoch: int, group: int) -> EpochPlan:
        """Open an epoch: return its batches, in groups of `group`.

        If bucket counts do not tell the number of batches, it comes from the keeper, or from a look at all samples;
        errors of the table pass through.
        """
        recipe = self.stage(epoch).recipe
        data_pass, part, arrangement = self._pass_of(epoch)
        opened = EpochPlan(recipe, data_pass, arrangement, group)
        # Counts by segment are in the tally, so this takes no look at a sample; the other way looks at all of them.
        if recipe.counted:
            counts = self.window_counts(epoch)
            groups = groups_needed(counts, recipe.rows, group, recipe.limits.subs).sum(axis=1)
        else:
            groups = self._find_groups(opened, f"{self.digest}-{data_pass.number}-{group}")
        return opened.schedule(groups, part)

    def _find_groups(self, opened: EpochPlan, name: str) -> NDArray[np.integer]:
        """Return how many groups each window of a pass has, from the keeper or by looking at all; table errors pass."""
        arrays = self._keeper.load("groups", name)
        if arrays is None:
            arrays = {"groups": opened.groups()}
            self._keeper.save("groups", name, arrays)
        return arrays["groups"]

    def total(self, epoch: int) -> int:
        """Return the sum of the bucketed lengths of all planned samples in an epoch's pass, repeated ones included."""
        return int(self.stage(epoch).recipe.tally.sums[self._pass_of(epoch)[2].turns.segments].sum())

    def mixed(self, epoch: int) -> list[MixedSource]:
        """Return what each source of the mixture gives to an epoch's pass, in their order; [] without weights."""
        recipe = self.stage(epoch).recipe
        if recipe.mixture is None:
            return []
        return recipe.mixture.given(self._pass_of(epoch)[2].turns, recipe.tally.counts.sum(axis=1, dtype=np.int64))

    def window_counts(self, epoch: int) -> NDArray[np.int64]:
        """Return how many samples of each bucket each window of an epoch's pass has, as [windows, buckets]."""
        arrangement = self._pass_of(epoch)[2]
        counts = self.stage(epoch).recipe.tally.counts[arrangement.turns.segments]
        return np.add.reduceat(counts, arrangement.starts, dtype=np.int64)

    def _pass_of(self, epoch: int) -> tuple[DataPass, int, Arrangement]:
        """Return the pass that an epoch belongs to, the epoch's part of it, and the windows of the pass."""
        # Parts of one pass have its number, so they share its shuffle, and together hold every sample once.
        number, part = divmod(epoch, self.recipe.settings.epoch_parts)
        data_pass = DataPass(
            number=number, order=self._order(number), seed=self._seed, stream=self.recipe.table.fingerprint
        )
        return data_pass, part, arranged(data_pass, self._sizes, self.recipe.settings.window, self.recipe.mixture)

    def _order(self, number: int) -> str:
        """Return the order of a pass: "sorted" while the curriculum lasts, then the one that is set."""
        settings = self.recipe.settings
        return "sorted" if number * settings.epoch_parts < settings.curriculum_epochs else settings.order


class OrdinalEpoch(EpochPlan):
    """Batches of any epoch: the number of a batch determines which shard makes it."""

    def __init__(self, batches: int, group: int, shape: BucketShape) -> None:
        # Nothing of an epoch that is planned: there are no windows and no samples to order.
        self.batches = batches
        self.group = group
        self._largest = shape

    def batch(self, number: int) -> PlannedBatch:
        """Return what is known of a batch before it is made.

        Its shape is the largest possible one; its only sample is its number, which is not checked.
        """
        return PlannedBatch(samples=np.array([number]), bucket=0, shape=self._largest)


class OrdinalPlan(Plan):
    """Plan with room for `elements` of each of `producers` shards, none larger than `largest`."""

    def __init__(self, *, producers: int, elements: int, largest: BucketShape, made_from: tuple[str, ...]) -> None:
        self.buckets = (largest,)
        self.dropped = {}
        self.digest = fingerprint(f"ordinals {_ORDINAL_VERSION}", f"{producers} {elements}", *made_from)
        self._batches = producers * elements

    def most_batches(self, group: int) -> int:
        """Return the number of batches, the same in all epochs: room for all shards, up to whole groups."""
        return -(-self._batches // group) * group

    def objection(self, group: int) -> None:
        """Return None: each group size will do, because the last batches of an epoch may be empty."""
        return

    def epoch(self, epoch: int, group: int) -> OrdinalEpoch:
        """Return the batches of one epoch, in groups of `group`."""
        return OrdinalEpoch(self.most_batches(group), group, self.buckets[0])


def _shapes(settings: PlanSettings, limits: Limits, tally: LengthTally) -> tuple[BucketShape, ...]:
    """Return rows and padded lengths of each bucket.

    In plain order they are upper bounds for batches whose longest sample is in that bucket.
    """
    lengths = {key: limits.padded(np.maximum(longest, 1)) for key, longest in tally.others.items()}
    lengths[limits.key] = tally.edges
    if settings.shapes == "none":
        shortest = np.maximum(np.append(0, tally.edges[:-1]) + 1, tally.lengths[0])
        rows = limits.rows({limits.key: limits.padded(shortest)})
    else:
        rows = limits.rows(lengths)
    lengths.pop(NO_KEY, None)  # samples have no such value
    return tuple(
        BucketShape(rows=int(rows[bucket]), lengths={key: int(of[bucket]) for key, of in lengths.items()})
        for bucket in range(len(tally.edges))
    )


def _digest(table: LengthTable, settings: PlanSettings, limits: tuple[Limits, ...], more: tuple[int, ...]) -> str:
    """Return the plan's digest.

    Settings enter both as written and in steps: a key's steps a second may change while the text stays.
    """
    # Settings that were added later enter the digest only when they are set, so that older plans stay valid.
    later = {name for name in ("carry", "rows") if not getattr(settings, name)}
    fields = [field.name for field in dataclasses.fields(settings) if field.name not in later]
    written = [f"{name}={getattr(settings, name)!r}" for name in fields]
    facts = [(name, value) for stage in limits for name, value in dataclasses.asdict(stage).items()]
    steps = [f"{name}={value!r}" for name, value in facts if name != "keeps_empty" or value]
    return fingerprint(
        f"planner {PLANNER_VERSION}", table.fingerprint, *table.keys, *written, *steps, f"seed and sources={more}"
    )

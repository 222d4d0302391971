"""How large batches are: by a budget, or of a fixed number of rows; what is neither is refused, with what to write.

Rules: pure. What depends on the settings alone is checked when the job file is read; what depends on the keys of
samples, when these are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.planning.settings import NO_KEY, ROWS_INSTEAD
from shared.errors import SettingsError

if TYPE_CHECKING:
    from loader_server.planning.settings import PlanSettings
    from shared.settings.parsers import Amount

__all__ = ["refuse_number_of_samples", "refuse_wrong_size"]


def refuse_wrong_size(settings: PlanSettings, key: str) -> None:
    """Raise SettingsError unless there is a budget for a bucketed key, or `rows` without any limit of rows.

    Without a bucketed key (`NO_KEY`), settings that need one are refused as well.
    """
    missing = "" if settings.rows else "budget" if settings.budget is None else "length" if key == NO_KEY else ""
    if missing:
        meaning = {
            "budget": 'the most that a batch may hold of the bucketed key, such as "300 s"',
            "length": "the key whose length decides the bucket, and that the budget counts",
        }
        raise SettingsError(
            expected=f'"{missing}" ({meaning[missing]}), or "rows" (how many each batch has)',
            got="no such setting",
            where=missing,
            remedy=f"Add {missing} = … there. {ROWS_INSTEAD}",
        )
    limiting = {
        f'budget = "{settings.budget}"': settings.budget is not None,
        f"max_rows = {settings.max_rows}": settings.max_rows > 0,
        f"rows_multiple = {settings.rows_multiple}": settings.rows_multiple > 1,
        f'quadratic_length = "{settings.quadratic_length}"': settings.quadratic_length is not None,
        "limits": bool(settings.limits),
    }
    if settings.rows and any(limiting.values()):
        raise SettingsError(
            expected="rows alone, as each batch has exactly so many",
            got=f"rows = {settings.rows} with " + " and ".join(name for name, is_set in limiting.items() if is_set),
            where="rows",
            remedy="Leave rows out, or all that limits how many rows a batch has.",
        )
    if key == NO_KEY and (needing := _needing_a_key(settings)):
        raise SettingsError(
            expected='length = "<key>", the key whose length decides, as other settings are about it',
            got=f"none with {' and '.join(needing)}",
            where="length",
            remedy="Name a key with a padded axis, or leave these settings out.",
        )


def _needing_a_key(settings: PlanSettings) -> list[str]:
    """Return the settings that are about the length of a bucketed key, as written, or []."""
    needing = {
        f"shapes = {settings.shapes!r}": settings.shapes != "auto",
        f'order = "{settings.order}"': settings.order in ("sorted", "laplace"),
        f"min_length = {settings.min_length}": settings.min_length is not None,
        "max_length": settings.max_length is not None,
        "sub_buckets": bool(settings.sub_buckets),
        "packing": settings.packing is not None,
        "carry": settings.carry,
        f"curriculum_epochs = {settings.curriculum_epochs}": settings.curriculum_epochs > 0,
    }
    return [written for written, is_set in needing.items() if is_set]


def refuse_number_of_samples(budget: Amount | None, key: str) -> None:
    """Raise SettingsError for a budget in samples of a key that does not come from recordings.

    Of recordings samples are a unit of length, so the caller does not ask for these.
    """
    if budget is not None and budget.unit == "samples":
        raise SettingsError(
            expected=f'a budget in steps of "{key}", or a number of rows, as no key is audio',
            got=f'budget = "{budget}"',
            where="budget",
            remedy=f"Write rows = {budget.value:g} for batches of {budget.value:g} samples each, or budget = "
            f'"{budget.value:g} steps" for so many steps of "{key}", padding included.',
        )

"""The pages on how it works name rooms, modules and files that are there, and none of the rooms is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_architecture import FILES, MODULES, PACKAGES

ROOT = Path(__file__).parents[1]
PAGE = "\n".join((ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("words", "rooms", "architecture"))
#: Everything in backticks that looks like a place in the tree.
PLACES = sorted(set(re.findall(rf"`((?:{'|'.join((*PACKAGES, 'tests', 'monitoring'))})/[\w/.]*)`", PAGE)))
#: What follows from what else is on the page, or is common to all rooms.
CORE = [name for name in MODULES if name.startswith("trainer_client.core.")]


@pytest.mark.parametrize("place", PLACES)
def test_what_the_page_names_is_there(place):
    assert (ROOT / place).exists() or f"{place}.py" in FILES, f"{place} is gone or was renamed"


def test_every_room_is_named():
    rooms = {name.rpartition("/")[0] + "/" for name in FILES}
    assert {room for room in rooms if f"| `{room}` |" not in PAGE} == set()


def test_every_command_that_the_page_names_can_be_run():
    commands = re.findall(r"`python -m ([\w.]+)", PAGE)
    assert commands
    for module in commands:
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_every_module_of_the_core_that_owns_a_fact_has_its_place():
    """What carries, names or words decisions owns none."""
    carriers = {"core", "events", "instructions", "settings", "feed_errors", "stream_spec"}
    owners = {MODULES[name].removesuffix(".py") for name in CORE if not MODULES[name].endswith("__init__.py")}
    owners = {owner for owner in owners if owner.rpartition("/")[2] not in carriers}
    theory = PAGE[PAGE.index("## The theory of the core") :]
    assert {owner for owner in owners if f"`{owner}`" not in theory} == set()

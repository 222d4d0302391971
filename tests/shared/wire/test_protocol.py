"""PROTOCOL.md against the code: every message, every field with its bounds, in order, and the version."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import shared
from shared.wire import bounds, message_parts
from shared.wire import messages as m
from shared.wire.codec import MAX_FRAME, VERSION
from shared.wire.message_parts import ROLES
from shared.wire.refusing import TO_COORDINATOR, TO_PARAMETER_SERVER, TO_WORKER

PARTS = {
    name: kind
    for name, kind in vars(message_parts).items()
    if isinstance(kind, type) and issubclass(kind, message_parts.Part) and kind is not message_parts.Part
}
TEXT = (Path(shared.__file__).parent / "PROTOCOL.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^#### (\w+)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL))
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def test_the_version_is_that_of_the_code():
    assert re.findall(r"^Protocol version: \*\*(\d+)\*\*$", TEXT, re.MULTILINE) == [str(VERSION)]
    assert f"at most {MAX_FRAME >> 20} MiB long" in TEXT


def test_every_message_and_record_is_described_and_no_other():
    assert set(SECTIONS) == {*m.KINDS, *PARTS}


@pytest.mark.parametrize(
    "role", ["loader_server.coordinator.service", "loader_server.worker.service", "trainer_client.network.receiver",
             "trainer_client.training.servers.service"]
)  # fmt: skip
def test_a_fresh_process_of_each_role_knows_every_message(role):
    program = f"import {role}; from shared.wire.message_parts import KINDS; print(*KINDS)"
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert {*printed.split()} == SECTIONS.keys() - PARTS.keys()


@pytest.mark.parametrize("name", [*m.KINDS, *PARTS])
def test_every_field_is_described_with_its_bounds(name):
    kind = m.KINDS.get(name)
    checks = (
        kind.checks if kind else dict(zip(names(PARTS[name]), bounds.record(PARTS[name]).fields.checks, strict=True))
    )
    rows = ROW.findall(SECTIONS[name])
    assert [(field, bound) for field, bound, _ in rows] == [(field, str(check)) for field, check in checks.items()]
    assert all(len(meaning) > 3 for _, _, meaning in rows)


def names(part):
    return list(part.__dataclass_fields__)


def test_every_code_of_a_refusal_is_described():
    """The codes that the two servers send, as they stand in their source."""
    root = Path(shared.__file__).parents[1]
    rooms = (root / "loader_server/coordinator", root / "loader_server/worker")
    files = [path for room in rooms for path in room.rglob("*.py")] + [root / "shared/wire/refusing.py"]
    source = "".join(path.read_text("utf-8") for path in files)
    sent = set(re.findall(r'\brefused\(\s*"(\w+)"', source))
    sent |= set(re.findall(r'_not_attached\(\s*(?:attach|join|request),\s*"(\w+)"', source))
    sent |= set(re.findall(r'\bunbuilt\(\s*[\w.]+,\s*"(\w+)"', source)) | {"version"}
    sent |= set(re.findall(r'\(\w+Error, "(\w+)"\)', source))
    table = TEXT[TEXT.index("| code | from | meaning |") :]
    described = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE))))
    assert sent == described


def test_the_roles_of_messages_are_described():
    """In the table of *Keys*; what a worker understands is described as a whole."""
    table = TEXT[TEXT.index("| messages | who may say them |") : TEXT.index("Any other role is answered")]
    described = {
        message: {role for role in ROLES if role in who}
        for messages, who in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|$", table, re.MULTILINE)
        for message in re.findall(r"`(\w+)`", messages)
    }
    described["StatusQuery"] = set(ROLES)
    assert described == {message.kind: roles for message, roles in TO_COORDINATOR.items()}
    assert {*TO_WORKER.values(), *TO_PARAMETER_SERVER.values()} == {frozenset(("trainer",))}


def test_it_says_where_it_differs_from_the_first_design():
    assert "## Where this differs from the first design, and why" in TEXT


def test_it_opens_with_sequences_of_messages_that_there_are():
    sequences = TEXT[TEXT.index("## ") : TEXT.index("## Sockets")]
    assert sequences.startswith("## Sequences\n")
    arrows = re.findall(r"(?:[│ ]─+|◄─+) ([A-Z]\w+)\b[^─│]* ─+", sequences)
    assert {"Attach", "Want", "Pushed", "Refused", "Leases"} <= {*arrows} <= {*m.KINDS}
    assert len(arrows) == len(re.findall("[►◄]", sequences))

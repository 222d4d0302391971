"""Each fact of the core has one owner: no module changes an attribute of an object that it did not make."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import trainer_client.core

ROOM = Path(trainer_client.core.__file__).parent
MODULES = sorted(path.relative_to(ROOM).as_posix() for path in ROOM.rglob("*.py"))

#: Methods of lists, sets, dicts and deques that change them.
CHANGES = frozenset(
    (
        *("add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "insert", "pop", "popitem"),
        *("popleft", "remove", "reverse", "setdefault", "sort", "update"),
    )
)


def changed(node):
    """Return the expressions whose objects this node changes."""
    if isinstance(node, ast.Assign | ast.Delete):
        found = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        found = [node.target]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        return [node.func.value]
    else:
        return []
    return [part for target in found for part in (target.elts if isinstance(target, ast.Tuple) else [target])]


def owner(expression):
    """Return the object that the changed attribute belongs to; None if no attribute is changed."""
    while isinstance(expression, ast.Subscript):
        expression = expression.value
    return expression.value if isinstance(expression, ast.Attribute) else None


def made_here(function):
    """Return the locals that this function made with a constructor."""
    return {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
        if node.value.func.id.lstrip("_")[:1].isupper()
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def trespasses(text):
    """Return the line and the source of each change of another object's attribute."""
    found = []
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef):
            continue
        own = {"self", "cls"} | made_here(function)
        owners = [(node, owner(part)) for node in ast.walk(function) for part in changed(node)]
        found += [
            f"{node.lineno}: {ast.unparse(node)}"
            for node, its_owner in owners
            if its_owner is not None and not (isinstance(its_owner, ast.Name) and its_owner.id in own)
        ]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("module", MODULES)
def test_a_module_changes_no_attribute_of_another_object(module):
    assert not trespasses((ROOM / module).read_text("utf-8"))


@pytest.mark.parametrize(
    "line",
    [
        "entry.slot = 3",
        "entry.attempt += 1",
        "entry.slot, self.slot = 1, 2",
        "entry.refused[3] = error",
        "del entry.askers[3]",
        "entry.askers.pop(3)",
        "self.tickets.unasked = []",
        "self.tickets.unasked.clear()",
        "self.entries[3].slot = 3",
        "self.entries[3].askers[4] = ticket",
    ],
)
def test_a_change_of_another_object_is_found(line):
    assert len(trespasses(f"def change(self, entry):\n    {line}")) == 1


@pytest.mark.parametrize(
    "line",
    [
        "self.slot = 3",
        "self.entries[3] = entry",
        "self.entries.pop(3)",
        "entry.take(3)",
        "made = Entry(3); made.slot = 3",
        "slots[3] = 4",
        "slots.append(3)",
    ],
)
def test_a_change_of_ones_own_is_not(line):
    assert not trespasses(f"def change(self, entry, slots):\n    {line}")

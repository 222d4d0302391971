"""Plain English in code and pages: refused names, refused phrases, and modules that share a name.

A variable is called by what it holds. The lists below only grow; a name or phrase that is found in a review goes here.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parents[1]
_PRODUCT = ("loader_server", "trainer_client", "shared")

#: Refused as a name, or as a part of one between underscores.
_REFUSED = {"one", "ones", "said", "told", "whoever", "elem", "obj", "val"}

#: Names that contain a refused part but are standard terms, or another library's or the public face's names.
_STANDARD = {"one_hot", "ones", "ones_like", "one_of"}

#: Vague names that may stay where they are, but not grow: part of a name -> most uses as a name.
_AT_MOST = {"item": 71, "items": 17, "thing": 1}

#: Phrases of the old dialect, whole words, in any case; each with what to write instead.
_PHRASES = {
    "where that cannot be": "if it cannot",
    "of those that": "name them",
    "what it came to": "the result",
    "is said": "is reported, logged, set, given",
    "are said": "are reported, logged, set, given",
    "is told": "is notified, gets",
    "are told": "are notified, get",
    "for that": "name it",
    "of them all": "all of them, or name them",
    "whoever": "a client, a caller, a reader",
    "comes of it": "results",
    "came of it": "resulted",
    "said so": "reported it",
    "says so": "reports it, logs it",
    "than is said": "than the setting",
    "that which": "what",
    "of that kind": "such",
    "for which there is": "that has",
    "it was us": "this process",
}

#: Modules that are the same thing in several rooms, so that they share a name.
_SAME_THING = {
    "arguments.py": "argparse types and helpers of a command line",
    "cli.py": "the command line of a package",
    "command.py": "a command of `trainer-client` or a check, from options to exit code",
    "events.py": "what a pure core is told",
    "service.py": "the process around a pure core",
    "settings.py": "settings of a room, as frozen dataclasses",
    "source.py": "the Source of a format",
    "logmel.py": "log-mel features, in loaders and as a layer",
    "spec_augment.py": "SpecAugment, in loaders and as a layer",
}


def _rooms() -> list[str]:
    """Return the folders that the tests look at one by one: `loader_server/sources`, `shared`, …"""
    nested = [path for package in _PRODUCT for path in (_ROOT / package).iterdir() if any(path.glob("*.py"))]
    return [*sorted(str(path.relative_to(_ROOT)) for path in nested), *_PRODUCT, "tests/support"]


def _modules(room: str) -> Iterator[Path]:
    return iter(sorted((_ROOT / room).glob("*.py") if room in _PRODUCT else (_ROOT / room).rglob("*.py")))


@cache
def _names(code: str) -> list[tuple[int, str]]:
    """Return the line and the name of each definition, argument and assignment, found once for all tests."""
    return list(_look_for_names(ast.parse(code)))


def _look_for_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr


@cache
def _parts(name: str) -> frozenset[str]:
    return frozenset(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))


def _refused_names(code: str, name: str) -> list[str]:
    found = _names(code)
    return [f"{name}:{line} {used}" for line, used in found if used not in _STANDARD and _parts(used) & _REFUSED]


def _refused_phrases(text: str, name: str) -> list[str]:
    pattern = re.compile(r"\b(" + "|".join(phrase.replace(" ", r"[\s#]+") for phrase in _PHRASES) + r")\b", re.I)
    found = ((match, text.count("\n", 0, match.start()) + 1) for match in pattern.finditer(text))
    return [f"{name}:{line} {' '.join(match[0].split())!r}" for match, line in found]


@pytest.mark.parametrize("room", _rooms())
def test_names_say_what_they_hold(room: str) -> None:
    found = [
        complaint
        for path in _modules(room)
        for complaint in _refused_names(path.read_text(), str(path.relative_to(_ROOT)))
    ]
    assert found == []


@pytest.mark.parametrize("room", _rooms())
def test_code_has_none_of_the_refused_phrases(room: str) -> None:
    found = [
        complaint
        for path in _modules(room)
        for complaint in _refused_phrases(path.read_text(), str(path.relative_to(_ROOT)))
    ]
    assert found == []


def _pages() -> list[Path]:
    folders = [_ROOT, *(_ROOT / name for name in ("docs", "shared", "deploy", ".github", "examples"))]
    pages = {page for folder in folders for page in folder.glob("*.md")}
    return sorted(pages.union((_ROOT / "examples").rglob("*.md")))


def test_pages_have_none_of_the_refused_phrases() -> None:
    pages = ((path.read_text(), str(path.relative_to(_ROOT))) for path in _pages())
    assert [complaint for text, name in pages for complaint in _refused_phrases(text, name)] == []


def test_vague_names_do_not_grow() -> None:
    counts: dict[str, int] = defaultdict(int)
    for room in (*_PRODUCT, "tests/support"):
        for path in (_ROOT / room).rglob("*.py"):
            for _, name in _names(path.read_text()):
                for part in _parts(name) & _AT_MOST.keys():
                    counts[part] += 1
    assert {part: count for part, count in counts.items() if count > _AT_MOST[part]} == {}


def test_modules_share_a_name_only_if_they_are_the_same_thing() -> None:
    rooms = defaultdict(list)
    for package in _PRODUCT:
        for path in (_ROOT / package).rglob("[!_]*.py"):
            rooms[path.name].append(str(path.parent.relative_to(_ROOT)))
    shared = {name: found for name, found in rooms.items() if len(found) > 1}
    assert {name: found for name, found in shared.items() if name not in _SAME_THING} == {}
    assert _SAME_THING.keys() <= shared.keys()


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("for one in rows: pass", ["m:1 one"]),
        ("def f(said): pass", ["m:1 said"]),
        ("self._has_told = 1", ["m:1 _has_told"]),
        ("class ToldResults: pass", ["m:1 ToldResults"]),
        ("for row in rows: pass", []),
        ("ones = one_hot = 1", []),
        ("x = other.said", []),
    ],
)
def test_which_names_are_found(code: str, found: list[str]) -> None:
    assert _refused_names(code, "m") == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("what is\n# said here", ["p:1 'is # said'"]),
        ("Whoever asks", ["p:1 'Whoever'"]),
        ("a field for thatch", []),
    ],
)
def test_which_phrases_are_found(text: str, found: list[str]) -> None:
    assert _refused_phrases(text, "p") == found

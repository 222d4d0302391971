"""Handlers of any exception in the product: each says why, and what it catches is never lost."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parents[1]
_BROAD = {"Exception", "BaseException"}
#: What hands an error on, besides raising it or using it.
_REPORTS = {"print_exc", "exception", "format_exc"}


def _modules() -> Iterator[Path]:
    for package in ("loader_server", "shared", "trainer_client"):
        yield from sorted((_ROOT / package).rglob("*.py"))


def _is_broad(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(one is None or (isinstance(one, ast.Name) and one.id in _BROAD) for one in kinds)


def _is_lost(handler: ast.ExceptHandler) -> bool:
    """Whether nothing becomes of the exception: it is not raised, used or printed."""
    nodes = [node for statement in handler.body for node in ast.walk(statement)]
    used = any(isinstance(node, ast.Name) and node.id == handler.name for node in nodes)
    reported = any(isinstance(node, ast.Attribute) and node.attr in _REPORTS for node in nodes)
    return not (used or reported or any(isinstance(node, ast.Raise) for node in nodes))


def _complaints(code: str, name: str) -> list[str]:
    lines, found = code.splitlines(), []
    for node in ast.walk(ast.parse(code)):
        takes_broad = isinstance(node, ast.Call) and any(map(_is_broad, node.args))
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type):
            found += [f"{name}:{node.lineno} loses the exception"] if _is_lost(node) else []
        elif not (takes_broad and ast.unparse(node.func).endswith("suppress")):  # unparsing all calls takes seconds
            continue
        found += [] if "  # " in lines[node.lineno - 1] else [f"{name}:{node.lineno} does not say why"]
    return found


def test_each_says_why_beside_it_and_loses_nothing() -> None:
    complaints = [
        complaint for path in _modules() for complaint in _complaints(path.read_text(), str(path.relative_to(_ROOT)))
    ]
    assert complaints == []


@pytest.mark.parametrize(
    ("handler", "complaints"),
    [
        ("except Exception:  # why\n    raise", []),
        ("except BaseException:\n    raise", ["m:3 does not say why"]),
        ("except (OSError, Exception):  # why\n    pass", ["m:3 loses the exception"]),
        ("except:\n    pass", ["m:3 loses the exception", "m:3 does not say why"]),
        ("except Exception as error:  # why\n    keep(error)", []),
        ("except Exception:  # why\n    traceback.print_exc()", []),
        ("except OSError:\n    pass", []),
    ],
)
def test_what_is_found(handler: str, complaints: list[str]) -> None:
    assert _complaints(f"try:\n    pass\n{handler}", "m") == complaints


def test_suppressing_all_is_found_as_well() -> None:
    assert _complaints("with contextlib.suppress(Exception):\n    pass", "m") == ["m:1 does not say why"]
    assert _complaints("with suppress(OSError):\n    pass", "m") == []

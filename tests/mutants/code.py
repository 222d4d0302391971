"""A module's source as mutants need it: where each node lies, and which nodes a mistake may fall into.

Rules: offsets are bytes of the file, so that an edit leaves everything else as it was; what only people or type
checkers read (annotations, docstrings, texts of errors and logs) is never reached, and neither is an assertion.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Code", "Place", "is_log_call"]

#: Lines that are written for whoever looks for a defect; that a warning is there at all is part of what we promise.
_CHATTER = ("debug", "info")
_LOG_LEVELS = (*_CHATTER, "warning", "error")


@dataclass(frozen=True, slots=True)
class Place:
    """A node, the statement and the function that it belongs to, and what that defines if it runs at import."""

    node: ast.AST
    statement: ast.stmt
    #: The name of the innermost function; empty: it runs at import.
    function: str
    #: The names that it gives a value to at import; empty in functions.
    defines: tuple[str, ...]

    def header(self) -> range:
        """The statement's lines, without the block under it."""
        body = getattr(self.statement, "body", None)
        end = body[0].lineno - 1 if body else self.statement.end_lineno or self.statement.lineno
        return range(self.statement.lineno, max(end, self.statement.lineno) + 1)


class Code:
    """One module: its bytes, and the places in it."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.lines = source.decode().splitlines()
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr | ast.stmt) -> str:
        return self.source[self.start(node) : self.end(node)].decode()

    def line_of(self, offset: int) -> int:
        """The number of the line that a byte is in, from 1."""
        return self.source.count(b"\n", 0, offset) + 1

    def places(self) -> Iterator[Place]:
        """Everywhere that a mistake may be put, in the order of the file."""
        for statement in self.tree.body:
            yield from _statement(statement, function="", around=())


def _statement(node: ast.stmt, *, function: str, around: tuple[str, ...]) -> Iterator[Place]:
    if _is_left_out(node):
        return
    here = Place(node, node, function, () if function else _defined(node) or around)
    yield here
    inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
    for child in _children(node):
        if isinstance(child, ast.stmt):
            yield from _statement(child, function=inner, around=here.defines)
        else:
            yield from _expression(child, here)


def _expression(node: ast.AST, here: Place) -> Iterator[Place]:
    if isinstance(node, ast.JoinedStr) or _is_error(node) or _is_strict(node):
        return
    yield Place(node, here.statement, here.function, here.defines)
    for child in ast.iter_child_nodes(node):
        yield from _expression(child, here)


def _children(node: ast.stmt) -> list[ast.AST]:
    """What of a statement may hold a mistake."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None), *node.body]
    if isinstance(node, ast.ClassDef):
        return [*node.body]
    if isinstance(node, ast.AnnAssign):
        return [node.value] if node.value is not None else []
    if isinstance(node, ast.Raise) or is_log_call(node):
        return []
    return [inner for child in ast.iter_child_nodes(node) for inner in _opened(child)]


def _opened(node: ast.AST) -> list[ast.AST]:
    """The arms of `try` and `match` are no statements of their own."""
    return [*ast.iter_child_nodes(node)] if isinstance(node, ast.ExceptHandler | ast.match_case) else [node]


def _is_left_out(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom) or is_log_call(node, _CHATTER):
        return True
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
        return True
    return "__all__" in _defined(node)


def _defined(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return tuple(one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return (node.name,)
    return ()


def is_log_call(node: ast.AST, levels: tuple[str, ...] = _LOG_LEVELS) -> bool:
    """Whether a statement writes to the log."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr not in levels:
        return False
    return ast.unparse(call.func.value).startswith("Log(") or ast.unparse(call.func.value).endswith("log")


def _is_error(node: ast.AST) -> bool:
    """An error that is made without being raised on the spot."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error")


def _is_strict(node: ast.AST) -> bool:
    """`zip(strict=True)` is an assertion."""
    return isinstance(node, ast.keyword) and node.arg == "strict" and ast.unparse(node.value) == "True"

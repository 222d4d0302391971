"""The mistakes: each is one small edit of the source, as a slip of the keyboard or of the mind would make it.

An operator gets a place and yields edits; it is told apart by its name in reports. Edits replace as few characters as
they can, so that the mutated line reads as a person would have written it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.mutants.code import Code, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Edit", "Mutant", "mutants_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One mistake in one module; `before` and `after` are the first line that differs, without indentation."""

    module: str
    line: int
    before: str
    after: str
    place: Place
    edit: Edit


@dataclass(frozen=True, slots=True)
class Edit:
    """Bytes `start` to `end` become `text`."""

    operator: str
    start: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        """The source with the mistake in it."""
        return source[: self.start] + self.text.encode() + source[self.end :]


_COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
_OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}


def mutants_of(module: str, source: bytes) -> Iterator[Mutant]:
    """All mistakes that can be put into a module, in the order of its lines."""
    code = Code(source)
    for place in code.places():
        for make in _OPERATORS.get(type(place.node), ()):
            for edit in make(place.node, code):
                if not _is_missed_at_once(place, edit):
                    yield _mutant(module, code, place, edit)


def _is_missed_at_once(place: Place, edit: Edit) -> bool:
    """An object that is made without one of its attributes: whatever uses it sees that."""
    dropped = edit.operator == "dropped statement" and isinstance(place.node, ast.Assign | ast.AnnAssign)
    return dropped and place.function == "__init__"


def _mutant(module: str, code: Code, place: Place, edit: Edit) -> Mutant:
    line = code.line_of(edit.start)
    after = edit.apply(code.source).splitlines()[line - 1].decode()
    before = code.lines[line - 1]
    return Mutant(module=module, line=line, before=before.strip(), after=after.strip(), place=place, edit=edit)


def _between(operator: str, code: Code, start: int, end: int, swap: tuple[str, str]) -> Iterator[Edit]:
    """Swap the sign that stands between two operands, whatever parentheses are there."""
    sign = r"\s+".join(rf"\b{word}\b" if word.isalpha() else re.escape(word) for word in swap[0].split())
    found = re.search(sign, code.source[start:end].decode())
    if found is not None:
        yield Edit(operator, start + found.start(), start + found.end(), swap[1])


def _comparison(node: ast.Compare, code: Code) -> Iterator[Edit]:
    operands = [node.left, *node.comparators]
    for left, sign, right in zip(operands, node.ops, operands[1:], strict=False):
        yield from _between("comparison", code, code.end(left), code.start(right), _COMPARISONS[type(sign)])


def _boolean(node: ast.BoolOp, code: Code) -> Iterator[Edit]:
    swap = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    for left, right in zip(node.values, node.values[1:], strict=False):
        yield from _between("and/or", code, code.end(left), code.start(right), swap)


def _sign(node: ast.UnaryOp, code: Code) -> Iterator[Edit]:
    start = code.start(node)
    if isinstance(node.op, ast.Not):
        yield Edit("dropped not", start, start + len("not "), "")
    elif isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield Edit("dropped minus", start, start + 1, "")


def _arithmetic(node: ast.BinOp, code: Code) -> Iterator[Edit]:
    if type(node.op) in _ARITHMETIC and not (_is_text(node.left) or _is_text(node.right)):
        yield from _between("arithmetic", code, code.end(node.left), code.start(node.right), _ARITHMETIC[type(node.op)])


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _constant(node: ast.Constant, code: Code) -> Iterator[Edit]:
    start, end = code.start(node), code.end(node)
    if isinstance(node.value, bool):
        yield Edit("true/false", start, end, str(not node.value))
    elif isinstance(node.value, int | float):
        for step in (1, -1):
            yield Edit("off by one", start, end, repr(node.value + step))


def _opposite(node: ast.Call, code: Code) -> Iterator[Edit]:
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    if name in _OPPOSITES:
        end = code.end(node.func)
        yield Edit("opposite function", end - len(name), end, _OPPOSITES[name])


def _condition(node: ast.If | ast.While | ast.IfExp, code: Code) -> Iterator[Edit]:
    yield from _decided(node.test, code)


def _filter(node: ast.comprehension, code: Code) -> Iterator[Edit]:
    for test in node.ifs:
        yield from _decided(test, code)


def _decided(test: ast.expr, code: Code) -> Iterator[Edit]:
    if isinstance(test, ast.Constant):
        return
    start, end = code.start(test), code.end(test)
    if not isinstance(test, ast.Compare | ast.UnaryOp):  # those are turned round by operators of their own
        yield Edit("condition", start, end, f"not ({code.text(test)})")
    yield Edit("condition", start, end, "True")
    yield Edit("condition", start, end, "False")


def _result(node: ast.Return, code: Code) -> Iterator[Edit]:
    if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield Edit("returns none", code.start(node.value), code.end(node.value), "None")


def _dropped(node: ast.stmt, code: Code) -> Iterator[Edit]:
    yield Edit("dropped statement", code.start(node), code.end(node), "pass")


def _dropped_call(node: ast.Expr, code: Code) -> Iterator[Edit]:
    if isinstance(node.value, ast.Call | ast.Await | ast.Yield | ast.YieldFrom):
        yield from _dropped(node, code)


def _dropped_assignment(node: ast.Assign | ast.AnnAssign, code: Code) -> Iterator[Edit]:
    """Of an attribute or an element: without its assignment a name is simply missing, which any test sees."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if node.value is not None and all(isinstance(one, ast.Attribute | ast.Subscript) for one in targets):
        yield from _dropped(node, code)


def _update(node: ast.AugAssign, code: Code) -> Iterator[Edit]:
    yield from _dropped(node, code)
    if type(node.op) in _ARITHMETIC and not _is_text(node.value):
        yield from _between(
            "arithmetic", code, code.end(node.target), code.start(node.value), _ARITHMETIC[type(node.op)]
        )


def _other_way(node: ast.Break | ast.Continue, code: Code) -> Iterator[Edit]:
    other = "continue" if isinstance(node, ast.Break) else "break"
    yield Edit("break/continue", code.start(node), code.end(node), other)


_OPERATORS: dict[type[ast.AST], tuple[Callable[..., Iterator[Edit]], ...]] = {
    ast.Compare: (_comparison,),
    ast.BoolOp: (_boolean,),
    ast.UnaryOp: (_sign,),
    ast.BinOp: (_arithmetic,),
    ast.Constant: (_constant,),
    ast.Call: (_opposite,),
    ast.If: (_condition,),
    ast.While: (_condition,),
    ast.IfExp: (_condition,),
    ast.comprehension: (_filter,),
    ast.Return: (_result,),
    ast.Raise: (_dropped,),
    ast.Delete: (_dropped,),
    ast.Expr: (_dropped_call,),
    ast.Assign: (_dropped_assignment,),
    ast.AnnAssign: (_dropped_assignment,),
    ast.AugAssign: (_update,),
    ast.Break: (_other_way,),
    ast.Continue: (_other_way,),
}

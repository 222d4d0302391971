"""The filter of a stream: an expression over lengths and columns, such as `text > 9 and speaker != "ann"`.

Rules: pure; the text is parsed as an expression and evaluated here, so it can name columns, compare and calculate, and
nothing else; it is never run as code. It is evaluated for many samples at once.
"""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.errors import SettingsError
from shared.settings.parsers import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

__all__ = ["RowFilter"]

#: An array with an entry for each sample, or one value for all.
_Value = Any

_CALCULATIONS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: np.divide,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_CONSTANTS = {"true": True, "false": False}
_NUMBER = "number"
_MOST_CHARACTERS = 10_000
_REMEDY = (
    'Write for instance filter = \'audio > 50 and speaker in ["ann", "bob"]\', with and, or, not, + - * /, '
    "comparisons, and number(column) for a column of numbers."
)


class _Misfit(Exception):  # a verdict that never leaves this module
    """A part that a filter may not contain; the reader turns it into a SettingsError with the place."""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """An expression that was parsed and accepted; `names` are the lengths and columns that it uses."""

    expression: str
    where: str
    names: tuple[str, ...]

    @staticmethod
    def read(expression: str, where: str) -> RowFilter:
        """Parse an expression.

        Raise a SettingsError if it is none, is too long, or has anything that filters do not allow.
        """
        made = RowFilter(expression, where, ())
        try:
            tree = _tree(expression)
            for node in ast.walk(tree):
                _refuse_unknown(node)
        except _Misfit as misfit:
            raise made._misfit(str(misfit)) from None
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called}
        return RowFilter(expression, where, tuple(sorted(names - _CONSTANTS.keys())))

    def passes(self, values: Mapping[str, _Value], samples: int) -> NDArray[np.bool_]:
        """Return which of `samples` samples pass, given an array for each of the filter's names.

        Raise a SettingsError if the types of the columns do not fit the expression, if it cannot be calculated, or if
        its value is neither true nor false.
        """
        try:
            # A division by zero gives inf or NaN, which then compares like any number: no reason for a warning.
            with np.errstate(divide="ignore", invalid="ignore"):
                made = _evaluated(_tree(self.expression), values)
        except _Misfit as misfit:
            raise self._misfit(str(misfit)) from None
        # Of numpy: a difference of truth values, a number beyond int64; of Python: an expression nested too deep.
        except (TypeError, OverflowError, RecursionError) as error:
            raise self._misfit(f"what cannot be calculated ({error})") from None
        if getattr(made, "dtype", type(made)) not in (bool, np.dtype(bool)):
            raise self._misfit("a value that is neither true nor false")
        return np.broadcast_to(np.asarray(made, bool), (samples,))

    def refuse_unknown(self, known: Mapping[str, _Value], where: str) -> None:
        """Raise a SettingsError if a source lacks a column that the filter uses.

        `known` are the lengths and columns that it has, and `where` is its name in the message.
        """
        for name in self.names:
            if name not in known:
                raise SettingsError(
                    expected=f"a length or column of {where}{nearest(name, known)}",
                    got=f'"{name}"',
                    where=f"{self.where}, filter",
                    remedy=f"It has {', '.join(sorted(known)) or 'none'}.",
                )

    def _misfit(self, got: str) -> SettingsError:
        return SettingsError(
            expected="a condition on lengths and columns",
            got=f"{got} in {self.expression!r}",
            where=f"{self.where}, filter",
            remedy=_REMEDY,
        )


# --- reading ---


def _tree(text: str) -> ast.expr:
    """Return an expression parsed; raise a _Misfit if it is longer than 10 000 characters or no expression."""
    try:
        if len(text) > _MOST_CHARACTERS:
            raise _Misfit(f"{len(text)} characters")
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _Misfit(f"{type(error).__name__}: {getattr(error, 'msg', error)}") from None


_PARTS: tuple[Any, ...] = (
    *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, *_CALCULATIONS),
    *(ast.Compare, *_COMPARISONS, ast.In, ast.NotIn, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple, ast.Call),
)


def _refuse_unknown(node: ast.AST) -> None:
    """Raise a _Misfit for a part that filters do not allow.

    Allowed are names, numbers, strings, lists or tuples of constants that are not empty, comparisons, `in`,
    calculations, `and`, `or`, `not`, and number(column).
    """
    # A list of what may be, because a job file may come from others, and Python has more ways to run code than anyone
    # could list.
    if not isinstance(node, _PARTS):
        raise _Misfit(f"{type(node).__name__}, which is not for filters,")
    if isinstance(node, ast.Constant) and not isinstance(node.value, int | float | str):
        raise _Misfit(f"{node.value!r}")
    if isinstance(node, ast.List | ast.Tuple) and not (
        node.elts and all(type(element) is ast.Constant for element in node.elts)
    ):
        raise _Misfit("a list of nothing, or of other things than numbers and strings,")
    if isinstance(node, ast.Call) and not _is_number_of_name(node):
        raise _Misfit(f"a call of {ast.unparse(node.func)}")


def _is_number_of_name(node: ast.Call) -> bool:
    named = isinstance(node.func, ast.Name) and node.func.id == _NUMBER
    return named and not node.keywords and len(node.args) == 1 and isinstance(node.args[0], ast.Name)


# --- evaluating ---


def _evaluated(node: ast.expr, values: Mapping[str, _Value]) -> _Value:
    return _HOW[type(node)](node, values)


def _of_name(node: Any, values: Mapping[str, _Value]) -> _Value:
    return _CONSTANTS[node.id] if node.id in _CONSTANTS else values[node.id]


def _joined(node: Any, values: Mapping[str, _Value]) -> _Value:
    return reduce(
        np.logical_and if isinstance(node.op, ast.And) else np.logical_or,
        [_true_or_false(_evaluated(part, values)) for part in node.values],
    )


def _turned(node: Any, values: Mapping[str, _Value]) -> _Value:
    value = _evaluated(node.operand, values)
    return np.logical_not(_true_or_false(value)) if isinstance(node.op, ast.Not) else -_number(value)


def _calculated(node: Any, values: Mapping[str, _Value]) -> _Value:
    left, right = (_number(_evaluated(side, values)) for side in (node.left, node.right))
    return _CALCULATIONS[type(node.op)](left, right)


def _compared(node: Any, values: Mapping[str, _Value]) -> _Value:
    sides = [_evaluated(side, values) for side in (node.left, *node.comparators)]
    return reduce(np.logical_and, map(_pair, sides, node.ops, sides[1:], [node] * len(node.ops)))


def _pair(left: _Value, compare: ast.cmpop, right: _Value, node: ast.Compare) -> _Value:
    """Compare two values; raise a _Misfit if they do not fit.

    That is a list without `in`, `in` without a list on its right, a list on the left, or strings compared with numbers.
    """
    is_listed = isinstance(compare, ast.In | ast.NotIn)
    if isinstance(right, list) != is_listed or isinstance(left, list):
        raise _Misfit("a list without in, or in without a list,")
    # numpy finds strings of an object array unequal to any number, without an error.
    if {_kind(left)} != {_kind(value) for value in (right if is_listed else [right])}:
        raise _Misfit(f"{ast.unparse(node)}, which compares strings with numbers,")
    if not is_listed:
        return _COMPARISONS[type(compare)](left, right)
    contained = reduce(np.logical_or, [left == value for value in right])
    return contained if isinstance(compare, ast.In) else np.logical_not(contained)


_HOW: Mapping[type[ast.expr], Callable[[Any, Mapping[str, _Value]], _Value]] = {
    ast.Constant: lambda node, _: node.value,
    ast.List: lambda node, _: [element.value for element in node.elts],
    ast.Tuple: lambda node, _: [element.value for element in node.elts],
    ast.Name: _of_name,
    ast.Call: lambda node, values: _numbers(_evaluated(node.args[0], values)),
    ast.BoolOp: _joined,
    ast.UnaryOp: _turned,
    ast.BinOp: _calculated,
    ast.Compare: _compared,
}


def _kind(value: _Value) -> str:
    if isinstance(value, str) or getattr(getattr(value, "dtype", None), "kind", "") == "O":
        return "string"
    return "number"


def _number(value: _Value) -> _Value:
    """Return a value to calculate with; raise a _Misfit if it is a string or a list."""
    if isinstance(value, list) or _kind(value) == "string":
        raise _Misfit("a calculation with strings")
    return value


def _true_or_false(value: _Value) -> _Value:
    """Return a truth value; raise a _Misfit if it is anything else."""
    if getattr(value, "dtype", type(value)) not in (bool, np.dtype(bool)):
        raise _Misfit("and, or, not of what is neither true nor false")
    return value


def _numbers(strings: _Value) -> NDArray[np.float64]:
    """Return strings as numbers; one that is no number becomes NaN, for which all comparisons but `!=` are false."""
    return np.array(list(map(_float, np.atleast_1d(strings))), np.float64)


def _float(text: object) -> float:
    try:
        return float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return float("nan")

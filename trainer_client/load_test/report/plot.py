"""Line charts as inline SVG: axes, lines, dots and words, in colours that the page's style sheet names.

Rules: pure, text in and text out; a line is a list of points in the data's own units; every line has its name at its
end, so no legend is needed; an axis is linear or logarithmic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Axis", "Series", "chart", "linear", "logarithmic"]

_WIDTH, _HEIGHT = 640, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 92, 14, 40

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Axis of a chart: `place` maps its units to 0 … 1, ticks are values with their words."""

    title: str
    place: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Series of points, drawn as a line or as dots; `look` is its class in the style sheet."""

    name: str
    points: Sequence[Point]
    look: str
    dots: bool = False


def linear(title: str, low: float, high: float, *, count: int = 5) -> Axis:
    """Return an axis from `low` to at least `high`, with ticks at round numbers."""
    step = _round_step((high - low) / count or 1.0)
    # 1e-9, or a bound that is a multiple of the step but for rounding would get one more tick.
    first, last = math.floor(low / step + 1e-9), max(math.ceil(high / step - 1e-9), math.floor(low / step + 1e-9) + 1)
    bottom, top = first * step, last * step
    ticks = [(n * step, f"{n * step:,.10g}") for n in range(first, last + 1)]
    return Axis(title=title, place=lambda value: (value - bottom) / (top - bottom), ticks=ticks)


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(size * power for size in (1, 2, 5, 10) if size * power >= rough * 0.999)


def logarithmic(title: str, low: float, high: float) -> Axis:
    """Return an axis of powers of ten around both values; smaller values are drawn at its lower end."""
    foot = math.floor(math.log10(max(low, 1e-3)))
    head = max(math.ceil(math.log10(max(high, 1e-3))), foot + 1)
    ticks = [(10.0**power, f"{10.0**power:,.10g}") for power in range(foot, head + 1)]
    return Axis(
        title=title,
        place=lambda value: (math.log10(max(value, 10.0**foot)) - foot) / (head - foot),
        ticks=ticks,
    )


def chart(title: str, across: Axis, up: Axis, lines: Sequence[Series]) -> str:
    """Return an HTML figure of the lines, with its title as caption."""
    body = [_grid(across, up), *(_line(line, across, up) for line in lines), _names(lines, up)]
    attributes = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title, quote=True)}"'
    return f"<figure><figcaption>{escape(title)}</figcaption><svg {attributes}>{''.join(body)}</svg></figure>"


def _x(axis: Axis, value: float) -> float:
    return _LEFT + axis.place(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(axis: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - axis.place(value) * (_HEIGHT - _TOP - _BOTTOM)


def _grid(across: Axis, up: Axis) -> str:
    right, foot = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    rows = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{_y(up, value):.1f}" y2="{_y(up, value):.1f}"/>'
        f'<text class="tick" x="{_LEFT - 8}" y="{_y(up, value) + 4:.1f}" text-anchor="end">{escape(word)}</text>'
        for value, word in up.ticks
    )
    columns = "".join(
        f'<text class="tick" x="{_x(across, value):.1f}" y="{foot + 16}" text-anchor="middle">{escape(word)}</text>'
        for value, word in across.ticks
    )
    center, middle = (_LEFT + right) / 2, (_TOP + foot) / 2
    turned = f'transform="rotate(-90 13 {middle})"'
    titles = (
        f'<text class="axis" x="{center}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(across.title)}</text>'
        f'<text class="axis" x="13" y="{middle}" text-anchor="middle" {turned}>{escape(up.title)}</text>'
    )
    return rows + columns + titles


def _line(line: Series, across: Axis, up: Axis) -> str:
    places = [(_x(across, x), _y(up, y)) for x, y in line.points]
    if line.dots:
        return "".join(f'<circle class="{line.look}" cx="{x:.1f}" cy="{y:.1f}" r="2.2"/>' for x, y in places)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="{line.look}" points="{path}"/>'


def _names(lines: Sequence[Series], up: Axis) -> str:
    """Return the name of each line at its end, pushed apart where names would overlap."""
    named = [(_y(up, line.points[-1][1]), line) for line in lines if line.points and line.name]
    words, last = [], -math.inf
    for height, line in sorted(named, key=itemgetter(0)):
        last = max(height, last + 15)
        words.append(
            f'<text class="name {line.look}" x="{_WIDTH - _RIGHT + 8}" y="{last + 4:.1f}">{escape(line.name)}</text>'
        )
    return "".join(words)

"""Report of a load test as one HTML page of figures and charts.

Nothing is loaded from elsewhere, and the page is light or dark as the reader's system is. Charts are inline SVG in the
colours that its style sheet names: a line is a list of points in the data's own units, an axis is linear or
logarithmic, and every line has its name at its end, so no legend is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from trainer_client.load_test.report.figures import (
    TITLES,
    changes,
    differences,
    figure_rows,
    limits_text,
    settings_text,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Axis", "Series", "chart", "linear", "logarithmic", "page"]

_STYLE = """
:root { color-scheme: light dark; --paper: #fbfbfa; --card: #ffffff; --ink: #1c2024; --soft: #60666d; --rule: #e2e4e6;
  --a: #1f6fb2; --b: #c2571a; --c: #7a3fa0; --old: #9aa0a6; --good: #1a7f4b; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181b; --card: #1c2024; --ink: #e8eaec; --soft: #a0a7ae;
  --rule: #33393f; --a: #6cb2ec; --b: #f0955c; --c: #c795e8; --old: #767d84; --good: #5fce94; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1360px; padding: 28px 24px 40px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 30px 0 8px; } p { margin: 0 0 14px; }
.soft, .axis, .tick { color: var(--soft); fill: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 20px 0; }
.tile, figure { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; }
.tile { padding: 12px 14px; } .tile b { display: block; font-size: 24px; line-height: 1.25; font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 560px), 1fr)); gap: 14px; }
figure { margin: 0; padding: 12px 14px 6px; } figcaption { font-weight: 600; margin-bottom: 4px; }
svg { display: block; width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg .tick, svg .axis { fill: var(--soft); } svg .grid { stroke: var(--rule); }
polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
polyline.a { stroke: var(--a); } polyline.b { stroke: var(--b); } polyline.c { stroke: var(--c); }
polyline.old { stroke: var(--old); stroke-dasharray: 5 4; } circle.a { fill: var(--a); }
svg text.a { fill: var(--a); } svg text.b { fill: var(--b); } svg text.c { fill: var(--c); }
svg text.old { fill: var(--soft); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); }
"""

_WIDTH, _HEIGHT = 640, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 92, 14, 40

Point = tuple[float, float]


def page(document: Mapping[str, Any], old: Mapping[str, Any] | None) -> str:
    """Return the report as HTML page, with any older one beside; raise KeyError or IndexError if parts are missing."""
    facts = [f"{name} {value}" for part in ("machine", "versions") for name, value in document[part].items()]
    parts = [
        f"<h1>Load test: {escape(document['mode'])}</h1>",
        f'<p class="soft">{escape(settings_text(document))}. {escape(document["at"])}</p>',
        _verdict(document),
        f"<p><b>What limits it:</b> {escape(limits_text(document))}.</p>",
        _tiles(document["figures"]),
        f'<div class="charts">{_charts(document, old)}</div>',
        f"<h2>All figures</h2>{_html_table(figure_rows(document))}",
        f"<h2>Compared with the older test</h2>{_comparison(document, old)}" if old is not None else "",
        f'<h2>Where</h2><p class="soft">{escape(", ".join(facts))}</p>',
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Load test: {escape(document['mode'])}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _verdict(document: Mapping[str, Any]) -> str:
    if document["broken"]:
        return f'<p class="bad"><b>Not kept:</b> {escape("; ".join(document["broken"]))}.</p>'
    return '<p class="good"><b>Nothing lost, nothing repeated, no error</b>, and every limit that was set was kept.</p>'


def _tiles(figures: Mapping[str, Any]) -> str:
    facts = [
        ("accelerator utilisation", figures["utilisation"] and f"{100 * figures['utilisation']:.1f} %"),
        ("wait, p99", f"{figures['wait_p99_ms']:,.3g} ms"),
        ("batches a second", f"{figures['batches_per_s']:,.0f}"),
        ("trainers", f"{figures['trainers']:,}"),
        ("cores, trainers", f"{figures['harness_cores']:.2f}"),
        ("cores, loaders", figures["loader_cores"] and f"{figures['loader_cores']:.2f}"),
    ]
    tiles = "".join(
        f'<div class="tile"><span class="soft">{escape(name)}</span><b>{escape(value)}</b></div>'
        for name, value in facts
        if value
    )
    return f'<div class="tiles">{tiles}</div>'


# --- charts ---


def _charts(document: Mapping[str, Any], old: Mapping[str, Any] | None) -> str:
    run = _middle(document["runs"])
    drawn = [_batches(run), _waits_by_second(run), _waits_by_share(run, _middle(old["runs"]) if old else None)]
    if run["utilisations"]:
        drawn.append(_utilisations(run))
    return "".join(drawn)


def _middle(runs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the repeat to draw, of at least one: the median by batches a second, of two in the middle the faster."""
    return sorted(runs, key=lambda run: float(run["figures"]["batches_per_s"]))[len(runs) // 2]


def _whole_seconds(run: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return all seconds but the last one, which was cut short, unless it is the only one; maybe none."""
    seconds: Sequence[Mapping[str, Any]] = run["by_second"]
    return seconds[:-1] or seconds


def _batches(run: Mapping[str, Any]) -> str:
    points = [(second["second"], second["batches"]) for second in _whole_seconds(run)]
    most = max((batches for _, batches in points), default=1)
    across = linear("seconds since the start", 0, max(len(points) - 1, 1))
    line = Series(name="batches", points=points, look="a")
    return chart("Batches in each second, all trainers together", across, linear("batches", 0, most), [line])


def _waits_by_second(run: Mapping[str, Any]) -> str:
    names = {"wait_max_ms": ("longest", "c"), "wait_p99_ms": ("p99", "b"), "wait_p50_ms": ("p50", "a")}
    seconds = _whole_seconds(run)
    lines = [
        Series(name=name, points=[(second["second"], second[key]) for second in seconds], look=look)
        for key, (name, look) in names.items()
    ]
    highest = max((second["wait_max_ms"] for second in seconds), default=1.0)
    lowest = min((second["wait_p50_ms"] for second in seconds), default=0.1)
    across = linear("seconds since the start", 0, max(len(seconds) - 1, 1))
    return chart("Waiting for a batch, second by second", across, logarithmic("ms", lowest, highest), lines)


def _waits_by_share(run: Mapping[str, Any], old: Mapping[str, Any] | None) -> str:
    lines = [Series(name="this test", points=_nines(run), look="a")]
    if old is not None:
        lines.insert(0, Series(name="older test", points=_nines(old), look="old"))
    heights = [height for line in lines for _, height in line.points] or [1.0]
    most = max((at for line in lines for at, _ in line.points), default=1.0)
    across = Axis(
        title="share of all waits that are at most this long",
        place=lambda nines: nines / most if most else 0.0,
        ticks=[(nines, word) for nines, word in _NINES if nines <= most],
    )
    return chart(
        "Waiting for a batch, from the usual to the rare", across, logarithmic("ms", min(heights), max(heights)), lines
    )


#: Ticks of the share axis: shares by their number of nines.
_NINES = (
    (0.0, "0 %"),
    (1.0, "90 %"),
    (2.0, "99 %"),
    (3.0, "99.9 %"),
    (4.0, "99.99 %"),
    (5.0, "99.999 %"),
    (6.0, "99.9999 %"),
)


def _nines(run: Mapping[str, Any]) -> list[tuple[float, float]]:
    # The curve halves the distance to 1 at each step, and a nine is a tenth: log10(2) nines a step.
    return [(halvings * 0.30103, wait_ms) for halvings, (_, wait_ms) in enumerate(run["wait_curve_ms"])]


def _utilisations(run: Mapping[str, Any]) -> str:
    shares = sorted(run["utilisations"])
    points = [(place + 1, 100 * share) for place, share in enumerate(shares)]
    across = linear("trainers, the least utilised first", 0, len(shares))
    return chart(
        "Accelerator utilisation of each trainer",
        across,
        linear("%", min(90.0, points[0][1]), 100),
        [Series(name="", points=points, look="a", dots=True)],
    )


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
    """Return an axis from at most `low` to at least `high`, with round ticks in about `count` steps or fewer."""
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
    """Return an axis of powers of ten around both values, at least 0.001; smaller ones are drawn at its lower end."""
    foot = math.floor(math.log10(max(low, 1e-3)))
    head = max(math.ceil(math.log10(max(high, 1e-3))), foot + 1)
    ticks = [(10.0**power, f"{10.0**power:,.10g}") for power in range(foot, head + 1)]
    return Axis(
        title=title,
        place=lambda value: (math.log10(max(value, 10.0**foot)) - foot) / (head - foot),
        ticks=ticks,
    )


def chart(title: str, across: Axis, up: Axis, lines: Sequence[Series]) -> str:
    """Return an HTML figure of the lines, drawn on both axes, with its title as caption."""
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
    """Return SVG texts with the name of each line at its end, pushed apart where names would overlap.

    Lines without a name or without points are left out.
    """
    named = [(_y(up, line.points[-1][1]), line) for line in lines if line.points and line.name]
    words, last = [], -math.inf
    for height, line in sorted(named, key=itemgetter(0)):
        last = max(height, last + 15)
        words.append(
            f'<text class="name {line.look}" x="{_WIDTH - _RIGHT + 8}" y="{last + 4:.1f}">{escape(line.name)}</text>'
        )
    return "".join(words)


# --- tables ---


def _comparison(document: Mapping[str, Any], old: Mapping[str, Any]) -> str:
    looks = {"better": "good", "worse": "bad", "equal": "soft"}
    rows = ["<tr><th>figure</th><th>then</th><th>now</th><th>change</th></tr>"]
    for change in changes(old["figures"], document["figures"]):
        percent = "" if change.percent is None else f"{change.percent:+.1f} % "
        rows.append(
            f"<tr><td>{escape(TITLES[change.name])}</td><td>{shown(change.before)}</td><td>{shown(change.now)}</td>"
            f'<td class="{looks[change.verdict]}">{percent}{change.verdict}</td></tr>'
        )
    differing = differences(old["settings"], document["settings"])
    warning = f'<p class="bad">The settings differ: {escape(differing)}.</p>' if differing else ""
    return f'{warning}<div class="wide"><table>{"".join(rows)}</table></div>'


def _html_table(rows: Sequence[Sequence[str]]) -> str:
    heads, *others = rows
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in others)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'

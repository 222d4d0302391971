"""The tables of the job file's settings in `docs/settings.md`, made from their declarations.

`python -m tests.support.settings_table` writes them anew.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader_server.planning import PlanSettings
from loader_server.sources.chunks.cutting import ChunkSettings
from loader_server.sources.registry import settings_of_sources
from loader_server.transforms.find import settings_of_built_ins
from shared.bad_limit import BadLimit
from shared.settings.job import JobSettings, StreamSettings
from shared.settings.parsers import byte_count, duration_s

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PAGE", "settings_table", "with_settings"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
_BEGIN, _END = "<!-- settings -->\n", "<!-- end of settings -->"


def with_settings(text: str) -> str:
    """A page with what stands between its two marks made anew."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{settings_table()}\n{_END}{after}"


def settings_table() -> str:
    """One Markdown table for each table of the job file."""
    parts = [
        ("`[job]`", JobSettings),
        ("`[streams.<name>]`", StreamSettings),
        ("`[streams.<name>]`, [chunks](chunks.md)", ChunkSettings),
        ("`[streams.<name>]`, batching", PlanSettings),
        *((f'`[streams.<name>]` with `source = "{name}"`', kind) for name, kind in settings_of_sources().items()),
        *((f"`[streams.<name>.{name}]`", kind) for name, kind in settings_of_built_ins().items()),
    ]
    return "\n\n".join(_table(title, kind) for title, kind in parts)


def _table(title: str, kind: type) -> str:
    rows = [f"| `{field.name}` | {_default(field)} | {field.metadata['help']} |" for field in dataclasses.fields(kind)]
    return "\n".join([f"{title}\n", "| setting | default | meaning |", "| --- | --- | --- |", *rows])


def _default(field: dataclasses.Field) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    if field.default in {"", (), None}:
        return ""
    return f"`{_written(field)(field.default)}`"


def _written(field: dataclasses.Field) -> Callable[[Any], str]:
    """How one writes a parsed value in a job file."""
    if field.metadata["parse"] is byte_count:
        return lambda value: f'"{value // 2**20} MiB"'
    if field.metadata["parse"] is duration_s or field.name in ("heartbeat_timeout", "build_timeout"):
        return lambda value: f'"{value:g} s"' if value >= 1 else f'"{1000 * value:g} ms"'
    if isinstance(field.default, tuple):
        return lambda value: str(list(value))
    if isinstance(field.default, BadLimit):
        return lambda value: f'"{value}"'
    return lambda value: str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    PAGE.write_text(with_settings(PAGE.read_text("utf-8")), "utf-8")

"""The README's table of the job file's settings, made from their declarations: `python -m
tests.support.settings_table`."""

from __future__ import annotations

import dataclasses

from loader_server.planning import PlanSettings
from loader_server.sources.source import SOURCES
from loader_server.transforms.chain import BUILT_INS
from shared.config import JobSettings, StreamSettings

__all__ = ["settings_table"]


def settings_table() -> str:
    """One Markdown table for each table of the job file."""
    parts = [
        ("`[job]`", JobSettings),
        ("`[streams.<name>]`", StreamSettings),
        ("`[streams.<name>]`, batching", PlanSettings),
        *((f'`[streams.<name>]` with `source = "{name}"`', kind.settings) for name, kind in SOURCES.items()),
        *((f"`[streams.<name>.{name}]`", kind) for name, (kind, _) in BUILT_INS.items()),
    ]
    return "\n\n".join(_table(title, kind) for title, kind in parts)


def _table(title: str, kind: type) -> str:
    rows = [f"| `{field.name}` | {_default(field)} | {field.metadata['help']} |" for field in dataclasses.fields(kind)]
    return "\n".join([f"{title}\n", "| setting | default | meaning |", "| --- | --- | --- |", *rows])


def _default(field: dataclasses.Field) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    return "" if field.default in ("", (), None) else f"`{field.default}`".lower()


if __name__ == "__main__":
    print(settings_table())

"""Recorded series as a test file of promtool."""

from pathlib import Path


def render(path: Path) -> None: ...

"""Logs: a constant event name and fields, as JSON lines unless the output is a terminal.

Rules: job, worker and rank are bound once, at the start of a process; per-batch lines only at debug; nothing is
configured at import. A library user's own logging set-up is left alone: only our commands call `start_logging`.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Any, TextIO

__all__ = ["Log", "start_logging"]


class Log:
    """A logger with fields bound to it."""

    def __init__(self, name: str, **bound: object) -> None:
        self._logger = logging.getLogger(f"stoker.{name}")
        self._bound = bound

    def bind(self, **more: object) -> Log:
        """Return a logger that writes these fields with each line as well; they replace bound ones of the same name."""
        return Log(self._logger.name.removeprefix("stoker."), **{**self._bound, **more})

    def debug(self, event: str, **fields: object) -> None:
        """Log a detail that helps to find a defect, with these fields and those bound; nothing if the level is off."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Log a fact that an operator will want to know afterwards, with these fields and those bound."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log a problem that does not stop work, with these fields and those bound."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Log a problem that stops work, with these fields and those bound."""
        self._write(logging.ERROR, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            fields = {**self._bound, **fields}
            # The message repeats the fields, so that handlers which only write messages lose nothing.
            words = " ".join(f"{key}={value}" for key, value in fields.items())
            self._logger.log(level, "%s  %s", event, words, extra={"event": event, "fields": fields})


class _JsonLines(logging.Formatter):
    """Formatter of one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = getattr(record, "fields", {})
        event = getattr(record, "event", record.getMessage())
        # As text if JSON has no form for it: a field that cannot be written would lose the whole line.
        return json.dumps({"at": when, "level": record.levelname.lower(), "event": event, **fields}, default=str)


class _Readable(logging.Formatter):
    """Formatter of lines for people, with the local time."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, timezone.utc).astimezone().strftime("%H:%M:%S")
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return f"{when}  {level}{record.getMessage()}".rstrip()


def start_logging(*, level: str = "info", stream: TextIO | None = None) -> None:
    """Write our logs from `level` on to `stream` (standard error): readable at a terminal, JSON lines elsewhere.

    Handlers of an earlier call are replaced. Raise ValueError for an unknown level.
    """
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Readable() if stream.isatty() else _JsonLines())
    logger = logging.getLogger("stoker")
    logger.handlers[:] = [handler]  # instead of those of an earlier call: each line once
    logger.setLevel(level.upper())
    logger.propagate = False  # a handler at the root would write each line once more

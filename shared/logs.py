"""Logs: a constant event name and fields, as JSON lines unless the output is a terminal.

Rules: job, worker, and a trainer's name, rank and run are bound once, when they are known. Lines on batches are at
debug, behind `is_debugged`. What lasts is two lines, as it begins and as it ends (`shared/events/spells`). Nothing is
configured at import. A library user's own logging set-up is left alone: only our commands call `start_logging`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import datetime, timezone
from typing import Any, TextIO

__all__ = ["Log", "logfmt", "start_logging"]

#: A value with none of these characters stands in a line as it is. Others are quoted: blanks and controls, by which a
#: line would be split or broken, the quotes and backslashes of quoting itself, and the sign between key and value.
_BARE = re.compile(r"[^\s\x00-\x1f\x7f-\x9f\u2028\u2029\"\\=]+")


def logfmt(value: object) -> str:
    """Return a field's value as it stands behind `key=`: plain if that is unambiguous, else quoted as JSON quotes it.

    None, True and False are `null`, `true` and `false`, as in JSON lines.
    """
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=not text.isprintable())


class Log:
    """A logger with fields bound to it."""

    def __init__(self, name: str, **bound: object) -> None:
        self._logger = logging.getLogger(f"stoker.{name}")
        self._bound = bound

    def bind(self, **more: object) -> Log:
        """Return a logger that writes these fields with each line as well; they replace bound ones of the same name.

        A field of None is left out.
        """
        bound = {key: value for key, value in {**self._bound, **more}.items() if value is not None}
        return Log(self._logger.name.removeprefix("stoker."), **bound)

    @property
    def is_debugged(self) -> bool:
        """Whether debug lines are written: to be asked before fields of a line about each batch are put together."""
        return self._logger.isEnabledFor(logging.DEBUG)

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
            words = " ".join(f"{key}={logfmt(value)}" for key, value in fields.items())
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

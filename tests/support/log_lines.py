"""The log lines of a test, as their readers get them: event, level and fields."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Lines"]


class Lines(logging.Handler):
    """What is logged within the block, from `level` on; nothing else hears it."""

    def __init__(self, level: int = logging.INFO) -> None:
        super().__init__(level)
        self._logger = logging.getLogger("stoker")
        self._before = (list(self._logger.handlers), self._logger.level, self._logger.propagate)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line."""
        self.records.append(record)

    @property
    def events(self) -> list[str]:
        """The event of each line."""
        return [record.event for record in self.records]  # type: ignore[attr-defined]

    def fields(self, event: str) -> list[dict[str, Any]]:
        """The fields of each line with this event."""
        return [record.fields for record in self.records if record.event == event]  # type: ignore[attr-defined]

    def __enter__(self) -> Self:
        self._logger.handlers[:], self._logger.propagate = [self], False
        self._logger.setLevel(self.level)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.handlers[:], level, self._logger.propagate = self._before
        self._logger.setLevel(level)

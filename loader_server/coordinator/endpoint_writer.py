"""Keeps the file `<state>/endpoint` true: it says where others reach this coordinator, for as long as it serves.

Rules: only the process that holds the journal's lock has one. The address is worked out anew with each `write`, because
it may come late or change; the file is written again only if it does not say that address. A full disk holds up
nothing: it is tried again.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from loader_server.machine.reachable import find_reachable_endpoint
from shared.endpoints import advertised
from shared.system.endpoint_file import write_endpoint

if TYPE_CHECKING:
    from pathlib import Path

    from shared.logs import Log

__all__ = ["EndpointWriter"]


class EndpointWriter:
    """Writes one file; `close` removes it, so that nobody asks at a port that another process may have next."""

    def __init__(self, file: Path, bound: str, advertise: str, log: Log) -> None:
        self._file = file
        self._told = advertised(bound, advertise)
        self._log = log
        #: What the file says, and why it could not be written the last time.
        self._written = self._problem = ""

    def write(self) -> None:
        """Write where we are reached, if the file does not say so."""
        endpoint = find_reachable_endpoint(self._told, self._told)
        if endpoint is None or (endpoint == self._written and self._file.exists()):
            return
        try:
            write_endpoint(self._file, endpoint)
        except OSError as error:
            if str(error) != self._problem:
                self._log.warning("endpoint file cannot be written yet", file=self._file, error=str(error))
            self._problem = str(error)
        else:
            self._written, self._problem = endpoint, ""

    def close(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

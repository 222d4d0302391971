"""Maintenance of the file `<state>/endpoint`, the address at which others reach this coordinator while it serves.

Rules: only the process that holds the journal's lock has a writer. Each `write` works out the address anew, because it
may appear late or change, and writes the file only if its content differs. A full disk holds up nothing: the next call
tries again.
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
    """Writer of one endpoint file.

    `close` removes the file, so that nobody connects to a port that another process may have by then. Making it raises
    SettingsError if `advertise` is given and nobody could connect to it.
    """

    def __init__(self, file: Path, bound: str, advertise: str, log: Log) -> None:
        self._file = file
        self._announced = advertised(bound, advertise)
        self._log = log
        #: The address in the file, and the last write's error (empty if it succeeded); an error is logged once.
        self._written = self._problem = ""

    def write(self) -> None:
        """Write the reachable endpoint to the file unless it is there already; keep the old file if none is found.

        If it cannot be written, or no descriptor is left to look for the address with, that is logged once, and the
        next call tries again.
        """
        try:
            endpoint = find_reachable_endpoint(self._announced, self._announced)
            if endpoint is None or (endpoint == self._written and self._file.exists()):
                return
            write_endpoint(self._file, endpoint)
        except OSError as error:
            if str(error) != self._problem:
                self._log.warning("endpoint file cannot be written yet", file=self._file, error=str(error))
            self._problem = str(error)
        else:
            self._written, self._problem = endpoint, ""

    def close(self) -> None:
        """Remove the file, so that nobody finds an ended coordinator; ignore one that cannot be removed."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

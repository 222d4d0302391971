"""A real Prometheus for tests, and what our rules say, read without a YAML library."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PROMETHEUS", "WHY_NOT", "Prometheus", "metrics_named", "recorded_names", "rules_text", "watching"]

FOLDER = Path(__file__).resolve().parents[2] / "monitoring" / "prometheus"
PROMETHEUS = shutil.which("prometheus")
WHY_NOT = "Debian's package prometheus is not installed; `make monitoring-test` installs it where it can"

_NAME = re.compile(r"\b(?:stoker[a-z_0-9:]*|up|process_[a-z_]+)\b")


def rules_text() -> str:
    """Both rule files."""
    return (FOLDER / "rules.yml").read_text() + (FOLDER / "alerts.yml").read_text()


def recorded_names() -> set[str]:
    """What the recording rules make."""
    return set(re.findall(r"record: (\S+)", rules_text()))


def metrics_named(expr: str) -> set[str]:
    """The metrics that an expression names; label values are none."""
    return set(_NAME.findall(re.sub(r'"[^"]*"', "", expr)))


class Prometheus:
    """A server that was started on a free port."""

    def __init__(self, log: Path) -> None:
        self._log = log

    @property
    def address(self) -> str:
        """Where it listens, once it does."""
        found = re.search(r'msg="Listening on" address=(\S+)', self._log.read_text())
        return found[1] if found else ""

    def is_ready(self) -> bool:
        """Whether it answers queries: it listens before it has read what it stored."""
        if not self.address:
            return False
        try:
            return urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=30).status == HTTPStatus.OK
        except OSError:
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        answer = json.loads(urllib.request.urlopen(url, timeout=30).read())
        assert answer["status"] == "success"
        return answer["data"]

    def values(self, expr: str) -> list[float]:
        """The values of a query, now; NaN is no data."""
        values = [float(series["value"][1]) for series in self.ask("query", query=expr)["result"]]
        return [value for value in values if not math.isnan(value)]


#: How our configuration finds the processes of a machine.
_FOUND_BY_URL = "http_sd_configs:\n      - url: http://127.0.0.1:7490/targets"


@contextmanager
def watching(targets: Path | str, folder: Path, *, every: str = "1s") -> Iterator[Prometheus]:
    """A real Prometheus with our configuration, asking every second or so often, for the length of a block.

    It finds processes by a URL, as ours does, or by the files of a folder.
    """
    config = (FOLDER / "prometheus.yml").read_text()
    by_url = _FOUND_BY_URL.replace("http://127.0.0.1:7490/targets", str(targets))
    found = by_url if isinstance(targets, str) else f'file_sd_configs:\n      - files: ["{targets}/*.json"]'
    for ours, here in (("5s", every), (_FOUND_BY_URL, found)):
        assert ours in config
        config = config.replace(ours, here)
    (folder / "prometheus.yml").write_text(config)
    for name in ("rules.yml", "alerts.yml"):
        shutil.copy(FOLDER / name, folder)
    log = folder / "prometheus.log"
    assert PROMETHEUS is not None
    command = [
        PROMETHEUS,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=folder)
    prometheus = Prometheus(log)
    try:
        wait_until(lambda: prometheus.is_ready() or process.poll() is not None, "Prometheus is ready", 60)
        assert process.poll() is None, log.read_text()
        yield prometheus
    finally:
        process.terminate()
        process.wait(60)

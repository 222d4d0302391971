"""What compose.yml mounts is there, and what it serves stays on loopback."""

from __future__ import annotations

import re

from tests.support.monitoring import FOLDER

MONITORING = FOLDER.parent
COMPOSE = (MONITORING / "compose.yml").read_text()


def test_what_is_mounted_is_in_the_repository() -> None:
    mounted = dict(re.findall(r"- \./([\w/]+):([\w/]+):ro", COMPOSE))
    assert mounted == {
        "prometheus": "/etc/prometheus",
        "grafana/provisioning": "/etc/grafana/provisioning",
        "grafana/dashboards": "/dashboards",
    }
    assert all((MONITORING / folder).is_dir() for folder in mounted)


def test_prometheus_and_grafana_are_told_where_things_are() -> None:
    assert "url: http://127.0.0.1:7490/targets" in (FOLDER / "prometheus.yml").read_text()
    assert "--metrics-listen 127.0.0.1:7490" in COMPOSE
    provisioning = MONITORING / "grafana" / "provisioning"
    assert "path: /dashboards" in (provisioning / "dashboards" / "stoker.yml").read_text()
    address = re.search(r"--web\.listen-address=(\S+)", COMPOSE)
    assert address is not None
    assert f"url: http://{address[1]}" in (provisioning / "datasources" / "prometheus.yml").read_text()


def test_nothing_listens_beyond_loopback() -> None:
    assert re.findall(r"(?:listen-address=|HTTP_ADDR: )([\d.]+)", COMPOSE) == ["127.0.0.1", "127.0.0.1"]
    assert "ports:" not in COMPOSE


def test_images_are_pinned() -> None:
    images = re.findall(r"image: (\S+)", COMPOSE)
    assert len(images) == 2
    assert all(re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", image) for image in images)

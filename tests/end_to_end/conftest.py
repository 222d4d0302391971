"""One running job for the tests that do not hurt it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.loaders import running, write_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.loaders import Loaders


@pytest.fixture(scope="package")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transforms = ("tests.support.transforms:noise", "logmel", "characters")
    return write_job(tmp_path_factory.mktemp("job"), samples=150, transforms=transforms, job="group = 4")


@pytest.fixture(scope="package")
def loaders(job: Path) -> Iterator[Loaders]:
    with running(job, workers=2) as loaders:
        yield loaders

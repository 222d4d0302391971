"""Names of sources: those of this package, of others by entry point, and classes by their place."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.sources import Source, synthetic
from loader_server.sources.map_style import MapStyleSource
from loader_server.sources.registry import SOURCES, SourceSpec, dotted_name, source_class
from loader_server.stream import Stream
from shared.errors import SettingsError
from shared.settings.parsers import setting, whole

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FewSettings(synthetic.SyntheticSettings):
    fewer: int = setting(whole(1), "divides the number of samples", default=2)


class FewSource(synthetic.SyntheticSource):
    Settings = FewSettings


class UnfinishedSource(Source):
    """Its author has not got to the rest."""

    fields = ()


class HalfGatheringSource(FewSource):
    gathers = True
    gather = Source.gather


class NeverGatheringSource(FewSource):
    gathers = False
    gather = Source.gather


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package brings two, one of them under a name that is taken."""
    points = [
        importlib.metadata.EntryPoint(name, f"{__name__}:FewSource", "stoker.sources") for name in ("few", "manifest")
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points if group == "stoker.sources" else [])


@pytest.mark.parametrize("name", SOURCES)
def test_every_name_leads_to_a_source(name: str) -> None:
    found = source_class(name, "a job").__name__.removesuffix("Source").lower()
    assert found == {"jsonl": "jsonlines"}.get(name, name.replace("_", ""))


@pytest.mark.usefixtures("registered")
def test_other_packages_name_theirs_by_entry_point_and_never_take_a_name_of_ours() -> None:
    assert source_class("few", "a job") is FewSource
    assert dotted_name("manifest", "a job") == SOURCES["manifest"]
    with pytest.raises(SettingsError, match=r'expected source = "few" or .*, perhaps "few", got "fews"'):
        source_class("fews", "a job")


def test_a_class_is_a_source_or_a_data_set(tmp_path: Path) -> None:
    assert source_class(f"{__name__}:FewSource", "a job") is FewSource
    assert source_class(f"{__name__}:FewSettings", "a job") is MapStyleSource
    spec = SourceSpec(name="x", dotted=f"{__name__}:FewSource", settings=FewSettings(samples=3), base=tmp_path)
    assert isinstance(spec.make(), FewSource)


def test_a_job_file_gives_such_a_source_its_settings(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    text = (
        f'[job]\nname = "x"\n[streams.train]\nsource = "{__name__}:FewSource"\nlength = "tokens"\nbudget = "9 tokens"\n'
    )
    job.write_text(text + "samples = 30\nfewer = 3\n")
    assert index_streams(JobFile(job), ["train"])["train"].samples == 30
    assert Stream(JobFile(job), "train").source.settings == FewSettings(samples=30, fewer=3)
    job.write_text(text + "samples = 30\nfewr = 3\n")
    with pytest.raises(SettingsError, match='perhaps "fewer", got "fewr"'):
        JobFile(job)


def test_a_source_that_lacks_methods_is_refused_by_their_names_before_anything_runs(tmp_path: Path) -> None:
    name = f"{__name__}:UnfinishedSource"
    job = tmp_path / "job.toml"
    job.write_text(f'[job]\nname = "x"\n[streams.train]\nsource = "{name}"\nlength = "x"\n')
    with pytest.raises(SettingsError, match=r"got UnfinishedSource without Settings, survey, probe, decode\. Write"):
        JobFile(job)


def test_a_class_that_says_that_it_gathers_and_does_not_is_refused() -> None:
    where = f"{__name__}:HalfGatheringSource"
    with pytest.raises(SettingsError, match=r"got HalfGatheringSource without gather\. Write gather\(samples, out\)"):
        source_class(where, "[streams.train]")
    assert source_class(f"{__name__}:FewSource", "[streams.train]") is FewSource
    assert source_class(f"{__name__}:NeverGatheringSource", "[streams.train]") is NeverGatheringSource

"""Tables of settings: several dataclasses may share one, and what none of them knows is refused."""

from __future__ import annotations

import dataclasses

import pytest

from shared.errors import SettingsError
from shared.settings import parsers
from shared.settings.job import StreamSettings
from shared.settings.tables import read_tables


def test_several_dataclasses_share_a_table():
    @dataclasses.dataclass(frozen=True)
    class Other:
        depth: int = parsers.setting(parsers.whole(0), "depth", default=1)

    table = {"source": "manifest", "length": "audio", "depth": 3, "logmel": {}}
    stream, other = read_tables((StreamSettings, Other), table, "here", also_known=("logmel",))
    assert (stream.source, stream.transforms, other.depth) == ("manifest", (), 3)
    with pytest.raises(SettingsError, match='perhaps "depth", got "dept"'):
        read_tables((StreamSettings, Other), {**table, "dept": 3}, "here", also_known=("logmel",))
    with pytest.raises(SettingsError, match='perhaps "logmel", got "logmle"'):
        read_tables((StreamSettings, Other), {**table, "logmle": {}}, "here", also_known=("logmel",))

"""What tells recordings from other values."""

import pytest

from loader_server.sources.audio.recorded_keys import has_recordings
from loader_server.sources.audio.recordings import audio_field
from shared.wire.batch_layout import Field


@pytest.mark.parametrize(
    ("field", "is_recorded"),
    [
        (audio_field(16000), True),
        (audio_field(0), True),
        (Field(key="waveform", dtype="float32", shape=(None,)), True),
        (Field(key="features", dtype="float32", shape=(None, 80), per_second=100.0), True),
        (Field(key="image", dtype="uint8", shape=(None, 28)), False),
    ],
)
def test_which_keys_are_made_of_recordings(field: Field, *, is_recorded: bool) -> None:
    assert has_recordings([Field(key="label", dtype="int32", shape=()), field]) is is_recorded

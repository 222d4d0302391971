"""Audio at another rate, as long as was foretold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.transforms.audio.resampling import resampled, resampled_length
from shared.errors import SampleError
from tests.support.corpora import tone


@given(frames=st.integers(1, 4000), rates=st.tuples(*[st.sampled_from([8000, 11025, 16000, 44100])] * 2))
def test_resampling_gives_the_length_that_was_foretold(frames, rates):
    made = resampled(np.ones(frames, np.float32), *rates)
    assert len(made) == resampled_length(np.array([frames]), np.array([rates[0]]), rates[1])[0]
    assert made.dtype == np.float32


def test_a_tone_stays_the_tone_that_it_was():
    made = resampled(tone(3, 8000, 8000), 8000, 16_000)
    assert np.abs(made[1000:-1000] - tone(3, 16_000, 16_000)[1000:-1000]).max() < 1e-4


def test_whole_numbers_are_refused_because_they_are_too_loud():
    with pytest.raises(SampleError, match=r"expected audio as float32 from -1 to 1, got int16\. Put waveform .* last"):
        resampled(np.ones(9, np.int16), 8000, 8000)

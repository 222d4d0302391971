"""`reverberation`: the convolution with a response, at the same time and as loud as before."""

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from loader_server.sources.files.file_facts import FilePlaces
from loader_server.transforms.audio.reverberation import reverberated
from loader_server.transforms.chain import Chain
from shared.errors import SettingsError
from shared.wire.batch_layout import Field

RAW = (Field(key="audio", dtype="float32", shape=(None,), per_second=8000.0),)


def noise(length, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, length).astype(np.float32)


@given(length=st.integers(1, 300), size=st.integers(1, 500), direct=st.integers(0, 40))
def test_the_numbers_are_those_of_a_convolution(length, size, direct):
    audio, response = noise(length), noise(size, 1)
    response[min(direct, size - 1)] = 5
    whole = np.convolve(audio.astype(np.float64), response)[min(direct, size - 1) :][:length]
    whole = np.pad(whole, (0, length - len(whole)))
    wanted = whole * np.sqrt(np.square(audio).sum() / np.square(whole).sum())
    made = reverberated(audio, response)
    assert (made.dtype, len(made)) == (np.float32, length)
    np.testing.assert_allclose(made, wanted, atol=2e-5)


def test_a_room_without_walls_changes_nothing():
    audio, response = noise(500), np.zeros(60, np.float32)
    response[17] = -0.5
    np.testing.assert_allclose(reverberated(audio, response), -audio, atol=1e-6)


def test_nothing_and_silence_stay():
    assert len(reverberated(noise(0), noise(9))) == 0
    assert not reverberated(np.zeros(9, np.float32), noise(9)).any()
    assert (reverberated(noise(9), np.zeros(9, np.float32)) == noise(9)).all()


def test_in_a_chain_it_draws_a_response_for_each_sample(tmp_path):
    for number in range(3):
        soundfile.write(tmp_path / f"{number}.wav", noise(200, number), 8000)
    (tmp_path / "rooms.csv").write_text("audio\n0.wav\n1.wav\n2.wav\n")
    said = {"recordings": {"source": "manifest", "paths": ["rooms.csv"]}, "share": 0.75}
    chain = Chain.make(("reverberation",), {"reverberation": said}, "job", RAW, FilePlaces(tmp_path))
    made = [
        chain.apply({"audio": noise(400, 9), "audio_rate": 8000}, seed=1, epoch=0, number=number)["audio"].tobytes()
        for number in range(100)
    ]
    assert len(set(made)) == 4
    assert 10 < made.count(noise(400, 9).tobytes()) < 40
    again = chain.apply({"audio": noise(400, 9), "audio_rate": 8000}, seed=1, epoch=0, number=17)["audio"].tobytes()
    assert again == made[17]
    assert chain.fields == RAW


def test_bad_settings(tmp_path):
    with pytest.raises(SettingsError, match=r'reverberation: expected "recordings" .*, got no such setting'):
        Chain.make(("reverberation",), {}, "job", RAW, FilePlaces(tmp_path))

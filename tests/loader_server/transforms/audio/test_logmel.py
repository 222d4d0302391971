"""`logmel`: the right numbers, and exactly as many frames as were foretold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.transforms.audio.logmel import LogMelSettings, LogMelTransform
from loader_server.transforms.audio.mel_bands import MelBands
from shared.audio.conventions import CONVENTIONS, own_filters
from shared.errors import SettingsError
from shared.settings.tables import read_table
from tests.support.corpora import tone

RNG = np.random.default_rng(0)


def bands_of(audio, **settings):
    sample = {"audio": audio, "audio_rate": 8000}
    LogMelTransform(LogMelSettings(**settings))(sample, RNG)
    return sample["audio"]


def reference(audio, rate=8000, bands=40):
    """The definition, a frame at a time, in float64: windows of 25 ms, each 10 ms."""
    window, hop = rate // 40, rate // 100
    fft = 1 << (window - 1).bit_length()
    taper = np.hanning(window + 2)[1:-1]
    mel = own_filters(fft, rate, bands, (20.0, rate / 2)).astype(np.float64)
    starts = range(0, max(len(audio) - window, 0) + 1, hop)
    frames = [np.abs(np.fft.rfft(audio[s : s + window].astype(np.float64) * taper, fft)) ** 2 for s in starts]
    return np.log(np.maximum(np.stack(frames) @ mel, 1e-10))


def step_by_step(audio, rate):
    """The same bytes by the plainest code: BLAS rounds by how many frames it multiplies, so that is given."""
    window, hop = rate // 40, rate // 100
    fft = 1 << (window - 1).bit_length()
    at_once = 60 * 2**10 // fft
    starts = hop * np.arange(1 + (len(audio) - window) // hop)
    frames = np.zeros((len(starts), fft), np.float32)
    frames[:, :window] = audio[starts[:, None] + np.arange(window)] * np.hanning(window + 2)[1:-1].astype(np.float32)
    spectrum = np.fft.rfft(frames, norm="forward")
    power = np.square(spectrum.real) + np.square(spectrum.imag)
    filters = own_filters(fft, rate, 80, (20.0, rate / 2)) * np.float32(fft**2)
    bands = np.empty((len(starts), 80), np.float32)
    for first in range(0, len(starts), at_once):
        for band in range(0, 80, 32):
            used = np.flatnonzero(filters[:, band : band + 32].any(axis=1))
            bins = slice(used[0], used[-1] + 1)
            weights = np.ascontiguousarray(filters[bins, band : band + 32])
            bands[first : first + at_once, band : band + 32] = power[first : first + at_once, bins] @ weights
    return np.log(np.maximum(bands, np.float32(1e-10)))


def recorded(seconds, rate, loudness):
    """Noise that a recorder of 16 bits might have given."""
    noise = np.random.default_rng(1).normal(0, loudness, round(seconds * rate))
    return np.round(noise * 2**15).astype(np.float32) / np.float32(2**15)


def test_the_bands_are_those_of_the_definition():
    audio = np.concatenate([tone(3, 1600, 8000), tone(7, 1600, 8000)])
    made = bands_of(audio, rate=8000, bands=40)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, reference(audio), atol=2e-2)


@pytest.mark.parametrize(("rate", "bands"), [(8000, 80), (8000, 33), (8000, 1), (16_000, 80), (22_000, 100)])
@pytest.mark.parametrize("loudness", [0.2, 0.001])
def test_the_bands_of_a_recording_are_those_of_the_definition(rate, bands, loudness):
    audio = recorded(6.01, rate, loudness)  # longer than what is transformed at once
    sample = {"audio": audio, "audio_rate": rate}
    LogMelTransform(LogMelSettings(rate=rate, bands=bands))(sample, RNG)
    errors = np.abs(sample["audio"] - reference(audio, rate, bands))
    assert np.quantile(errors, 0.99) < 1e-5
    assert errors.max() < 1e-3  # where a frame happens to hold next to nothing of a narrow band


@pytest.mark.parametrize("rate", [8000, 16_000])
@pytest.mark.parametrize("frames", [1, 119, 120, 180, 181, 240, 241, 360, 361, 600, 601])
def test_our_bytes_stay_what_they_are(rate, frames):
    audio = recorded((frames * 80 + 120) / 8000, rate, 0.1)
    audio[len(audio) // 2 :] *= frames % 2  # silence as well
    sample = {"audio": audio, "audio_rate": rate}
    LogMelTransform(LogMelSettings(rate=rate))(sample, RNG)
    assert sample["audio"].tobytes() == step_by_step(audio, rate).tobytes()


def test_what_is_not_a_number_stays_in_its_frames():
    audio = np.zeros(8000, np.float32)
    audio[4000] = np.nan
    made = bands_of(audio, rate=8000)
    broken = np.isnan(made).any(axis=1)
    assert 0 < broken.sum() <= 3
    assert (made[~broken] == np.log(np.float32(1e-10))).all()


def test_audio_need_not_lie_in_one_piece():
    audio = recorded(0.5, 8000, 0.1)
    (sparse := np.zeros((len(audio), 2), np.float32))[:, 0] = audio
    assert bands_of(sparse[:, 0], rate=8000).tobytes() == bands_of(audio, rate=8000).tobytes()


def test_silence_is_the_floor():
    assert (bands_of(np.zeros(4000, np.float32), rate=8000) == np.log(np.float32(1e-10))).all()


def test_a_frame_is_the_same_wherever_it_lies():
    audio = recorded(6.01, 8000, 0.1)
    whole = bands_of(audio, rate=8000)
    for frame in (0, 1, 239, 240, 500, len(whole) - 1):
        alone = bands_of(audio[80 * frame : 80 * frame + 200], rate=8000)
        np.testing.assert_allclose(whole[frame], alone[0], atol=1e-4, err_msg=str(frame))


def test_bands_are_float32_where_numpy_transforms_in_float64(monkeypatch):
    audio = recorded(0.2, 8000, 0.1)
    new = bands_of(audio, rate=8000)
    single = np.fft.rfft
    monkeypatch.setattr(np.fft, "rfft", lambda a, **how: single(a.astype(np.float64), **how))  # numpy 1.26
    old = bands_of(audio, rate=8000)
    assert old.dtype == np.float32
    np.testing.assert_allclose(old, new, atol=1e-4)


def test_a_higher_tone_lies_in_a_higher_band():
    low, high = (bands_of(tone(digit, 4000, 8000), rate=8000, bands=40)[20].argmax() for digit in (0, 9))
    assert low < high


def test_the_same_audio_gives_the_same_bytes_again():
    audio = tone(4, 9000, 8000)
    transform = LogMelTransform(LogMelSettings(rate=8000))
    first, second = ({"audio": audio.copy(), "audio_rate": 8000} for _ in range(2))
    transform(first, RNG)
    transform({"audio": tone(1, 3000, 8000), "audio_rate": 8000}, RNG)
    transform(second, RNG)
    assert first["audio"].tobytes() == second["audio"].tobytes()


def test_the_audio_that_came_in_is_left_alone():
    audio = tone(4, 2000, 8000)
    before = audio.copy()
    bands_of(audio, rate=8000)
    assert (audio == before).all()


@given(
    frames=st.integers(0, 5000),
    file_rate=st.sampled_from([8000, 11025, 16000, 22050, 44100, 48000]),
    rate=st.sampled_from([8000, 16000, 22050]),
    window=st.sampled_from([0.02, 0.025, 0.032]),
    hop=st.sampled_from([0.005, 0.01, 0.0125]),
)
def test_there_are_as_many_frames_as_the_declared_length(frames, file_rate, rate, window, hop):
    transform = LogMelTransform(LogMelSettings(rate=rate, bands=8, window=window, hop=hop))
    sample = {"audio": np.zeros(frames, np.float32), "audio_rate": file_rate}
    transform(sample, RNG)
    lengths = {"audio": np.array([frames]), "audio_rate": np.array([file_rate])}
    (rule,) = transform.outputs.lengths.values()
    assert len(sample["audio"]) == rule(lengths)[0]
    assert sample["audio"].shape[1] == 8


@pytest.mark.parametrize(("frames", "expected"), [(0, 0), (1, 1), (199, 1), (200, 1), (279, 1), (280, 2), (360, 3)])
def test_frames_are_whole_windows_and_at_least_one(frames, expected):
    assert len(bands_of(np.ones(frames, np.float32), rate=8000)) == expected


def test_no_band_is_empty_however_narrow():
    assert (own_filters(256, 8000, 80, (20.0, 4000.0)).sum(axis=0) > 0).all()
    assert (own_filters(256, 8000, 80, (20.0, 4000.0)) >= 0).all()


def test_settings_carry_units():
    settings = read_table(LogMelSettings, {"window": "32 ms", "hop": "0.016 s"}, "job.toml, logmel")
    assert (settings.window, settings.hop) == (0.032, 0.016)


def test_an_impossible_window_is_refused():
    with pytest.raises(
        SettingsError, match=r"^window and hop: expected a window of at least 2 samples .* at 8000 Hz, got 1 and 80"
    ):
        LogMelTransform(LogMelSettings(rate=8000, window=0.0001))


def test_an_edge_above_half_the_rate_is_refused():
    with pytest.raises(SettingsError, match=r"expected low_hz < high_hz <= 4000, half the rate, got .*high_hz = 7000"):
        LogMelTransform(LogMelSettings(rate=8000, high_hz=7000.0))


def test_frames_that_fill_a_block_to_the_last_are_what_they_are_alone():
    bands = MelBands(LogMelSettings(convention="librosa"), 80, CONVENTIONS["librosa"])
    assert bands._most % 4, "so that rows of zeros fill it up"
    noise = np.random.default_rng(0).normal(0, 0.1, bands._most * bands._hop).astype(np.float32)
    frames = (bands._block, bands._most - bands._block)
    recordings = [(noise[: (many - 1) * bands._hop], 16_000) for many in frames]
    together = bands.energies(recordings)
    assert [len(one) for one in together] == list(frames)
    for one, recording in zip(together, recordings, strict=True):
        np.testing.assert_array_equal(one, bands.energies([recording])[0])

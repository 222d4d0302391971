"""A recording that lost its end is told from a shorter one, whatever its container; sizes that mean "unknown" are
taken for all that follows.
"""

from __future__ import annotations

import io
import os
import struct

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from loader_server.sources.audio.audio_files import decoded_audio, header_of, header_of_bytes
from loader_server.sources.audio.containers import audio_extent, is_ogg_cut, plain_wav
from loader_server.sources.audio.stretches import Headers, Stretch
from loader_server.sources.files.opening import Files
from loader_server.sources.files.seen import SeenFiles
from loader_server.sources.source import BadRow
from shared.errors import SampleError

FRAMES, RATE = 20_000, 8000

#: Container, samples, channels, byte order.
CONTAINERS = {
    "8 bits": ("WAV", "PCM_U8", 1, "FILE"),
    "16 bits": ("WAV", "PCM_16", 1, "FILE"),
    "16 bits, two channels": ("WAV", "PCM_16", 2, "FILE"),
    "24 bits": ("WAV", "PCM_24", 1, "FILE"),
    "32 bits": ("WAV", "PCM_32", 1, "FILE"),
    "float": ("WAV", "FLOAT", 1, "FILE"),
    "double": ("WAV", "DOUBLE", 2, "FILE"),
    "mu-law": ("WAV", "ULAW", 1, "FILE"),
    "MS ADPCM": ("WAV", "MS_ADPCM", 1, "FILE"),
    "IMA ADPCM": ("WAV", "IMA_ADPCM", 1, "FILE"),
    "GSM": ("WAV", "GSM610", 1, "FILE"),
    "big-endian": ("WAV", "PCM_16", 1, "BIG"),
    "extensible": ("WAVEX", "PCM_16", 2, "FILE"),
    "extensible float": ("WAVEX", "FLOAT", 1, "FILE"),
    "RF64": ("RF64", "PCM_16", 1, "FILE"),
    "RF64, 24 bits": ("RF64", "PCM_24", 2, "FILE"),
    "W64": ("W64", "PCM_16", 1, "FILE"),
    "AIFF": ("AIFF", "PCM_16", 1, "FILE"),
    "AU": ("AU", "PCM_16", 1, "FILE"),
    "AU, little-endian": ("AU", "PCM_16", 1, "LITTLE"),
    "CAF": ("CAF", "PCM_16", 2, "FILE"),
    "Vorbis": ("OGG", "VORBIS", 1, "FILE"),
    "Opus": ("OGG", "OPUS", 2, "FILE"),
}


def recording(name: str = "24 bits") -> bytes:
    """Noise, of which each container's file has several pages or blocks."""
    container, samples, channels, order = CONTAINERS[name]
    noise = np.random.default_rng(1).uniform(-0.3, 0.3, (FRAMES, channels))
    soundfile.write(file := io.BytesIO(), noise, RATE, format=container, subtype=samples, endian=order)
    return file.getvalue()


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_whole_recording_is_read_and_one_that_lost_its_end_is_refused(name, tmp_path):
    raw = recording(name)
    wanted = soundfile.read(io.BytesIO(raw), dtype="float32", always_2d=True)[0].mean(axis=1, dtype=np.float32)
    assert len(wanted) >= FRAMES
    assert header_of_bytes(raw, "here")[:2] == (len(wanted), RATE)
    assert decoded_audio(raw, "here")[0].tobytes() == wanted.tobytes()
    for kept in (len(raw) // 2, len(raw) - 600):
        (tmp_path / "cut").write_bytes(raw[:kept])
        for look in (
            lambda kept=kept: header_of_bytes(raw[:kept], "here"),
            lambda kept=kept: decoded_audio(raw[:kept], "here"),
            lambda: header_of(str(tmp_path / "cut"), SeenFiles()),
        ):
            with pytest.raises(SampleError, match=r"expected .*, got .*\. It was cut short: mend or remove") as caught:
                look()
            assert caught.value.reason == "truncated"


@pytest.mark.parametrize("name", ["24 bits", "extensible", "RF64", "Vorbis"])
@pytest.mark.parametrize("stretch", [Stretch(), Stretch(0.0, 0.1), Stretch(0.5, 0.2)])
def test_no_stretch_of_a_cut_recording_is_taken_either(name, stretch, tmp_path):
    raw = recording(name)
    (tmp_path / "cut").write_bytes(raw[: len(raw) // 2])
    found = Headers(Files(tmp_path)).find(str(tmp_path / "cut"), stretch, ("list", 7))
    assert isinstance(found, BadRow)
    assert (found.where, found.line, found.reason) == ("list", 7, "truncated")


def test_the_reason_says_how_much_is_there():
    raw = recording("24 bits")
    with pytest.raises(SampleError, match="here: expected 60000 bytes of audio, as the file's header says, got 29976"):
        header_of_bytes(raw[: 44 + 29_978], "here")
    with pytest.raises(SampleError, match="expected OGG up to the page that is marked as its last, got a file that en"):
        header_of_bytes(recording("Vorbis")[:-1], "here")


def sized(raw: bytes, whole: int, audio: int) -> bytes:
    """A WAV file whose header says these sizes."""
    return raw[:4] + struct.pack("<I", whole) + raw[8:40] + struct.pack("<I", audio) + raw[44:]


#: What programs write that do not know how much will follow: of the whole file, and of the audio in it.
UNKNOWN = {
    "nothing": (0, 0),
    "Python": (36, 0),
    "libsndfile": (8, 0),
    "ALSA": (0x7FFF_FFFF, 0x7FFF_FFFF),
    "ALSA, rounded": (0x7FFF_FF24, 0x7FFF_FF00),
    "ALSA, whole": (0x8000_0024, 0x8000_0000),
    "SoX": (0x7FFF_F024, 0x7FFF_F000),
    "FFmpeg": (0xFFFF_FFFF, 0xFFFF_FFFF),
    "less its header": (0xFFFF_FFFF, 0xFFFF_FFDB),
}


@pytest.mark.parametrize("sizes", UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.parametrize("name", ["16 bits", "24 bits"])
def test_a_size_that_means_unknown_is_all_that_follows(name, sizes, tmp_path):
    whole = recording(name)
    raw = sized(whole, *sizes)
    assert header_of_bytes(raw, "here") == (FRAMES, RATE, 1)
    assert decoded_audio(raw, "here")[0].tobytes() == decoded_audio(whole, "here")[0].tobytes()
    (tmp_path / "a.wav").write_bytes(raw)
    assert header_of(str(tmp_path / "a.wav"), SeenFiles()).frames == FRAMES


def test_no_audio_is_meant_where_the_whole_size_counts_what_follows_as_something_else():
    raw = sized(recording("16 bits"), len(recording("16 bits")) - 8, 0)
    with pytest.raises(SampleError, match="a file of zero samples"):
        header_of_bytes(raw, "here")


def test_a_recording_of_unknown_size_without_audio_has_zero_samples():
    with pytest.raises(SampleError, match="a file of zero samples"):
        header_of_bytes(sized(recording("16 bits"), 36, 0)[:44], "here")


def test_what_lacks_only_padding_or_what_follows_the_audio_is_whole():
    raw = sized(recording("16 bits"), 36 + 2 * FRAMES + 500, 2 * FRAMES)
    assert header_of_bytes(raw, "here") == (FRAMES, RATE, 1)
    odd = sized(recording("16 bits"), 36 + 2 * FRAMES + 2, 2 * FRAMES + 1)
    assert header_of_bytes(odd, "here") == (FRAMES, RATE, 1)
    gsm = recording("GSM")
    assert header_of_bytes(gsm[:-1], "here") == header_of_bytes(gsm, "here")


def test_tags_behind_the_last_page_are_nobodys_loss():
    raw = recording("Vorbis")
    assert header_of_bytes(raw + b"TAG" + bytes(125), "here")[0] == FRAMES
    assert is_ogg_cut(lambda at, nbytes: raw[at : at + nbytes], len(raw) - 1)
    assert not is_ogg_cut(lambda at, nbytes: raw[at : at + nbytes], len(raw))


def test_an_ogg_file_that_ends_with_a_page_but_not_the_last_one_is_cut():
    raw = recording("Vorbis")
    last = raw.rfind(b"OggS")
    assert 0 < last < len(raw) - 600
    with pytest.raises(SampleError, match="the page that is marked as its last"):
        header_of_bytes(raw[:last], "here")


@pytest.mark.parametrize("nbytes", [1, 2, 7])
def test_chunks_before_the_audio_are_followed_by_their_size_and_padding(nbytes):
    raw = recording("16 bits")
    chunk = b"LIST" + struct.pack("<I", nbytes) + bytes(nbytes + nbytes % 2)
    raw = raw[:36] + chunk + raw[36:]
    assert header_of_bytes(raw, "here") == (FRAMES, RATE, 1)
    with pytest.raises(SampleError, match=f"expected {2 * FRAMES} bytes of audio"):
        header_of_bytes(raw[:-600], "here")


@pytest.mark.parametrize("nbytes", [10**6, 2**32 - 1])
def test_a_chunk_that_leads_beyond_the_end_of_the_file_leaves_it_to_libsndfile(nbytes, tmp_path):
    raw = recording("16 bits")
    path = tmp_path / "a.wav"
    path.write_bytes(raw[:36] + b"LIST" + struct.pack("<I", nbytes) + raw[36:])
    with path.open("rb") as file:
        assert audio_extent(lambda at, size: os.pread(file.fileno(), size, at), path.stat().st_size) is None
    with pytest.raises(SampleError, match="expected WAV, FLAC, OGG or MP3, got "):
        header_of_bytes(path.read_bytes(), "here")


def test_the_size_in_64_bits_counts_only_where_the_other_says_so():
    raw = recording("RF64")
    size_at = raw.index(b"data") + 4
    raw = raw[:28] + bytes(8) + raw[36:size_at] + struct.pack("<I", 2 * FRAMES) + raw[size_at + 4 :]
    with pytest.raises(SampleError, match=f"expected {2 * FRAMES} bytes of audio"):
        header_of_bytes(raw[:-600], "here")


@pytest.mark.parametrize("nbytes", [0, 3, 4, 8, 12, 16, 30, 39, 43])
def test_a_header_that_is_cut_itself_promises_nothing(nbytes):
    for name in CONTAINERS:
        raw = recording(name)[:nbytes]
        extent = audio_extent(lambda at, size, raw=raw: raw[at : at + size], nbytes)
        assert extent is None or extent.is_cut(nbytes)


def test_a_million_chunks_before_the_audio_are_not_followed():
    asked = []

    def endless(at: int, nbytes: int) -> bytes:
        asked.append(at)
        return b"RIFF\0\0\0\0WAVEjunk"[:nbytes] if not at else b"junk\0\0\0\0"

    assert audio_extent(endless, 2**40) is None
    assert len(asked) < 5000


def _wav(samples: list[int], *, rate: int = 8000, **how: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.array(samples, np.int16), rate, **{"format": "WAV", "subtype": "PCM_16", **how})
    return file.getvalue()


@given(st.lists(st.integers(-(2**15), 2**15 - 1), min_size=1, max_size=50), st.sampled_from([8000, 16_000, 44_100]))
def test_samples_are_libsndfiles_bit_for_bit(samples: list[int], rate: int) -> None:
    raw = _wav(samples, rate=rate)
    found = plain_wav(raw)
    assert found is not None
    wanted, wanted_rate = soundfile.read(io.BytesIO(raw), dtype="float32")
    assert found[0].dtype == np.float32
    assert (found[0].tobytes(), found[1]) == (wanted.tobytes(), wanted_rate)


@pytest.mark.parametrize("how", [{"subtype": "PCM_24"}, {"subtype": "FLOAT"}, {"format": "FLAC"}, {"format": "WAVEX"}])
def test_other_formats_are_left_alone(how: dict[str, str]) -> None:
    assert plain_wav(_wav([1, 2, 3], **how)) is None


def test_two_channels_are_left_alone() -> None:
    file = io.BytesIO()
    soundfile.write(file, np.zeros((4, 2), np.int16), 8000, format="WAV", subtype="PCM_16")
    assert plain_wav(file.getvalue()) is None


@given(st.integers(0, 47), st.binary(max_size=3))
def test_what_is_cut_or_has_something_behind_it_is_left_alone(kept: int, more: bytes) -> None:
    raw = _wav([1, 2, 3])
    assert plain_wav(raw[:kept]) is None
    assert (plain_wav(raw + more) is None) == bool(more)

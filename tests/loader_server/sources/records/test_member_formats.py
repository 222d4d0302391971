"""Members become what their suffixes say, with the lengths that they have decoded."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import soundfile

from loader_server.sources.records.member_formats import MemberForm, MemberForms
from shared.errors import SampleError
from shared.wire.batch_layout import Field
from tests.support.shards import npy


def audio(form: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(160, np.float32), 8000, format=form)
    return file.getvalue()


@pytest.mark.parametrize(
    ("suffix", "raw", "expected"),
    [
        ("txt", "zwei Bäume".encode(), {"text": "zwei Bäume"}),
        ("de.txt", b"zwei", {"de": "zwei"}),
        ("cls", b" 17\n", {"cls": 17}),
        ("json", b'{"a": [1, null]}', {"json": {"a": [1, None]}}),
        ("meta.json", b"3", {"meta": 3}),
        ("jpg", b"\xff\xd8", {"jpg": b"\xff\xd8"}),
        ("seg.png", b"x", {"seg.png": b"x"}),
    ],
)
def test_values_are_called_and_decoded_by_their_suffix(suffix: str, raw: bytes, expected: dict[str, Any]) -> None:
    form = MemberForms().form_of(suffix, raw)
    assert form.decode(raw, "x") == expected
    assert list(form.look(raw, "x")) == [len(expected[key]) for key in form.lengths]


@pytest.mark.parametrize("form", ["wav", "flac", "ogg"])
def test_audio_has_its_rate(form: str) -> None:
    made = MemberForms().form_of(form, audio(form))
    values = made.decode(audio(form), "x")
    assert (values["audio"].shape, values["audio"].dtype, values["audio_rate"]) == ((160,), np.float32, 8000)
    assert dict(zip(made.lengths, made.look(audio(form), "x"), strict=True)) == {"audio": 160, "audio_rate": 8000}
    assert made.field(8000) == Field(key="audio", dtype="float32", shape=(None,), per_second=8000.0)
    assert made.field(0) == Field(key="audio", dtype="float32", shape=(None,))
    assert MemberForms().form_of(f"far.{form}", audio(form)).lengths == ("far", "far_rate")


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.int16),
        np.zeros((0, 4), np.uint8),
        np.float64(3.5),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    ],
)
def test_arrays_are_what_was_saved(array: Any) -> None:
    raw = npy(array)
    form = MemberForms().form_of("npy", raw)
    made = form.decode(raw, "x")["npy"]
    assert (made.dtype, made.shape, made.tobytes()) == (array.dtype, array.shape, np.ascontiguousarray(array).tobytes())
    field = form.field(0)
    assert field is not None
    assert (field.dtype, field.shape) == (str(array.dtype), (None, *array.shape[1:]) if array.ndim else ())
    assert list(form.look(raw, "x")) == ([len(array)] if array.ndim else [])
    if array.ndim:
        made[...] = 0  # its memory is its own
        assert form.decode(raw, "x")["npy"].tobytes() == np.ascontiguousarray(array).tobytes()


def test_arrays_in_later_versions_of_their_format_are_read() -> None:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.arange(4), version=(2, 0))
    assert MemberForms().form_of("npy", file.getvalue()).decode(file.getvalue(), "x")["npy"].tolist() == [0, 1, 2, 3]


ARRAY = MemberForms().form_of("npy", npy(np.zeros((2, 3), np.float32)))


@pytest.mark.parametrize(
    ("form", "raw", "reason", "said"),
    [
        (MemberForm("txt"), b"ab\xff", "not_utf8", '"txt" in UTF-8, got the byte 0xff after 2 others'),
        (MemberForm("cls"), b"cat", "undecodable", '"cls" as number, got invalid literal'),
        (MemberForm("cls"), b"9" * 30, "undecodable", '"cls" as number'),
        (MemberForm("json"), b"{", "undecodable", '"json" as json, got Expecting'),
        (MemberForm("json"), b"[" * 100_000, "undecodable", '"json" as json'),
        (MemberForm("wav"), b"no audio", "undecodable", "WAV, FLAC, OGG or MP3"),
        (ARRAY, npy(np.zeros((2, 4), np.float32)), "undecodable", r"as array of float32 \[any, 3\], got .* \[2, 4\]"),
        (ARRAY, npy(np.zeros((2, 3))), "undecodable", "got an array of float64"),
        (ARRAY, npy(np.float32(1)), "undecodable", r"got an array of float32 \[\]"),
        (ARRAY, npy(np.zeros((2, 3), np.float32))[:-1], "undecodable", "got buffer is smaller"),
        (ARRAY, b"", "undecodable", '"npy" as array'),
        (ARRAY, b"no array at all", "undecodable", '"npy" as array'),
        (ARRAY, npy(np.array([None], object)), "undecodable", "Python objects"),
        (ARRAY, npy(np.zeros((2, 3), np.float32)).replace(b"}", b" ", 1), "undecodable", "EOF in multi-line statement"),
    ],
)
def test_what_cannot_be_decoded_is_a_bad_sample(form: MemberForm, raw: bytes, reason: str, said: str) -> None:
    with pytest.raises(SampleError, match=said) as refused:
        form.look(raw, "x")
    assert refused.value.reason == reason


def test_an_array_of_a_dtype_that_no_batch_can_have_is_no_form() -> None:
    with pytest.raises(SampleError, match="expected an array of a dtype of"):
        MemberForms().form_of("npy", npy(np.zeros(3, np.complex64)))

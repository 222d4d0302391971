"""Images of all modes as arrays of 8 bits a channel."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import PIL
import pytest
from PIL import Image

from loader_server.sources.image_files import Images, image_versions
from shared.errors import SampleError

NOISE = np.random.default_rng(0).integers(0, 255, (6, 8, 3), np.uint8)


def saved(image: Any, **saving: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, **{"format": "png", **saving})
    return file.getvalue()


MODES = {
    "1": saved(Image.fromarray(NOISE).convert("1")),
    "L": saved(Image.fromarray(NOISE).convert("L")),
    "LA": saved(Image.fromarray(NOISE).convert("LA")),
    "P": saved(Image.fromarray(NOISE).convert("P")),
    "RGB": saved(Image.fromarray(NOISE)),
    "RGBA": saved(Image.fromarray(NOISE).convert("RGBA")),
    "CMYK": saved(Image.fromarray(NOISE).convert("CMYK"), format="jpeg"),
}


@pytest.mark.parametrize(("colours", "channels"), [("RGB", 3), ("L", 1), ("RGBA", 4)])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_becomes_the_colours_that_are_asked_for(mode: str, colours: str, channels: int) -> None:
    images, raw = Images(colours), MODES[mode]
    assert Image.open(io.BytesIO(raw)).mode == mode
    found = images.decode(raw, "here")
    assert images.shape_of(raw, "here") == found.shape == (6, 8, channels)
    assert found.dtype == np.uint8
    assert found.flags.writeable
    assert np.array_equal(found.squeeze(), np.asarray(Image.open(io.BytesIO(raw)).convert(colours)))


@pytest.mark.parametrize("size", [(3, 4), (12, 5), (1, 1)])
def test_a_resized_image_has_the_size_whatever_it_had(size: tuple[int, int]) -> None:
    images = Images("RGB", size)
    expected = Image.fromarray(NOISE).resize(size[::-1], Image.Resampling.BILINEAR)
    assert images.shape_of(MODES["RGB"], "here") == (*size, 3)
    assert np.array_equal(images.decode(MODES["RGB"], "here", (*size, 3)), np.asarray(expected))


def test_another_shape_than_expected_is_refused() -> None:
    with pytest.raises(SampleError, match=r"here: expected 6 x 9 pixels, as the first image has, got 6 x 8\. Write re"):
        Images("RGB").decode(MODES["RGB"], "here", (6, 9, 3))


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_images_of_more_bits_are_refused(mode: str) -> None:
    raw = saved(Image.new(mode, (3, 3)), format="tiff")
    with pytest.raises(SampleError, match="expected at most 8 bits a channel, got Pillow's mode") as refused:
        Images("L").shape_of(raw, "here")
    assert refused.value.reason == "deep_image"


@pytest.mark.parametrize("raw", [b"", b"no image", MODES["RGB"][:60], b"\xff\xd8\xff\xe0" + bytes(40)])
def test_what_is_no_image_is_undecodable_by_header_or_pixels(raw: bytes) -> None:
    with pytest.raises(SampleError, match=r"here: expected JPEG, PNG or another image that Pillow reads, got ") as told:
        Images("RGB").decode(raw, "here")
    assert told.value.reason == "undecodable"
    assert "0x" not in told.value.got, "an address in memory differs between runs"


def test_a_size_is_refused_before_pixels_are_decoded() -> None:
    raw = saved(Image.new("L", (2000, 2000)))
    assert Images("L", largest=16_000_000).shape_of(raw, "here") == (2000, 2000, 1)
    with pytest.raises(SampleError) as refused:
        Images("L", largest=15_999_999).decode(raw, "here")
    assert refused.value.reason == "over_largest_sample"
    assert Images("L", largest=0).shape_of(raw, "here") == (2000, 2000, 1)


def test_an_image_that_pillow_takes_for_a_bomb_is_refused_and_not_decoded() -> None:
    raw = bytearray(saved(Image.new("L", (2, 2)), format="bmp"))
    raw[18:26] = (2**15).to_bytes(4, "little") * 2
    with pytest.raises(SampleError, match="decompression bomb"):
        Images("L", largest=0).shape_of(bytes(raw), "here")


def test_versions_are_those_of_pillow_and_what_it_decodes_by() -> None:
    versions = image_versions()
    assert versions["pillow"] == PIL.__version__
    assert {"pillow jpg", "pillow zlib"} <= versions.keys()

"""Transforms of images: the pixels that Pillow and numpy make, planned sizes, draws by `rng`, refusals."""

import numpy as np
import pytest
from PIL import Image

from loader_server.transforms.chain import Chain
from shared.errors import SampleError, SettingsError
from shared.wire.batch_layout import Field

ANY = (Field(key="image", dtype="uint8", shape=(None, None, 3)),)


def chain(*steps, raw=ANY):
    names = tuple(name for name, _ in steps)
    return Chain.make(names, {name: table for name, table in steps if table}, "job.toml, [streams.train]", raw)


def noise(rows=40, columns=60, channels=3, seed=1):
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, channels), np.uint8)


def made(image, *steps, raw=ANY, number=0, epoch=0):
    return chain(*steps, raw=raw).apply({"image": image}, seed=0, epoch=epoch, number=number)["image"]


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (4, "RGBA")])
@pytest.mark.parametrize("name", ["bilinear", "bicubic", "lanczos", "nearest", "box"])
def test_pixels_are_those_that_pillow_makes(channels, mode, name):
    image = noise(channels=channels)
    raw = (Field(key="image", dtype="uint8", shape=(None, None, channels)),)
    got = made(image, ("resize_image", {"size": [24, 30], "filter": name}), raw=raw)
    opened = Image.fromarray(image[:, :, 0] if channels == 1 else image)
    assert opened.mode == mode
    expected = np.array(opened.resize((30, 24), Image.Resampling[name.upper()])).reshape(24, 30, channels)
    assert np.array_equal(got, expected)


@pytest.mark.parametrize(("rows", "columns"), [(40, 60), (60, 40), (33, 33), (1, 7), (199, 200)])
def test_the_shorter_side_gets_its_length_and_the_plan_knows_the_other(rows, columns):
    step = ("resize_image", {"shorter": 32})
    got = made(noise(rows, columns), step)
    assert min(got.shape[:2]) == 32
    assert max(got.shape[:2]) == 32 * max(rows, columns) // min(rows, columns)
    planned = chain(step).lengths({"image": np.array([rows]), "image_width": np.array([columns])})
    assert {key: int(column[0]) for key, column in planned.items()} == {
        "image": got.shape[0],
        "image_width": got.shape[1],
    }


@pytest.mark.parametrize("shape", [(None, None, 3), (None, 60, 3), (40, 60, 3)])
@pytest.mark.parametrize("name", ["resize_image", "centre_crop", "random_crop", "random_resized_crop"])
def test_exact_sizes_are_fixed_shapes_whatever_came_before(name, shape):
    raw = (Field(key="image", dtype="uint8", shape=shape),)
    fields = chain((name, {"size": [20, 30]}), raw=raw).fields
    assert [field.shape for field in fields] == [(20, 30, 3)]
    assert made(noise(), (name, {"size": [20, 30]}), raw=raw).shape == (20, 30, 3)


def test_the_centre_is_the_centre():
    image = noise(41, 60)
    assert np.array_equal(made(image, ("centre_crop", {"size": [20, 30]})), image[10:30, 15:45])


def test_random_crops_are_parts_of_the_image_and_reach_every_place():
    image = np.arange(5 * 6 * 3, dtype=np.uint8).reshape(5, 6, 3)
    places = {int(made(image, ("random_crop", {"size": [4, 4]}), number=number)[0, 0, 0]) for number in range(200)}
    assert places == {int(image[top, left, 0]) for top in range(2) for left in range(3)}


def test_a_crop_of_the_whole_image_is_the_image():
    image = noise()
    assert np.array_equal(made(image, ("random_crop", {"size": [40, 60]})), image)


@pytest.mark.parametrize("name", ["centre_crop", "random_crop"])
def test_images_that_are_too_small_are_refused_and_foretold(name):
    step = (name, {"size": [20, 30]})
    with pytest.raises(SampleError, match=r"at least 20 x 30 pixels to cut out, got 40 x 29"):
        made(noise(40, 29), step)
    lengths = {"image": np.array([20, 19, 40]), "image_width": np.array([30, 30, 29])}
    assert chain(step).doubtful(lengths).tolist() == [False, True, True]


def test_draws_hang_on_seed_epoch_and_sample_alone():
    steps = [("random_resized_crop", {"size": [16, 16]}), ("random_flip", None)]
    first = made(noise(), *steps, number=3, epoch=2)
    assert np.array_equal(first, made(noise(), *steps, number=3, epoch=2))
    others = [made(noise(), *steps, number=number, epoch=epoch) for number, epoch in ((4, 2), (3, 3))]
    assert not any(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 500), (500, 1), (2, 3)])
def test_any_image_has_a_resized_part(rows, columns):
    for number in range(20):
        step = ("random_resized_crop", {"size": [8, 9]})
        assert made(noise(rows, columns), step, number=number).shape == (8, 9, 3)


def test_a_flip_mirrors_left_and_right_of_about_its_share():
    image = noise()
    results = [made(image, ("random_flip", {"share": 0.25}), number=number) for number in range(400)]
    mirrored = sum(np.array_equal(result, image[:, ::-1]) for result in results)
    kept = sum(np.array_equal(result, image) for result in results)
    assert mirrored + kept == 400
    assert 60 <= mirrored <= 140
    assert np.array_equal(made(image, ("random_flip", {"share": 1})), image[:, ::-1])


def test_normalised_pixels_are_torchvisions_to_rounding():
    image = noise()
    got = made(image, ("normalise_image", None))
    expected = (image / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_what_came_in_is_left_alone():
    image = noise()
    before = image.copy()
    for step in [("random_crop", {"size": [9, 9]}), ("random_flip", {"share": 1}), ("normalise_image", None)]:
        made(image, step)[...] = 0
    assert np.array_equal(image, before)


@pytest.mark.parametrize(
    ("step", "raw", "message"),
    [
        (("resize_image", None), ANY, "either size or shorter, got neither"),
        (("resize_image", {"size": [2, 2], "shorter": 3}), ANY, "either size or shorter, got both"),
        (("resize_image", {"size": [2]}), ANY, "size"),
        (
            ("resize_image", {"shorter": 3}),
            (Field(key="image", dtype="uint8", shape=(None, 60, 3)),),
            '"image" of any size, got images of 60 columns',
        ),
        (("random_flip", {"key": "photo"}), ANY, 'an array "photo", got "image"'),
        (
            ("centre_crop", {"size": [2, 2]}),
            (Field(key="image", dtype="float32", shape=(None, 80)),),
            r"as an image, uint8 .*got float32 \[any, 80\]",
        ),
        (("normalise_image", {"mean": [0.5, 0.5]}), ANY, r"as many numbers as in deviation, 3, .*got \[0.5, 0.5\]"),
        (
            ("normalise_image", {"mean": [0.5, 0.5], "deviation": [0.2, 0.2]}),
            ANY,
            r"3 numbers, one a channel, or one for all, got \[0.5, 0.5\]",
        ),
        (("random_resized_crop", {"size": [2, 2], "share": [0.5, 0.1]}), ANY, "the least and the greatest"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(step, raw, message):
    with pytest.raises(SettingsError, match=message):
        chain(step, raw=raw)

"""Augmentation against a plain witness: numpy pads and crops, Pillow rotates, loops cut out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from fedssd.core.randomness import below, bits, uniform
from fedssd.data.augment import PROFILES, TABLE, Augmentation, pipeline, resized
from fedssd.data.dataset import Dataset
from fedssd.errors import UserError

torch.set_num_threads(1)
SIDES = {"cifar10": 32, "cifar100": 32, "tiny-imagenet": 64}


def images_of(side: int, count: int = 6) -> torch.Tensor:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 3, side, side), dtype=np.uint8)
    return torch.from_numpy(pixels)


def keys_of(*shape: int) -> torch.Tensor:
    count = int(np.prod(shape))
    return bits(torch.arange(count), 123).reshape(shape)


def witness(settings: Augmentation, image: np.ndarray, key: torch.Tensor) -> np.ndarray:
    """One image [3, H, W], step by step, as torchvision and the published Cutout do it."""
    _, height, width = image.shape
    if settings.pad:
        top = int(below(2 * settings.pad + 1, bits(key, 0)))
        left = int(below(2 * settings.pad + 1, bits(key, 1)))
        sides = ((0, 0), (settings.pad, settings.pad), (settings.pad, settings.pad))
        padded = np.pad(image, sides, mode="reflect" if settings.padding == "reflect" else "constant")
        image = padded[:, top : top + height, left : left + width]
    if settings.flip and int(bits(key, 2)) >= 2**31:
        image = image[:, :, ::-1]
    if settings.rotate:
        degrees = -settings.rotate + 2 * settings.rotate * float(uniform(key, 3))
        picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
        turned = picture.rotate(degrees, Image.Resampling.NEAREST, fillcolor=(0, 0, 0))
        image = np.asarray(turned).transpose(2, 0, 1)
    output = image.astype(np.float64) / 255
    if settings.mean:
        output = (output - np.array(settings.mean)[:, None, None]) / np.array(settings.std)[:, None, None]
    if settings.cutout:
        row, column, half = int(below(height, bits(key, 4))), int(below(width, bits(key, 5))), settings.cutout // 2
        output = output.copy()
        output[:, max(0, row - half) : row + half, max(0, column - half) : column + half] = 0
    return output


@pytest.mark.parametrize(("profile", "name"), list(TABLE))
def test_every_profile_equals_the_plain_witness(profile: str, name: str) -> None:
    side = SIDES[name]
    settings = pipeline(profile, name, (3, side, side))
    images, index, key = images_of(side), torch.arange(40) % 6, keys_of(40)
    ours = settings.train(images, index, key, torch.float64).numpy()
    for position in range(40):
        expected = witness(settings, images[index[position]].numpy(), key[position])
        np.testing.assert_allclose(ours[position], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("degrees", [15.0, 90.0, 180.0])
def test_rotation_gives_pillows_pixels_on_odd_and_oblong_images(degrees: float) -> None:
    pixels = np.random.default_rng(1).integers(1, 256, (2, 3, 17, 30), dtype=np.uint8)
    settings, key = Augmentation(rotate=degrees), keys_of(60)
    ours = settings.train(torch.from_numpy(pixels), torch.arange(60) % 2, key, torch.float64).numpy()
    for position in range(60):
        np.testing.assert_array_equal(ours[position], witness(settings, pixels[position % 2], key[position]))


def test_profiles_carry_the_published_settings() -> None:
    moon = pipeline("moon", "cifar10", (3, 32, 32))
    assert (moon.pad, moon.padding, moon.flip, moon.rotate, moon.cutout) == (4, "reflect", True, 0.0, 0)
    assert [round(255 * value, 6) for value in (*moon.mean, *moon.std)] == [125.3, 123.0, 113.9, 63.0, 62.1, 66.7]
    assert not pipeline("niid", "cifar10", (3, 32, 32)).mean
    assert pipeline("niid", "cifar100", (3, 32, 32)) == pipeline("moon", "cifar100", (3, 32, 32))
    assert pipeline("moon", "cifar100", (3, 32, 32)).rotate == 15.0
    assert pipeline("fedntd", "cifar100", (3, 32, 32)).cutout == 16
    assert not pipeline("moon", "tiny-imagenet", (3, 64, 64)).random
    assert pipeline("niid", "tiny-imagenet", (3, 64, 64)).resize == 32
    assert pipeline("fedntd", "tiny-imagenet", (3, 64, 64)).pad == 8
    assert pipeline("none", "cifar10", (3, 32, 32)) == Augmentation()


def test_moon_zero_is_moon_with_black_where_it_mirrors() -> None:
    for name, shape in (("cifar10", (3, 32, 32)), ("cifar100", (3, 32, 32)), ("flowers", (3, 64, 64))):
        mirrored, black = pipeline("moon", name, shape), pipeline("moon-zero", name, shape)
        assert black.padding == "zero"
        assert replace(black, padding=mirrored.padding) == mirrored


def test_a_stack_of_models_sees_what_each_would_see_alone() -> None:
    settings, images = TABLE["fedntd", "cifar10"], images_of(32)
    index, key = torch.arange(15).reshape(3, 5) % 6, keys_of(3, 5)
    together = settings.train(images, index, key)
    assert together.shape == (3, 5, 3, 32, 32)
    assert together.dtype == torch.float32
    for model in range(3):
        assert torch.equal(together[model], settings.train(images, index[model], key[model]))


def test_every_offset_and_both_flips_are_equally_likely() -> None:
    ramp = (torch.arange(16).view(16, 1) * 16 + torch.arange(16)).to(torch.uint8).view(1, 1, 16, 16)
    visits = 4000
    settings = Augmentation(pad=1, padding="reflect", flip=True)
    crops = settings.train(ramp, torch.zeros(visits, dtype=torch.int64), keys_of(visits)) * 255
    # 3 × 3 offsets × 2 flips = 18 outcomes of probability 1/18: 222 expected, deviation 14.5; allow five of them.
    _, counts = torch.unique(crops.flatten(1), dim=0, return_counts=True)
    assert len(counts) == 18
    assert (counts.double() - visits / 18).abs().max() < 5 * (visits / 18 * 17 / 18) ** 0.5


def test_the_test_pipeline_scales_and_normalises_only() -> None:
    images = images_of(32)
    settings = TABLE["fedntd", "cifar10"]
    mean, std = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (settings.mean, settings.std))
    expected = (images.double() / 255 - mean) / std
    assert torch.allclose(settings.test(images, torch.float64), expected, rtol=0, atol=1e-15)
    assert torch.equal(Augmentation().test(images), images.float() / torch.tensor(255.0))


def test_floats_are_looked_up_and_passed_through() -> None:
    table, index = torch.randn(9, 5), torch.tensor([[3, 1], [8, 3]])
    assert torch.equal(Augmentation().train(table, index, keys_of(2, 2)), table[index])
    assert torch.equal(Augmentation().test(table), table)
    small = torch.rand(9, 1, 8, 8)
    assert torch.equal(Augmentation().train(small, index, keys_of(2, 2), torch.float64), small[index].double())


def test_images_that_are_floats_are_cropped_and_flipped_but_not_scaled() -> None:
    images, index, key = images_of(32), torch.arange(20) % 6, keys_of(20)
    plain = Augmentation(pad=4, flip=True)
    moved = plain.train(images.double(), index, key, torch.float64)
    assert torch.equal(moved / torch.tensor(255.0), plain.train(images, index, key, torch.float64))


def test_resizing_halves_by_the_antialiased_triangle() -> None:
    flat = torch.full((4, 3, 64, 64), 77, dtype=torch.uint8)
    flat[:, :, 32:] = 200
    dataset = Dataset("x", flat, torch.tensor([0, 1, 0, 1]), flat[:2], torch.tensor([0, 1]), ("a", "b"))
    small = resized(dataset, 32)
    assert small.shape == (3, 32, 32)
    assert small.x_train.dtype == torch.uint8
    # Away from the edge a constant stays itself; across it the triangle's weights 1 3 3 1 (eighths) mix the two.
    assert small.x_train[0, 0, :15].unique().tolist() == [77]
    assert small.x_train[0, 0, 17:].unique().tolist() == [200]
    assert small.x_train[0, 0, 15, 5] == round((77 * 7 + 200) / 8)
    assert resized(small, 32) is small


@pytest.mark.parametrize(("name", "shape"), [("digits", (1, 8, 8)), ("wine", (13,))])
@pytest.mark.parametrize("profile", [profile for profile in PROFILES if profile != "none"])
def test_small_and_tabular_samples_take_no_profile_but_none(name: str, shape: tuple[int, ...], profile: str) -> None:
    with pytest.raises(UserError, match="use 'none'"):
        pipeline(profile, name, shape)
    assert not pipeline("none", name, shape).random


def test_other_images_get_scaled_settings_and_unknown_profiles_a_hint() -> None:
    settings = pipeline("fedntd", "flowers", (1, 96, 64))
    assert (settings.pad, settings.cutout, settings.mean) == (8, 32, (0.5,))
    with pytest.raises(UserError, match="did you mean 'moon'"):
        pipeline("mooon", "cifar10", (3, 32, 32))
    features, labels = torch.zeros(2, 4), torch.tensor([0, 1])
    table = Dataset("t", features, labels, features, labels, ("a", "b"))
    with pytest.raises(UserError, match="uint8 images"):
        resized(table, 32)

"""The embedded digits and their rotation."""

import pytest
import torch

from beliefmatch.data.config import DataConfig
from beliefmatch.data.datasets import DATASETS
from beliefmatch.data.digits import load_digits, rotated
from refusals import refusal


@pytest.fixture(scope="module")
def splits():
    return load_digits()


def test_splits_hold_every_image_once_and_the_classes_in_equal_proportion(splits):
    parts = [splits.train, splits.validation, splits.test]
    assert [len(part) for part in parts] == [898, 359, 540]
    for part in parts:
        assert part.images.shape == (len(part), 1, 8, 8) and part.images.dtype == torch.float32
        assert part.images.aminmax() == (0, 1) and part.targets.dtype == torch.int64
        shares = part.targets.bincount(minlength=10) / len(part)
        torch.testing.assert_close(shares, splits.train.targets.bincount() / 898, atol=0.005, rtol=0)
    reference = load_digits(validation_share=0.4, test_share=0.4, seed=7)
    other = torch.cat([part.images for part in vars(reference).values()]).flatten(1)
    images = torch.cat([part.images for part in parts]).flatten(1)
    assert torch.equal(images.sort(0).values, other.sort(0).values)


def test_the_seed_decides_the_split(splits):
    assert torch.equal(load_digits(seed=0).test.images, splits.test.images)
    assert not torch.equal(load_digits(seed=1).test.images, splits.test.images)


@pytest.mark.parametrize(
    ("shares", "name"),
    [
        ({"validation_share": 0.0}, "validation_share"),
        ({"test_share": 1.5}, "test_share"),
        ({"validation_share": 0.5, "test_share": 0.5}, "test_share"),
    ],
)
def test_impossible_shares_are_refused(shares, name):
    assert f"`{name}`" in refusal(load_digits, **shares)


def test_quarter_turns_are_exact_and_half_a_turn_more_is_upside_down(splits):
    image = splits.test.images[0]
    turned = rotated(image, [0, 90, 180, -90])
    assert turned.shape == (4, 1, 8, 8)
    for quarters, result in enumerate(turned):
        torch.testing.assert_close(result, image.rot90(quarters, (1, 2)), atol=1e-5, rtol=0)
    some, more = rotated(image, [20, 65]), rotated(image, [200, 245])
    torch.testing.assert_close(more, some.rot90(2, (2, 3)), atol=1e-5, rtol=0)
    assert (some[0] - image).abs().mean() > 0.05


def test_parts_are_read_together_or_alone():
    counts = {part: len(found.labels) for part, found in DATASETS["digits"].read(DataConfig()).items()}
    assert counts == {"train": 898, "validation": 359, "test": 540}
    assert list(DATASETS["digits"].read(DataConfig(), only="test")) == ["test"]


def test_rotation_keeps_type_and_range_and_takes_one_image(splits):
    image = splits.test.images[1].double()
    turned = rotated(image, range(0, 360, 7))
    assert turned.dtype == torch.float64
    assert turned.min() >= image.min() and turned.max() <= image.max()
    assert "`image`" in refusal(rotated, splits.test.images[:3], [15])

"""The embedded digits, their rotation, and the network for them."""

import pytest
import torch

from beliefmatch.data.digits import load_digits, rotated
from beliefmatch.models.digits import DigitsNet


@pytest.fixture(scope="module")
def splits():
    return load_digits()


def test_splits_hold_every_image_once(splits):
    parts = [splits.train, splits.validation, splits.test]
    assert [len(part) for part in parts] == [898, 359, 540]
    images = torch.cat([part.images for part in parts]).flatten(1)
    reference = load_digits(validation_share=0.4, test_share=0.4, seed=7)
    other = torch.cat([part.images for part in vars(reference).values()]).flatten(1)
    assert torch.equal(images.sort(0).values, other.sort(0).values)


def test_images_are_floats_from_zero_to_one_with_their_labels(splits):
    for part in (splits.train, splits.validation, splits.test):
        assert part.images.shape == (len(part), 1, 8, 8)
        assert part.images.dtype == torch.float32
        assert part.images.min() == 0
        assert part.images.max() == 1
        assert part.targets.dtype == torch.int64
        assert part.targets.unique().tolist() == list(range(10))


def test_every_split_has_the_classes_in_equal_proportion(splits):
    shares = [part.targets.bincount() / len(part) for part in (splits.train, splits.validation, splits.test)]
    torch.testing.assert_close(shares[0], shares[1], atol=0.005, rtol=0)
    torch.testing.assert_close(shares[0], shares[2], atol=0.005, rtol=0)


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
    with pytest.raises(ValueError, match=f"load_digits: .*`{name}`"):
        load_digits(**shares)


def test_quarter_turns_are_exact(splits):
    image = splits.test.images[0]
    turned = rotated(image, [0, 90, 180, -90])
    assert turned.shape == (4, 1, 8, 8)
    for quarters, result in enumerate(turned):
        torch.testing.assert_close(result, image.rot90(quarters, (1, 2)), atol=1e-5, rtol=0)


def test_rotation_keeps_type_and_range(splits):
    image = splits.test.images[1].double()
    turned = rotated(image, range(0, 360, 7))
    assert turned.dtype == torch.float64
    assert turned.min() >= image.min()
    assert turned.max() <= image.max()


def test_half_a_turn_more_is_the_image_upside_down(splits):
    image = splits.test.images[2]
    some, more = rotated(image, [20, 65]), rotated(image, [200, 245])
    torch.testing.assert_close(more, some.rot90(2, (2, 3)), atol=1e-5, rtol=0)
    assert (some[0] - image).abs().mean() > 0.05


def test_rotation_wants_one_image(splits):
    with pytest.raises(ValueError, match="`image`"):
        rotated(splits.test.images[:3], [15])


def test_the_network_gives_one_logit_a_class():
    network = DigitsNet(num_classes=7, width=4)
    assert network(torch.rand(3, 1, 8, 8)).shape == (3, 7)


def test_the_network_judges_each_image_by_itself():
    network = DigitsNet().eval()
    images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    together = network(images)
    torch.testing.assert_close(network(images[3:4]), together[3:4])


def test_the_network_wants_small_grey_images():
    with pytest.raises(ValueError, match="DigitsNet: `images`"):
        DigitsNet()(torch.rand(3, 1, 28, 28))

"""Batches of images, shifted, mirrored and scaled all at once."""

import pytest
import torch

from beliefmatch.data.transforms import crop_and_flip, normalise


def images(n=40, height=6, width=5, channels=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (n, height, width, channels), generator=generator, dtype=torch.uint8)


def candidates(image, padding, flips):
    """Every image that may come of one."""
    height, width, _ = image.shape
    padded = torch.zeros(height + 2 * padding, width + 2 * padding, image.shape[2], dtype=image.dtype)
    padded[padding : padding + height, padding : padding + width] = image
    shifted = [
        padded[y : y + height, x : x + width] for y in range(2 * padding + 1) for x in range(2 * padding + 1)
    ]
    return [*shifted, *(view.flip(1) for view in shifted)] if flips else shifted


@pytest.mark.parametrize("flips", [True, False])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_every_result_is_a_shift_or_the_mirror_of_one(padding, flips):
    before = images()
    after = crop_and_flip(before, padding=padding, flip=flips, generator=torch.Generator().manual_seed(1))
    assert after.shape == before.shape and after.dtype == torch.uint8
    for one, other in zip(before, after, strict=True):
        assert any(torch.equal(other, view) for view in candidates(one, padding, flips))


def test_all_shifts_and_both_sides_occur_about_equally_often():
    one = images(1)
    many = crop_and_flip(
        one.expand(9000, *one.shape[1:]), padding=1, generator=torch.Generator().manual_seed(2)
    )
    counts = [sum(torch.equal(view, other) for other in many) for view in candidates(one[0], 1, True)]
    assert sum(counts) == 9000
    assert min(counts) > 400 and max(counts) < 600  # 500 each


def test_the_seed_decides_and_the_global_state_is_left_alone():
    before = torch.get_rng_state()
    first, again = (crop_and_flip(images(), generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), before)


def test_normalised_images_have_the_channels_second_and_last_in_memory():
    pixels = images()
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    result = normalise(pixels, mean=mean, std=std)
    expected = (pixels.permute(0, 3, 1, 2) / 255.0 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(
        std
    ).view(3, 1, 1)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_other_shapes_are_refused():
    with pytest.raises(
        ValueError, match=r"crop_and_flip: `images` must have shape \(N, H, W, C\), got \(3, 4\)"
    ):
        crop_and_flip(torch.zeros(3, 4))

"""Images: decoded upright in grey or colour, cropped and resized one by one; whole batches augmented."""

import io
import random
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from beliefmatch.data import images, transforms
from beliefmatch.data.images import UnreadableImage, decode
from beliefmatch.data.transforms import center_crop, crop_and_flip, normalise, random_crop, to_pixels
from image_files import encoded, picture, pixels
from refusals import refusal

ONE = pixels(1, 5, 7)[0]


def saved(image, form="PNG", **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_formats_give_back_every_pixel(form):
    assert np.array_equal(to_pixels(decode(encoded(ONE, form)), 3), ONE)


def test_grey_images_stay_grey_and_colours_turn_grey_by_their_brightness():
    image = decode(encoded(ONE[..., :1]))
    assert image.mode == "L"
    assert np.array_equal(to_pixels(image, 1), ONE[..., :1])
    assert np.array_equal(to_pixels(image, 3), ONE[..., [0, 0, 0]])
    grey = to_pixels(decode(encoded(ONE)), 1)[..., 0]
    assert np.abs(grey - ONE @ np.array([0.299, 0.587, 0.114])).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_upright_whichever_way_the_camera_was_held(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    turns = {1: (0, 0), 2: (0, 1), 3: (2, 0), 4: (2, 1), 5: (3, 1), 6: (3, 0), 7: (1, 1), 8: (1, 0)}
    quarters, mirrored = turns[orientation]
    expected = np.rot90(ONE, quarters)[:, :: -1 if mirrored else 1]
    image = decode(saved(picture(ONE), "PNG", exif=exif))
    assert np.array_equal(to_pixels(image, 3), expected)


def test_transparent_pixels_are_white():
    alpha = np.full((5, 7, 1), 255, np.uint8)
    alpha[:2] = 0
    image = decode(saved(Image.fromarray(np.concatenate([ONE, alpha], 2))))
    assert image.mode == "RGB"
    assert (np.asarray(image)[:2] == 255).all()
    assert np.array_equal(np.asarray(image)[2:], ONE[2:])


def test_palettes_black_and_white_cmyk_and_sixteen_bits_are_understood():
    colours = Image.fromarray(ONE // 128 * 255).convert("P", palette=Image.Palette.ADAPTIVE)
    assert np.array_equal(np.asarray(decode(saved(colours, "GIF"))), np.asarray(colours.convert("RGB")))
    black_and_white = Image.fromarray((ONE[..., 0] > 127).astype(np.uint8) * 255).convert("1")
    assert np.array_equal(np.asarray(decode(saved(black_and_white))), (ONE[..., 0] > 127) * 255)
    assert decode(saved(picture(ONE).convert("CMYK"), "JPEG")).mode == "RGB"
    deep = Image.fromarray(ONE[..., 0].astype(np.uint16) * 257)
    assert np.array_equal(np.asarray(decode(saved(deep))), ONE[..., 0])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"GIF, not really", "no image of a known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no image of a known format"),
        (encoded(ONE)[:60], "runcated"),
        (saved(Image.fromarray(ONE[..., 0].astype(np.float32)), "TIFF"), "floating-point"),
    ],
)
def test_the_reason_is_given_for_what_cannot_be_read(content, reason):
    with pytest.raises(UnreadableImage, match=reason):
        decode(content)


def test_images_that_claim_too_many_pixels_are_refused_before_they_are_unpacked(monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", 34)
    with pytest.raises(UnreadableImage, match="claims 7 x 5 pixels, above the limit of 34"):
        decode(encoded(ONE))
    monkeypatch.undo()
    for side in (20_000, 2_000_000_000):  # above our limit, and above Pillow's own
        head = b"IHDR" + struct.pack(">2I5B", side, side, 8, 2, 0, 0, 0)
        chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
        with pytest.raises(UnreadableImage, match="pixels"):
            decode(b"\x89PNG\r\n\x1a\n" + chunk + encoded(ONE)[33:])


def test_the_centre_is_that_of_the_resized_image():
    y, x = np.mgrid[:90, :60]
    waves = np.stack([np.sin(x / 9 + k) + np.cos(y / 7 - k) for k in range(3)], -1)
    photograph = Image.fromarray(np.clip(waves * 60 + 128, 0, 255).astype(np.uint8))
    whole = photograph.resize((32, 48), Image.Resampling.BILINEAR)
    expected = np.asarray(whole.crop((4, 12, 28, 36)), float)
    result = np.asarray(center_crop(photograph, 24, 24, 32 / 24), float)
    assert np.abs(result - expected).max() <= 2
    image = picture(ONE)
    assert center_crop(image, 5, 7) is image  # of the right size


@pytest.mark.parametrize("size", [(160, 213), (213, 160), (240, 160), (161, 160), (97, 131)])
def test_the_centre_of_an_image_lies_inside_of_it(size):
    image = Image.new("RGB", size)
    for side in range(8, 225, 3):
        assert center_crop(image, side, side).size == (side, side)


@pytest.mark.parametrize("size", [(1, 50), (50, 1), (1, 1)])
def test_thin_images_have_a_centre_and_random_crops(size):
    image = Image.new("RGB", size, (9, 8, 7))
    assert np.asarray(center_crop(image, 4, 4, 1.1)).tolist() == [[[9, 8, 7]] * 4] * 4
    crop = random_crop(image, 4, 4, flip=True, rng=random.Random(0))
    assert np.asarray(crop).tolist() == [[[9, 8, 7]] * 4] * 4


def test_random_crops_lie_within_have_the_area_and_the_ratio_and_flip_half_the_time():
    boxes = [transforms._random_box(100, 80, random.Random(seed)) for seed in range(400)]
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= 100 and 0 <= top < bottom <= 80
        assert 0.07 <= (right - left) * (bottom - top) / 8000 <= 1
        assert 0.7 <= (right - left) / (bottom - top) <= 1.4
    ramp = Image.fromarray(np.tile(np.arange(0, 200, 2, dtype=np.uint8), (100, 1)))
    rises = [
        np.diff(np.asarray(random_crop(ramp, 4, 4, flip=True, rng=random.Random(seed)), int)).sum() > 0
        for seed in range(400)
    ]
    assert 150 < sum(rises) < 250
    never = [random_crop(ramp, 4, 4, flip=False, rng=random.Random(seed)) for seed in range(20)]
    assert all(np.diff(np.asarray(image, int)).sum() > 0 for image in never)


def batch(n=40, height=6, width=5, channels=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (n, height, width, channels), generator=generator, dtype=torch.uint8)


def candidates(image, padding, flips):
    """Every image that augmentation may make of one."""
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
    before = batch()
    after = crop_and_flip(before, padding=padding, flip=flips, generator=torch.Generator().manual_seed(1))
    assert after.shape == before.shape and after.dtype == torch.uint8
    for one, other in zip(before, after, strict=True):
        assert any(torch.equal(other, view) for view in candidates(one, padding, flips))


def test_all_shifts_and_both_sides_occur_about_equally_often():
    one = batch(1)
    many = crop_and_flip(
        one.expand(9000, *one.shape[1:]), padding=1, generator=torch.Generator().manual_seed(2)
    )
    counts = [(many == view).flatten(1).all(1).sum() for view in candidates(one[0], 1, True)]
    assert sum(counts) == 9000
    assert min(counts) > 400 and max(counts) < 600  # 500 each


def test_the_seed_decides_and_the_global_state_is_left_alone():
    before = torch.get_rng_state()
    first, again = (crop_and_flip(batch(), generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), before)
    assert "`images`" in refusal(crop_and_flip, torch.zeros(3, 4))


def test_normalised_images_have_the_channels_second_and_last_in_memory():
    images, mean, std = batch(), torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.25, 0.3])
    result = normalise(images, mean=mean.tolist(), std=std.tolist())
    expected = ((images / 255.0 - mean) / std).permute(0, 3, 1, 2)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
    assert result.is_contiguous(memory_format=torch.channels_last)

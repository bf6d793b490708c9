"""Every kind of image file becomes an RGB square, or a reason."""

import io
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from distillmatch.sources.images import BadImageError, decode_files, decode_image, square

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> io.BytesIO:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file


def halves(left: tuple[int, ...], right: tuple[int, ...]) -> Image.Image:
    image = Image.new("RGB", (16, 16), left)
    image.paste(right, (8, 0, 16, 16))
    return image


def test_an_image_of_the_asked_size_is_not_resampled() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    assert np.array_equal(decode_image(encoded(Image.fromarray(pixels)), 24), pixels)


@pytest.mark.parametrize("size", [(48, 16), (16, 48)])
def test_the_long_side_is_cropped_evenly_and_nothing_is_stretched(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size, GREEN)
    middle = Image.new("RGB", (16, 16), RED)
    image.paste(middle, ((size[0] - 16) // 2, (size[1] - 16) // 2))
    assert (decode_image(encoded(image), 16) == RED).all()


def test_a_large_photograph_looks_as_if_decoded_in_full() -> None:
    smooth = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    photo = Image.fromarray(smooth).resize((1600, 1200), Image.Resampling.BICUBIC)
    file = encoded(photo, "JPEG", quality=95)
    full = Image.open(file).convert("RGB").crop((200, 0, 1400, 1200))
    expected = np.asarray(full.resize((32, 32), Image.Resampling.BICUBIC), dtype=int)
    assert abs(decode_image(file, 32).astype(int) - expected).max() <= 6


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "CMYK", "YCbCr", "L", "LA", "1"])
def test_modes_keep_their_colors(mode: str) -> None:
    format = "TIFF" if mode in ("CMYK", "YCbCr") else "PNG"
    left, right = ((0,) * 3, (255,) * 3) if mode in ("L", "LA", "1") else (RED, BLUE)
    image = decode_image(encoded(halves(left, right).convert(mode), format), 16).astype(int)
    assert image.shape == (16, 16, 3)
    assert abs(image[:, :8] - left).max() <= 3
    assert abs(image[:, 8:] - right).max() <= 3


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_gray_is_scaled_not_cut_off(format: str) -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    decoded = decode_image(encoded(Image.fromarray(ramp), format), 16)
    assert np.array_equal(decoded[..., 0], np.rint(ramp / 257).astype(np.uint8))


def test_transparency_is_laid_over_white() -> None:
    palette = halves(RED, BLUE).quantize(2)
    see_through = Image.new("RGBA", (16, 16), (255, 0, 0, 0))
    see_through.paste((0, 0, 255, 255), (8, 0, 16, 16))
    for file in (encoded(palette, transparency=palette.getpixel((0, 0))), encoded(see_through)):
        decoded = decode_image(file, 16)
        assert (decoded[:, :8] == 255).all() and (decoded[:, 8:] == BLUE).all()


@pytest.mark.parametrize("format", ["PNG", "JPEG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_noted_by_a_camera_is_applied(orientation: int, format: str) -> None:
    # The upright picture is red at the top left; the file stores it turned or mirrored.
    upright = Image.new("RGB", (64, 48), BLUE)
    upright.paste(RED, (0, 0, 32, 24))
    turns = {
        1: lambda image: image,
        2: lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        3: lambda image: image.rotate(180),
        4: lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        5: lambda image: image.transpose(Image.Transpose.TRANSPOSE),
        6: lambda image: image.rotate(90, expand=True),
        7: lambda image: image.transpose(Image.Transpose.TRANSVERSE),
        8: lambda image: image.rotate(-90, expand=True),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = encoded(turns[orientation](upright), format, exif=exif, quality=95)
    expected = square(upright, 48).astype(int)
    with Image.open(file) as opened:
        for found in (decode_image(file, 48), square(opened.copy(), 48)):
            assert abs(found.astype(int) - expected)[:, [4, -4]][[4, -4]].max() <= 6


def test_of_an_animation_the_first_picture_counts() -> None:
    frames = [Image.new("RGB", (16, 16), color) for color in (RED, BLUE)]
    file = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert (decode_image(file, 16) == RED).all()


@pytest.mark.parametrize("format", ["PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_a_truncated_image_is_refused(format: str, share: float) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    content = encoded(Image.fromarray(pixels), format).getvalue()
    with pytest.raises(BadImageError):
        decode_image(io.BytesIO(content[: int(len(content) * share)]), 16)


@pytest.mark.parametrize(
    "content", [b"", b"just text", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"%PDF-1.7", b"\x00" * 100]
)
def test_what_is_no_image_is_refused_as_such(content: bytes) -> None:
    reason = "not an image in a format that can be read" if content else "the file is empty"
    with pytest.raises(BadImageError, match=reason):
        decode_image(io.BytesIO(content), 16)


@pytest.mark.parametrize("mode", ["F", "I", "LAB"])
def test_modes_without_a_faithful_conversion_are_refused(mode: str) -> None:
    file = encoded(Image.new(mode, (16, 16)), "TIFF")
    with pytest.raises(BadImageError, match=f"mode {mode} cannot be turned into RGB"):
        decode_image(file, 16)


@pytest.mark.parametrize("limit", [400, 100])
def test_an_image_with_absurdly_many_pixels_is_refused(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = encoded(Image.new("RGB", (25, 25)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(BadImageError, match=f"more than {limit} pixels"):
            decode_image(file, 16)


def test_many_images_keep_their_order_and_the_bad_are_told_apart(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{number}.png") for number in range(50)]
    for number, file in enumerate(files):
        if number % 7 == 3:
            Path(file).write_bytes(b"")
        else:
            Image.new("RGB", (8, 8), (number, 0, 0)).save(file)
    for number, result in enumerate(decode_files(files, 1024)):
        if number % 7 == 3:
            assert result == "the file is empty (zero bytes)"
        else:
            assert isinstance(result, np.ndarray) and (result == (number, 0, 0)).all()

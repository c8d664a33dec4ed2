"""A file that is not an image, or claims too many pixels, is refused from its header in one line that names it."""

import io
from pathlib import Path

import pytest
from PIL import Image, ImageFile, ImageOps

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.images import open_image
from tests.faults.damaged_images import png
from tests.one_line import one_line


NO_FORMAT = "The image cannot be read as an image: its format is none of JPEG, PNG"


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels."""
    return png(width, height, 1, 0)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Dear reader, I am not an image.", NO_FORMAT),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n", NO_FORMAT),
        (png_header(11_000, 10_000), "The image has 11000 x 10000 pixels, more than 100000000"),
        (png_header(20_000, 20_000), "The image has far more than 100000000 pixels"),
        (png_header(2010, 10), "The image has 2010 x 10 pixels: one side is more than 200 times the other"),
    ],
    ids=["text", "PostScript", "110 megapixels", "400 megapixels", "a line"],
)
def test_refused_by_the_name_it_was_given(content, message, tmp_path):
    file: Path = tmp_path / "upload.png"
    file.write_bytes(content)
    with one_line(f"^{message}") as error:
        open_image(file, "The image")
    assert str(tmp_path) not in str(error.value)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_a_truncated_file_is_refused_even_if_a_library_lets_pillow_fill_it_up(form, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)  # as lmms-eval does when imported
    file = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").save(file, form)
    with pytest.raises(UserError, match="cannot be read as an image"):
        open_image(file.getvalue()[:-200])
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


def photograph(form: str, orientation: int) -> bytes:
    """A file whose EXIF says how to turn it; no side and no corner is like another."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    corners = Image.new("RGB", (3, 2))
    corners.putdata([(0, 0, 0), (90, 0, 0), (255, 0, 0), (0, 255, 0), (0, 90, 0), (0, 0, 255)])
    file = io.BytesIO()
    corners.resize((48, 32), Image.Resampling.NEAREST).save(file, form, exif=exif, quality=95)
    return file.getvalue()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_as_its_exif_says(form, orientation):
    content = photograph(form, orientation)
    turned = open_image(content)
    assert turned.size == ((48, 32) if orientation < 5 else (32, 48))
    with Image.open(io.BytesIO(content)) as image:
        assert turned.tobytes() == ImageOps.exif_transpose(image).convert("RGB").tobytes()


def test_an_image_whose_exif_is_damaged_is_taken_as_it_is_stored():
    file = io.BytesIO()
    Image.new("RGB", (40, 20)).save(file, "PNG", exif=b"Exif\0\0no TIFF header")
    assert open_image(file.getvalue()).size == (40, 20)

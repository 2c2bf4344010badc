"""Makes the pictures of this folder and what Pillow reads of them: `<name>.rgb` holds the bytes of each frame, red,
green and blue, upright. Needs Pillow 11.3 or later and NumPy; the files here are of Pillow 13.0."""

import math
from pathlib import Path

import numpy
from PIL import Image, ImageDraw, ImageOps, ImageSequence

HERE = Path(__file__).parent
WIDTH, HEIGHT = 64, 48


def scene(turn: float = 0.0) -> Image.Image:
    """Slopes, a disc, a bar and fine lines: what pictures have, in few pixels."""
    y, x = numpy.mgrid[0:HEIGHT, 0:WIDTH].astype(float)
    red = 40 + 180 * x / WIDTH + 20 * numpy.sin(y / 5 + turn)
    green = 200 - 150 * y / HEIGHT + 25 * numpy.cos(x / 4)
    blue = 90 + 70 * numpy.sin((x + y) / 9 + turn)
    picture = Image.fromarray(numpy.stack([red, green, blue], 2).clip(0, 255).astype("uint8"))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((8, 6, 26, 24), fill=(230, 60, 40))
    draw.rectangle((36, 10, 58, 20), fill=(30, 60, 210))
    for i in range(6):
        draw.line((6 + 4 * i, 30, 16 + 4 * i, 44), fill=(250, 250, 240))
    return picture


def expect(path: Path) -> None:
    with Image.open(path) as picture:
        frames = [ImageOps.exif_transpose(f).convert("RGB") for f in ImageSequence.Iterator(picture)]
    (HERE / f"{path.name}.rgb").write_bytes(b"".join(f.tobytes() for f in frames))


def main() -> None:
    plain = scene()
    plain.save(HERE / "rgb.png", optimize=True)
    plain.save(HERE / "420.jpg", quality=92)
    plain.save(HERE / "444.jpg", quality=92, subsampling=0)
    plain.save(HERE / "progressive.jpg", quality=92, progressive=True)
    plain.convert("L").save(HERE / "grey.jpg", quality=92)
    plain.convert("CMYK").save(HERE / "cmyk.jpg", quality=95)
    plain.quantize(64).save(HERE / "palette.png", optimize=True)
    plain.save(HERE / "lossy.webp", quality=92)
    plain.save(HERE / "lossless.webp", lossless=True)
    plain.save(HERE / "420.avif", quality=90, subsampling="4:2:0")
    plain.save(HERE / "444.avif", quality=90, subsampling="4:4:4")
    plain.save(HERE / "still.bmp")
    plain.save(HERE / "still.tif", compression="tiff_lzw")
    alpha = plain.copy()
    alpha.putalpha(Image.fromarray(numpy.tile(numpy.arange(WIDTH) * 4 % 256, (HEIGHT, 1)).astype("uint8")))
    alpha.save(HERE / "alpha.png", optimize=True)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x112] = orientation
        plain.save(HERE / f"turned{orientation}.jpg", quality=92, exif=exif)
    for kind in ("png", "webp"):
        exif = Image.Exif()
        exif[0x112] = 5
        plain.save(HERE / f"turned5.{kind}", exif=exif, **({"lossless": True} if kind == "webp" else {}))
    several = [scene(math.pi * i / 2) for i in range(4)]
    delays = [40, 200, 60, 500]
    several[0].save(HERE / "moving.gif", save_all=True, append_images=several[1:], duration=delays, loop=0)
    several[0].save(HERE / "moving.webp", save_all=True, append_images=several[1:], duration=delays, quality=92)
    several[0].save(
        HERE / "moving_lossless.webp", save_all=True, append_images=several[1:], duration=delays, lossless=True
    )
    for path in sorted(HERE.iterdir()):
        if path.suffix not in (".py", ".rgb", ".bin"):
            expect(path)
    expect(HERE.parent / "hard" / "anim.webp")

    # What Pillow makes of 4 sizes by 2 filters, and by BOX where it divides: for the reference of the tests.
    sized = bytearray()
    for width, height in ((24, 20), (90, 70), (13, 48), (100, 11)):
        for method in (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC):
            sized += plain.resize((width, height), method).tobytes()
    sized += plain.resize((16, 12), Image.Resampling.BOX).tobytes()
    (HERE / "resized.bin").write_bytes(sized)


main()

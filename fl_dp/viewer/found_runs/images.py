"""Images of a run's folder that may be shown: only PNG, under fl-dp's own names."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from .untrusted import Unreadable, opened, read_whole

IMAGES = ("images.png", "recovery.png", "resistance.png", "experiment.png", "accuracy.png")
"""Names of the images that runs, sweeps and the data-recovery experiment write."""

_LARGEST = 1 << 24
_MOST_PIXELS = 1 << 25  # a small file can claim a huge size
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEAD = 24  # signature, length and name of the first part, width, height


@dataclass(frozen=True, kw_only=True)
class Image:
    """One image: folder, file name, bytes, and size in pixels."""

    folder: str
    name: str
    png: bytes
    width: int
    height: int

    @property
    def address(self) -> str:
        """The image as a data URL; only its bytes come from the folder."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode('ascii')}"


def images_of(root: Path, name: str) -> list[str]:
    """Names of a run's or sweep's images."""
    images = []
    for image in IMAGES:
        try:
            with opened(root, f"{name}/{image}") as stream:
                if stream.read(len(_SIGNATURE)) == _SIGNATURE:
                    images.append(image)
        except (OSError, Unreadable):
            continue
    return images


def read_image(root: Path, name: str, image: str, *, allowed: tuple[str, ...] = IMAGES) -> Image:
    """An image from a folder below `root`.

    Raises:
        Unreadable: If its name is none of `allowed`, or it is a link, too large, or no PNG.
        OSError: If it can't be read.
    """
    if image not in allowed:
        raise Unreadable("no image that fl-dp writes")
    png = read_whole(root, f"{name}/{image}", most=_LARGEST)
    if not png.startswith(_SIGNATURE) or png[12:16] != b"IHDR" or len(png) < _HEAD:
        raise Unreadable(f"{image} is no PNG")
    width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    if not 0 < width * height <= _MOST_PIXELS:
        raise Unreadable(f"{image} has {width} x {height} pixels, and {_MOST_PIXELS:,} are shown")
    return Image(folder=name, name=image, png=png, width=width, height=height)

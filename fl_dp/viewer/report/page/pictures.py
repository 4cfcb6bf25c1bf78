"""Pictures of a page: in the file itself, as many as it may be large."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass

from fl_dp.viewer.found_runs import Image

from .words import WORDS

MOST = 8 << 20
"""Bytes of all pictures of a page, before they are written as text."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One picture.

    Attributes:
        title: In words.
        alternative: What somebody hears who does not see it.
        address: The picture itself, as a data URL.
        width: In pixels.
        height: In pixels.
    """

    title: str
    alternative: str
    address: str
    width: int
    height: int


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Pictures of a page.

    Attributes:
        shown: As many as fit, in their order.
        left_out: A sentence about the others; empty if there are none.
    """

    shown: tuple[Picture, ...]
    left_out: str


def pictures_of(images: Iterable[Image]) -> Pictures:
    """Return pictures until the page is as large as it may be."""
    shown, left_out, size = [], [], 0
    for image in images:
        if size + len(image.png) > MOST:
            left_out.append(f"{image.folder}/{image.name}")
            continue
        size += len(image.png)
        title = WORDS[f"image.{image.name}"]
        # Nothing but its bytes comes from the folder.
        encoded = base64.b64encode(image.png).decode("ascii")
        shown.append(
            Picture(
                title=WORDS["image.of"].format(title=title, folder=image.folder),
                alternative=WORDS["image.numbers"].format(title=title),
                address=f"data:image/png;base64,{encoded}",
                width=image.width,
                height=image.height,
            )
        )
    said = WORDS["pictures.left_out"].format(names=", ".join(left_out), most=MOST >> 20)
    return Pictures(shown=tuple(shown), left_out=said if left_out else "")

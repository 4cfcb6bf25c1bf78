"""Images of a run's folder that the dashboard shows: PNG alone, under fl-dp's own names."""

from __future__ import annotations

from pathlib import Path

from fl_dp.found_runs.untrusted import Unreadable, opened, read_whole

IMAGES = ("images.png", "recovery.png", "resistance.png", "experiment.png", "accuracy.png")
_LARGEST = 1 << 24
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def images_of(root: Path, name: str) -> list[str]:
    """Return the names of the images that a run, or the sweep it belongs to, has."""
    found = []
    for image in IMAGES:
        try:
            with opened(root, f"{name}/{image}") as stream:
                if stream.read(len(_SIGNATURE)) == _SIGNATURE:
                    found.append(image)
        except (OSError, Unreadable):
            continue
    return found


def read_image(root: Path, name: str, image: str) -> bytes:
    """Return an image.

    Raises:
        Unreadable: If it is none of `IMAGES`, a link, too large, or no PNG.
        OSError: If it can't be read.
    """
    if image not in IMAGES:
        raise Unreadable("no image that fl-dp writes")
    found = read_whole(root, f"{name}/{image}", most=_LARGEST)
    if not found.startswith(_SIGNATURE):
        raise Unreadable(f"{image} is no PNG")
    return found

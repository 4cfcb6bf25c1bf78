"""A user's own images, in folders named after the classes.

    data_dir/train/cat/1.png             or, with natural clients:  data_dir/train/CLIENT/cat/1.png
    data_dir/test/cat/2.png

All images have one size. The user chooses how to resize, the colour behind transparent pixels, and
the mapping of 65,536 greys to 256.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.datasets.dataset import Dataset
from fl_dp.tasks.datasets.forms import DataFormat, plain_label, plain_name
from fl_dp.tasks.datasets.names import (
    in_order,
    require_distinct_classes,
    require_distinct_units,
)
from fl_dp.tasks.datasets.own_data import (
    class_numbers,
    dataset_of_parts,
    dataset_of_rows,
    numbers_by_label,
    optional_import,
    own_folder,
    require_scale_of,
    splits_to_read,
)
from fl_dp.user_code import Contained

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
_FORMATS = ("PNG", "JPEG", "BMP")  # Pillow reads many more, which are not needed
_MODES = {1: "L", 3: "RGB"}


class _Image(NamedTuple):
    client: str | None
    label: str
    file: Path


def load_folder(data_dir: str | None, data_format: DataFormat) -> Dataset:
    """Load the images below `train` and `test`.

    Returns:
        Bytes `(n, channels, height, width)`, grey or RGB. `Dataset.features` divides them by 255
        and scales them by the public means and deviations. A part that is not read has no rows.

    Raises:
        FileNotFoundError: If a part is missing.
        ModuleNotFoundError: If Pillow is not installed.
        ValueError: If the folders or an image do not fit the format; the text can contain names.
    """
    data_format.require(image_shape=data_format.image_shape, classes=data_format.classes)
    for key in ("columns", "client_column", "person_column"):
        if getattr(data_format, key) is not None:
            raise ValueError(f"task.{key} is for tables: leave it out of task=folder")
    folder = own_folder("folder", data_dir)
    paths = {split: folder / split for split in ("train", "test")}
    if data_format.leave_out_unfit:
        splits_to_read(data_format, paths)
        return _fitting_images(paths["train"], data_format)
    images = {split: _images_below(paths[split]) for split in splits_to_read(data_format, paths)}
    if any(image.client is not None for image in images.get("test", [])):
        raise ValueError(f"{paths['test']} is public and nobody's: write test/CLASS/IMAGE there")
    classes = data_format.classes
    if not classes:
        classes = tuple(in_order(image.label for part in images.values() for image in part))
        require_distinct_classes(classes, folder)
    shape = data_format.image_shape or _shape_of(next(iter(images.values()))[0].file)
    require_scale_of(data_format, shape[0], "channels")
    pixels = {split: _pixels(part, shape) for split, part in images.items()}
    labels = {}
    for split, part in images.items():
        names = [image.label for image in part]
        labels[split] = class_numbers(names, classes, source=paths[split])
    clients = None
    if data_format.is_shared:
        clients = _clients(images["train"], paths["train"])
    dataset = dataset_of_parts(
        "folder",
        pixels,
        labels,
        num_classes=len(classes),
        clients=clients,
        data_format=data_format,
    )
    return replace(
        dataset,
        mean=data_format.mean or 0.0,
        std=data_format.std or 1.0,
        class_names=tuple(classes),
    )


def _fitting_images(root: Path, data_format: DataFormat) -> Dataset:
    """One node's training images, each read separately; those that do not fit are black."""
    shape, classes = data_format.image_shape, data_format.classes
    assert shape is not None and classes is not None  # required of one node's data
    require_scale_of(data_format, shape[0], "channels")
    files = sorted(path for path in root.rglob("*") if _is_image_of(path, root))
    x = np.zeros((len(files), *shape), dtype=np.uint8)
    y = np.zeros(len(files), dtype=np.int64)
    fit = np.zeros(len(files), dtype=np.bool_)
    optional_import("PIL.Image", extra="images", task="folder")  # its absence is no image's fault
    number = numbers_by_label(classes)
    for row, file in enumerate(files):
        label = plain_label(file.parent.name)
        if label not in number or file.suffix.lower() not in _SUFFIXES:
            continue
        with Contained():  # a decoder may raise anything
            x[row] = _pixels([_Image(None, label, file)], shape)[0]
            y[row] = number[label]
            fit[row] = True
    dataset = dataset_of_rows("folder", x, y, fit, num_classes=len(classes), source=root)
    return replace(dataset, mean=data_format.mean or 0.0, std=data_format.std or 1.0)


def _is_image_of(path: Path, root: Path) -> bool:
    """Tell whether a path is CLASS/IMAGE or CLIENT/CLASS/IMAGE, and not hidden."""
    parts = path.relative_to(root).parts
    hidden = any(part.startswith(".") for part in parts)
    return len(parts) in (2, 3) and not hidden and path.is_file()


def _images_below(root: Path) -> list[_Image]:
    """List one part's images, in the order of their paths."""
    images = []
    for first in _visible(root):
        for second in _visible(_folder(first)):
            if second.is_dir():
                client, label = plain_name(first.name), plain_name(second.name)
                images += [_Image(client, label, _image(file)) for file in _visible(second)]
            else:
                images.append(_Image(None, plain_name(first.name), _image(second)))
    if not images:
        raise ValueError(f"{root} holds no images: put them into {root}/CLASS")
    if len({image.client is None for image in images}) == 2:
        raise ValueError(
            f"{root} has images in CLASS/IMAGE and in CLIENT/CLASS/IMAGE: choose one of them"
        )
    return images


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise ValueError(f"{path} stands beside the classes: move it into the folder of its class")
    return path


def _image(path: Path) -> Path:
    if path.suffix.lower() not in _SUFFIXES or path.is_dir():
        raise ValueError(f"{path} is no image that is read here: {', '.join(_SUFFIXES)}")
    return path


def _clients(
    images: list[_Image], source: Path
) -> tuple[NDArray[np.int64], tuple[str, ...]] | None:
    owners = [image.client for image in images if image.client is not None]
    if not owners:
        return None
    names = in_order(owners)
    require_distinct_units(names, source)
    number = {name: index for index, name in enumerate(names)}
    return np.array([number[owner] for owner in owners], dtype=np.int64), tuple(names)


def _opened(file: Path) -> Any:
    pillow = optional_import("PIL.Image", extra="images", task="folder")
    try:
        return pillow.open(file, formats=_FORMATS)
    except (OSError, pillow.DecompressionBombError) as error:
        raise ValueError(
            f"{file} can't be read as a PNG, JPEG or BMP image: it is of another kind, damaged or "
            "far too large"
        ) from error


def _shape_of(file: Path) -> tuple[int, int, int]:
    with _opened(file) as opened:
        image = _upright(opened, file)
        channels = 1 if image.mode in ("1", "L", "LA") else 3
        return channels, image.height, image.width


def _upright(image: Any, file: Path) -> Any:
    operations = optional_import("PIL.ImageOps", extra="images", task="folder")
    try:
        return operations.exif_transpose(image)
    except (OSError, SyntaxError, ValueError) as error:  # Pillow raises all three for broken files
        raise ValueError(f"{file} can't be read: it is damaged or cut short") from error


def _pixels(images: list[_Image], shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    channels, height, width = shape
    pixels = np.empty((len(images), height, width, channels), dtype=np.uint8)
    for row, image in enumerate(images):
        with _opened(image.file) as opened:
            # The header has the size, so a wrong one is refused before anything is decoded.
            _require_size(opened, image.file, shape, (opened.size, opened.size[::-1]))
            upright = _upright(opened, image.file)
            _require_size(upright, image.file, shape, (upright.size,))
            values = np.asarray(_of_bytes(upright, image.file).convert(_MODES[channels]))
        pixels[row] = values.reshape(height, width, channels)
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def _require_size(
    image: Any, file: Path, shape: tuple[int, int, int], sizes: tuple[tuple[int, int], ...]
) -> None:
    _, height, width = shape
    if (width, height) not in sizes:
        raise ValueError(
            f"{file} is {image.width} x {image.height} pixels and not {width} x {height}: bring "
            f"all images to one size, task.image_shape={list(shape)} (channels, height, width)"
        )


def _of_bytes(image: Any, file: Path) -> Any:
    """Return an image whose pixels are opaque and have one byte per channel."""
    if image.mode.startswith(("I", "F")):  # I, I;16, I;16B, ..., F: Pillow would cut them off
        raise ValueError(
            f"{file} has more than 8 bits a pixel (mode {image.mode}): choose which values are "
            "black and white, and save it with 8"
        )
    if not image.has_transparency_data:
        return image
    with_alpha = image.convert("RGBA")
    if with_alpha.getchannel("A").getextrema()[0] < 255:
        raise ValueError(
            f"{file} has transparent pixels, whose colour is not meant to be seen: save it on a "
            "background"
        )
    return with_alpha

"""Folders of one's own images: classes and clients by name, and nothing resized."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fl_dp.tasks.datasets import DataFormat, Dataset, DataSource, data_source, load_dataset

GENERATOR = np.random.Generator(np.random.PCG64(0))
GREY = GENERATOR.integers(0, 256, (8, 9), dtype=np.uint8)
COLOUR = GENERATOR.integers(0, 256, (8, 9, 3), dtype=np.uint8)
NODE = DataFormat(classes=("cat", "dog"), image_shape=(1, 8, 9), splits=("train",))


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Any]:
    """Return the data set of some images, given by their paths."""

    def made(images: Any, data_format: Any = None) -> Dataset:
        for path, pixels in images.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / path)
        data_source._load_once.cache_clear()  # the files have changed
        return load_dataset(DataSource("folder", data_dir=str(tmp_path), data_format=data_format))

    return made


PLAIN = {"train/dog/1.png": GREY, "train/cat/2.png": GREY // 2, "test/cat/1.png": GREY}
OF_CLIENTS = {
    "train/zoe/cat/1.png": GREY,
    "train/ann/dog/1.png": GREY,
    "train/zoe/dog/2.png": GREY // 2,
    "test/cat/1.png": GREY,
}


def test_folders_are_classes_in_the_order_of_their_names(load: Callable[..., Any]) -> None:
    dataset = load(PLAIN)
    assert dataset.train_x.shape == (2, 1, 8, 9)
    assert dataset.train_x.dtype == np.uint8
    np.testing.assert_array_equal(dataset.train_x[:, 0], [GREY // 2, GREY])
    assert (dataset.train_y.tolist(), dataset.test_y.tolist()) == ([0, 1], [0])
    assert (dataset.class_names, dataset.train_clients) == (("cat", "dog"), None)
    features = dataset.features(slice(None))
    np.testing.assert_allclose(features[1, 0], GREY / 255, atol=1e-6)


def test_an_image_shape_of_one_channel_makes_colours_grey(load: Callable[..., Any]) -> None:
    images = {"train/a/1.png": COLOUR, "train/b/1.png": GREY, "test/a/1.png": COLOUR}
    dataset = load(images, DataFormat(image_shape=(1, 8, 9)))
    expected = np.asarray(Image.fromarray(COLOUR).convert("L"))
    np.testing.assert_array_equal(dataset.train_x[:, 0], [expected, GREY])


def test_folders_of_clients_are_natural_clients(load: Callable[..., Any]) -> None:
    dataset = load(OF_CLIENTS)
    assert dataset.client_names == ("ann", "zoe")
    assert dataset.train_clients.tolist() == [0, 1, 1]
    assert dataset.train_y.tolist() == [1, 0, 1]


@pytest.mark.parametrize("images", [{"train/dog/1.png": GREY}, {"train/zoe/dog/2.png": GREY}])
def test_a_node_s_images_are_all_its_own(
    load: Callable[..., Any], images: dict[str, np.ndarray]
) -> None:
    dataset = load(images, NODE)
    assert (dataset.train_y.tolist(), dataset.num_classes) == ([1], 2)
    assert (dataset.train_clients, dataset.test_x.shape) == (None, (0, 1, 8, 9))


def test_hidden_files_are_left_alone(load: Callable[..., Any], tmp_path: Path) -> None:
    load(PLAIN)
    for place in ("train/.DS_Store", "train/cat/.thumbnails"):
        (tmp_path / place).write_text("")
    assert len(load(PLAIN).train_y) == 2


@pytest.mark.parametrize(
    "images",
    [
        PLAIN | {"train/ann/cat/1.png": GREY},
        PLAIN | {"test/ann/cat/1.png": GREY},
        {"train/ann/cat/1.png": GREY, "test/ann/cat/1.png": GREY},
        PLAIN | {"train/1.png": GREY},
        PLAIN | {"train/cat/3.png": GREY[:, :8]},
        PLAIN | {"train/cat/3.tiff": GREY},
        PLAIN | {"test/a/b/c/1.png": GREY},
    ],
)
def test_images_that_do_not_fit_are_refused(
    load: Callable[..., Any], images: dict[str, np.ndarray]
) -> None:
    with pytest.raises(ValueError):
        load(images)


@pytest.mark.parametrize("content", [b"no image", b"P5 9 8 255 " + bytes(72), None])
def test_a_file_that_is_no_image_is_refused_by_name(
    load: Callable[..., Any], tmp_path: Path, content: bytes | None
) -> None:
    load(PLAIN)
    cut_short = (tmp_path / "train/cat/2.png").read_bytes()[:-40]
    (tmp_path / "train/cat/3.png").write_bytes(cut_short if content is None else content)
    with pytest.raises(ValueError, match=r"3\.png can't be read"):
        load({})


def test_parts_that_are_missing_or_empty_are_an_error(
    load: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        load({"test/cat/1.png": GREY})
    (tmp_path / "train" / "cat").mkdir(parents=True)
    with pytest.raises(ValueError, match="train holds no images"):
        load({})


@pytest.mark.parametrize(
    "data_format",
    [
        replace(NODE, classes=None),
        replace(NODE, image_shape=None),
        DataFormat(columns=("x",)),
        DataFormat(classes=("cat", "cow")),
    ],
    ids=["a node's classes", "a node's shape", "for tables", "another class"],
)
def test_a_format_that_does_not_fit_is_refused(
    load: Callable[..., Any], data_format: DataFormat
) -> None:
    with pytest.raises(ValueError, match=r"task\.(classes|image_shape|columns)"):
        load(PLAIN, data_format)


# Pictures that Pillow would make bytes of by itself.


def saved(image: Image.Image, **options: Any) -> Callable[[Path], None]:
    return lambda path: image.save(path, **options)


def one_channel_of_16_bits(values: np.ndarray) -> Image.Image:
    return Image.fromarray(values.astype(np.uint16) * 257)


def with_alpha(alpha: np.ndarray, mode: str = "RGBA") -> Image.Image:
    image = Image.fromarray(GREY).convert(mode)
    image.putalpha(Image.fromarray(alpha))
    return image


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


OPAQUE = np.full(GREY.shape, 255, np.uint8)
HOLED = np.where(GREY < 200, 255, GREY).astype(np.uint8)


@pytest.fixture
def load_saved(tmp_path: Path) -> Callable[..., Any]:
    """Return the data set of one picture, written in all places by a function of its path."""

    def made(save: Callable[[Path], None], data_format: Any = None, suffix: str = "png") -> Dataset:
        for folder in ("train/cat", "train/dog", "test/cat"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            save(tmp_path / folder / f"1.{suffix}")
        data_source._load_once.cache_clear()
        return load_dataset(DataSource("folder", data_dir=str(tmp_path), data_format=data_format))

    return made


UNREADABLE = {
    "16 bits": saved(one_channel_of_16_bits(GREY)),
    "transparent colours": saved(with_alpha(HOLED)),
    "transparent greys": saved(with_alpha(HOLED, "LA")),
    "an entry of a palette": saved(
        Image.fromarray(GREY).convert("P"), transparency=int(GREY[0, 0])
    ),
    "a transparent colour": saved(Image.fromarray(GREY), transparency=int(GREY[0, 0])),
    "another format": saved(Image.fromarray(GREY), format="GIF"),
}


@pytest.mark.parametrize("save", UNREADABLE.values(), ids=UNREADABLE)
def test_pictures_whose_bytes_would_be_a_guess_are_refused_and_no_record_at_a_node(
    load_saved: Callable[..., Any], save: Callable[[Path], None]
) -> None:
    with pytest.raises(ValueError, match=r"8 bits|transparent pixels|PNG, JPEG or BMP"):
        load_saved(save)
    dataset = load_saved(save, replace(NODE, image_shape=(1, 8, 9), leave_out_unfit=True))
    assert dataset.train_fit.tolist() == [False, False]
    assert not dataset.train_x.any()


@pytest.mark.parametrize("image", [with_alpha(OPAQUE), with_alpha(OPAQUE, "LA")])
def test_an_opaque_alpha_channel_changes_nothing(
    load_saved: Callable[..., Any], image: Image.Image
) -> None:
    dataset = load_saved(saved(image), DataFormat(image_shape=(1, 8, 9)))
    np.testing.assert_array_equal(dataset.train_x[0, 0], GREY)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_stand_as_their_camera_was_held(
    load_saved: Callable[..., Any], tmp_path: Path, orientation: int
) -> None:
    Image.fromarray(GREY).save(tmp_path / "plain.jpg")
    grey = np.asarray(Image.open(tmp_path / "plain.jpg"))  # a JPEG changes some pixels
    upright = {
        1: grey,
        2: grey[:, ::-1],
        3: grey[::-1, ::-1],
        4: grey[::-1],
        5: grey.T,
        6: grey.T[:, ::-1],
        7: grey.T[::-1, ::-1],
        8: grey.T[::-1],
    }[orientation]
    save = saved(Image.fromarray(GREY), exif=turned(orientation))
    dataset = load_saved(save, suffix="jpg")
    np.testing.assert_array_equal(dataset.train_x[0, 0], upright)


def test_a_size_is_that_of_the_upright_picture(load_saved: Callable[..., Any]) -> None:
    save = saved(Image.fromarray(GREY), exif=turned(6))
    with pytest.raises(ValueError, match=r"is 8 x 9 pixels and not 9 x 8"):
        load_saved(save, DataFormat(image_shape=(1, 8, 9)))


def test_folders_of_one_client_written_in_two_ways_are_one_or_refused(
    load: Callable[..., Any],
) -> None:
    names = {"Zo\u00eb": 1, "Zoe\u0308": 2, "ann": 3}
    images = {f"train/{name}/cat/{number}.png": GREY for name, number in names.items()}
    test = {"test/cat/1.png": GREY, "test/dog/1.png": GREY}
    assert load(images | test).client_names == ("Zo\u00eb", "ann")
    with pytest.raises(ValueError, match="2 names of clients differ") as refused:
        load({"train/ANN/cat/4.png": GREY})
    assert "ann" not in str(refused.value).lower()

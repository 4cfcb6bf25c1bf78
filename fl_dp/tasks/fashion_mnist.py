"""Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 images of 28x28 in ten classes.

The four idx files come from a folder, from Debian's package, or from the hub by way of the
`datasets` library. Wherever they come from, their uncompressed bytes must have the published md5.
They are unpacked once into `.npy` files of bytes in the user's cache and memory-mapped from there,
so that the processes of a simulation share one copy.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib
import os
import struct
import tempfile
import zlib
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.data import Dataset

# Published md5 of each file's uncompressed bytes; the archives differ from mirror to mirror.
_MD5 = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
_SYSTEM_FOLDER = Path("/usr/share/datasets/fashion-mnist")
_HUB_NAME = "zalandoresearch/fashion_mnist"
_HUB_COLUMNS = {
    "train-images-idx3-ubyte": ("train", "image"),
    "train-labels-idx1-ubyte": ("train", "label"),
    "t10k-images-idx3-ubyte": ("test", "image"),
    "t10k-labels-idx1-ubyte": ("test", "label"),
}
# Of the training pixels after division by 255; public constants, so they cost no privacy.
_MEAN, _STD = 0.2860, 0.3530


def load_fashion_mnist(data_dir: str | None = None) -> Dataset:
    """Load Fashion-MNIST with its published split.

    Args:
        data_dir: Folder with the four idx files, each plain or as `.gz`. None looks in the folder
            of Debian's package, then in the cache, and then asks the `datasets` library, if
            installed.

    Returns:
        Memory-mapped uint8 images `(60000, 1, 28, 28)` and `(10000, 1, 28, 28)`, which
        `Dataset.features` standardises; plain arrays if the cache folder can't be written.

    Raises:
        FileNotFoundError: If the folder or one of its files is missing, or no source is to be had.
        ValueError: If a file is damaged or is not the published one.
    """
    folder = _SYSTEM_FOLDER if data_dir is None and _SYSTEM_FOLDER.is_dir() else data_dir
    if folder is None:
        arrays = _from_hub()
    else:
        # A folder that the user names is checked even if the cache could do without it.
        arrays = _from_folder(Path(folder), trust_cache=data_dir is None)
    train_x, train_y, test_x, test_y = (arrays[name] for name in _MD5)
    return Dataset(
        name="fashion_mnist",
        train_x=train_x[:, np.newaxis],
        train_y=train_y.astype(np.int64),
        test_x=test_x[:, np.newaxis],
        test_y=test_y.astype(np.int64),
        num_classes=10,
        mean=_MEAN,
        std=_STD,
    )


def _from_folder(folder: Path, *, trust_cache: bool) -> dict[str, NDArray[np.uint8]]:
    if not folder.is_dir():
        raise FileNotFoundError(
            f"task.data_dir={folder} is not a folder; write the folder that holds "
            f"{', '.join(_MD5)}, each plain or as .gz"
        )
    files = {name: _find(folder, name) for name in _MD5}
    return {
        name: _cached(name, partial(_read, file), str(file), None if trust_cache else file)
        for name, file in files.items()
    }


def _from_hub() -> dict[str, NDArray[np.uint8]]:
    splits: dict[str, Any] = {}

    def read(name: str) -> bytes:
        if not splits:
            splits.update(_download())
        split, column = _HUB_COLUMNS[name]
        values = np.stack([np.asarray(value, np.uint8) for value in splits[split][column]])
        # Written as the idx file it was made from, so that the same md5 proves the same content.
        return struct.pack(f">{1 + values.ndim}i", 0x0800 + values.ndim, *values.shape) + (
            values.tobytes()
        )

    return {
        name: _cached(name, partial(read, name), f"{name} from {_HUB_NAME}", None) for name in _MD5
    }


def _download() -> Any:
    ways = (
        "Fashion-MNIST is not here; get it in one of three ways: "
        "`apt install dataset-fashion-mnist`; `pip install 'fl-dp[datasets]'`, which downloads it; "
        f"or task.data_dir=/folder with {', '.join(_MD5)}, each plain or as .gz"
    )
    if find_spec("datasets") is None:
        raise FileNotFoundError(ways)
    try:
        return importlib.import_module("datasets").load_dataset(_HUB_NAME)
    except Exception as error:  # The library passes on whatever its network stack raises.
        raise FileNotFoundError(f"{ways} (the download failed: {error})") from error


def _find(folder: Path, name: str) -> Path:
    for file in (folder / name, folder / f"{name}.gz"):
        if file.is_file():
            return file
    raise FileNotFoundError(f"{folder} holds neither {name} nor {name}.gz; put one of them there")


def _read(file: Path) -> bytes:
    raw = file.read_bytes()
    if file.suffix != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{file} is damaged or cut short ({error}): found md5 {_md5(raw)} of the archive, "
            f"expected {_MD5[file.stem]} of the bytes in it; fetch it again"
        ) from error


def _parse(name: str, raw: bytes, source: str) -> NDArray[np.uint8]:
    """Check an idx file's bytes and view them as an array."""
    found, expected = _md5(raw), _MD5[name]
    verdict = f"found md5 {found} of the uncompressed bytes, expected {expected}; fetch it again"
    dimensions = 3 if "idx3" in name else 1
    # Two zero bytes, 8 for unsigned bytes, the number of dimensions.
    magic = bytes([0, 0, 8, dimensions])
    header = 4 + 4 * dimensions
    if raw[:4] != magic or len(raw) < header:
        raise ValueError(
            f"{source} is no idx file of {dimensions} dimensions: it starts with "
            f"{raw[:4].hex() or 'nothing'}, not {magic.hex()}; {verdict}"
        )
    shape = struct.unpack(f">{dimensions}I", raw[4:header])
    values = np.frombuffer(raw, dtype=np.uint8, offset=header)
    if found != expected or values.size != np.prod(shape):
        raise ValueError(f"{source} is not the published file: {verdict}")
    return values.reshape(shape)


def _cached(
    name: str, read: Callable[[], bytes], source: str, verify: Path | None
) -> NDArray[np.uint8]:
    """Map one array from the cache, filling it if need be.

    Args:
        name: Key of `_MD5`; the cached file carries the md5, so its content is verified once.
        read: Gives the uncompressed idx bytes.
        source: What `read` reads, for error messages.
        verify: The file that must itself have been verified once, or None if the cache is enough.

    Returns:
        Read-only uint8 array, memory-mapped where the cache allows it.
    """
    cache = _cache_folder()
    if cache is None:
        return _parse(name, read(), source)
    array_file = cache / f"fashion-mnist-{name}-{_MD5[name]}.npy"
    stamp = None if verify is None else cache / f"{array_file.stem}-{_fingerprint(verify)}.verified"
    if stamp is None or stamp.exists():
        # A cache that is absent, unreadable or torn is filled again.
        with contextlib.suppress(OSError, ValueError, EOFError):
            return _map(array_file)
    array = _parse(name, read(), source)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _write(array_file, array)
        if stamp is not None:
            stamp.touch()
        return _map(array_file)
    except OSError:
        return array


def _map(array_file: Path) -> NDArray[np.uint8]:
    # The plain view drops numpy.memmap's bookkeeping for each access, and keeps the mapping.
    return np.asarray(np.load(array_file, mmap_mode="r"))


def _write(array_file: Path, array: NDArray[np.uint8]) -> None:
    """Write an array so that other processes see all of it or nothing."""
    descriptor, name = tempfile.mkstemp(dir=array_file.parent, suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            np.save(stream, array)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(array_file)
    except BaseException:
        temporary.unlink()
        raise


def _cache_folder() -> Path | None:
    # The XDG base directory specification has relative paths ignored.
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if configured.is_absolute():
        return configured / "fl-dp"
    try:
        return Path.home() / ".cache" / "fl-dp"
    except RuntimeError:
        # A container's user may have no home.
        return None


def _fingerprint(file: Path) -> str:
    status = file.stat()
    identity = f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}"
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def _md5(raw: bytes) -> str:
    return hashlib.md5(raw, usedforsecurity=False).hexdigest()

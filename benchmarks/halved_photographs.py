"""CIFAR-10 halved to 16 x 16 by means, as a folder of pictures for `task=folder`.

`experiment=privacy_levels_cifar10` trains on it: two processors then suffice for a ResNet-18.

    $ python benchmarks/halved_photographs.py                  # writes runs/cifar16
    $ python benchmarks/halved_photographs.py other/folder
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from fl_dp.tasks.datasets import load_dataset


def main() -> None:
    """Write one file a photograph, `PART/LABEL/NUMBER.png`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/cifar16"))
    target: Path = parser.parse_args().folder
    if target.exists():
        parser.error(f"{target} is there already: remove it, or name another folder")
    begun = target.with_name(f"{target.name}.begun")  # half of the photographs are no data set
    photographs = load_dataset("cifar10")
    parts = {
        "train": (photographs.train_x, photographs.train_y),
        "test": (photographs.test_x, photographs.test_y),
    }
    for part, (images, labels) in parts.items():
        for label in np.unique(labels):
            (begun / part / str(label)).mkdir(parents=True, exist_ok=True)
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            halved = image.reshape(3, 16, 2, 16, 2).mean((2, 4)).round().astype(np.uint8)
            picture = Image.fromarray(halved.transpose(1, 2, 0))
            picture.save(begun / part / str(label) / f"{number}.png")
    begun.rename(target)
    print(
        f"{target}: {len(photographs.train_y)} photographs and {len(photographs.test_y)} for tests"
    )


if __name__ == "__main__":
    main()

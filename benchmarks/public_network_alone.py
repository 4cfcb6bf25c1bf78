"""Accuracy on CIFAR-10 of a network trained on ImageNet, without any record of CIFAR-10.

ImageNet's classes are grouped by hand into those of CIFAR-10. It needs `lite_encoder.py` and
`lite0.safetensors`, as docs/features.md makes them.

    $ PYTHONPATH=examples/encoders python benchmarks/public_network_alone.py
"""

from __future__ import annotations

from importlib import import_module

import numpy as np
import torch
from safetensors.torch import load_file

from fl_dp.tasks.datasets import load_dataset

BATCH = 100
IMAGENET_CLASSES: tuple[tuple[int, ...], ...] = (
    (404, 895),
    (436, 468, 511, 609, 627, 656, 661, 751, 817),
    (*range(7, 25), *range(80, 101), *range(127, 147)),
    (281, 282, 283, 284, 285),
    (351, 352, 353),  # antelopes: ImageNet has no deer
    tuple(range(151, 269)),
    (30, 31, 32),
    (339,),  # the only kind of horse
    (403, 484, 510, 554, 625, 628, 724, 780, 814, 833, 871, 914),
    (555, 569, 675, 717, 864, 867),
)
"""Classes of ImageNet for each of CIFAR-10's ten."""


def main() -> None:
    """Print the accuracy on the test part."""
    images = load_dataset("cifar10")
    network = import_module("lite_encoder").Lite0().eval()
    network.load_state_dict(load_file("lite0.safetensors"))
    correct = 0
    for start in range(0, len(images.test_y), BATCH):
        batch = slice(start, start + BATCH)
        with torch.inference_mode():
            vectors = network(torch.from_numpy(images.features(batch, "test")))
            probabilities = network.body._fc(vectors).softmax(1)
        of_classes = [probabilities[:, list(group)].sum(1) for group in IMAGENET_CLASSES]
        predicted = torch.stack(of_classes, dim=1).argmax(1).numpy()
        correct += int(np.sum(predicted == images.test_y[batch]))
    print(correct / len(images.test_y))


if __name__ == "__main__":
    main()

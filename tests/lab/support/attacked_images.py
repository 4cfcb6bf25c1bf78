"""Images to attack, and the small networks that give them away."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fl_dp.lab.attacks.inversion.image_metrics import mean_image, mse, psnr
from fl_dp.lab.attacks.inversion.inversion_attack import (
    Attack,
    ClientRecords,
    KnownTraining,
    PixelRange,
    Recovered,
    RoundObservation,
)
from fl_dp.tasks.datasets import Dataset, load_dataset
from fl_dp.tasks.models import build_model

ONE_STEP = KnownTraining(learning_rate=0.1)
DIGITS = PixelRange((-0.3,), (0.7,))


def images(rows: list[int], dataset: Dataset | None = None) -> ClientRecords:
    """Return some test images as a client's records."""
    source = dataset or load_dataset("digits")
    chosen = np.asarray(rows)
    return ClientRecords(
        features=torch.from_numpy(source.features(chosen, "test").astype(np.float32)),
        labels=torch.from_numpy(source.labels(chosen, "test")),
    )


def network(name: str = "mlp", dataset: Dataset | None = None, *, hidden: int = 32) -> nn.Module:
    """Return an untrained network."""
    form = (dataset or load_dataset("digits")).form
    return build_model(name, hidden=hidden, seed=3, **form._asdict())


def attacked(
    attack: Attack, seen: RoundObservation, pixels: PixelRange = DIGITS, shape: tuple[int, ...] = ()
) -> Recovered:
    """Return what an attack makes of one observation."""
    [made] = attack.recover([seen], input_shape=shape or (1, 8, 8), pixels=pixels, seed=0)
    return made


def decibels(made: Recovered, truth: ClientRecords, pixels: PixelRange = DIGITS) -> list[float]:
    """Return the PSNR of each image, in the order of both."""
    pairs = zip(pixels.to_unit(made.features), pixels.to_unit(truth.features), strict=True)
    return [psnr(one.numpy(), other.numpy()) for one, other in pairs]


def no_better_than_the_mean_image(made: Recovered, truth: ClientRecords) -> bool:
    """Tell whether none of some digits is nearer to the first true one than the mean image is."""
    digits = load_dataset("digits")
    others = DIGITS.to_unit(torch.from_numpy(digits.train_x.copy())).numpy()
    image = DIGITS.to_unit(truth.features)[0].numpy()
    errors = [mse(one.numpy(), image) for one in DIGITS.to_unit(made.features)]
    return min(errors) >= mse(mean_image(others), image)

"""Recovery against noise, for each threat model, and what else resists it.

An experiment is a list of cells, named by all their settings. A cell takes seconds and its result
can be saved: a stopped experiment continues with the missing cells.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fl_dp.app.settings import Settings
from fl_dp.app.settings.checks import one_of
from fl_dp.app.settings.dp_sgd import DP_SGD
from fl_dp.app.settings.recovery import THREATS, WITH_NOISE, RecoverySettings
from fl_dp.mechanisms import SecureRandom
from fl_dp.tasks.datasets import Dataset
from fl_dp.tasks.models import build_model

from .analytic import first_linear
from .image_metrics import matched, mean_image, mse, nearest_image, psnr, ssim
from .inversion_attack import Attack, ClientRecords, KnownTraining, PixelRange, Recovered
from .recovery_results import CellResult
from .registry import ATTACKS, ON_TOKENS
from .threats import (
    DPSGDUpdate,
    NoisyUpdate,
    RawUpdate,
    ReleasedModel,
    ThreatModel,
    UpdateSum,
)

NETWORKS = ("plain", "dropout", "batch_norm")
"""Kinds of networks, from `changed`."""

_DROPPED = 0.5
_PRIOR_IMAGES = 5000
_BATCHES, _EPOCHS = (1, 4, 16, 64), (1, 4, 16)
_NORMALISED = 8  # records of the batches whose statistics are used, and of their control


@dataclass(frozen=True, kw_only=True)
class RecoveryCell:
    """One attack on one threat model, on one seed's images.

    Attributes:
        part: `noise`, or a resistance without noise: `batch`, `epochs` or `network`.
        threat: One of `THREATS`.
        attack: One of `ATTACKS`.
        seed: Seed of images, weights, clients' orders and first guesses.
        noise_multiplier: Noise multiplier of the threat; 0 without noise.
        records: Records of each client.
        epochs: Epochs of each client, of one step on all records.
        network: One of `NETWORKS`.
    """

    part: str
    threat: str
    attack: str
    seed: int
    noise_multiplier: float = 0.0
    records: int = 1
    epochs: int = 1
    network: str = "plain"

    @property
    def name(self) -> str:
        """A file name that no other cell shares."""
        return (
            f"{self.part}-{self.threat}-{self.attack}-z{self.noise_multiplier:g}-n{self.records}"
            f"-e{self.epochs}-{self.network}-s{self.seed}"
        )


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """The experiment of the keys of `recovery`, on the run's task, model and bounds.

    Attributes:
        dataset: Images, or tokens (`TextRecovery`); its training part gives attacked images and
            prior.
    """

    dataset: Dataset
    settings: Settings

    @cached_property
    def options(self) -> RecoverySettings:
        """The keys of `recovery`."""
        return self.settings.recovery

    @cached_property
    def _seeds(self) -> range:
        return range(self.settings.seed, self.settings.seed + self.options.seeds)

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If no attack is asked for or one is unknown, the data are no images or too
                few, or an attack does not fit the model.
        """
        if self.options.attacks is None:
            raise ValueError("no attack is asked for: write experiment=data_recovery")
        for name in self.options.attacks:
            one_of("recovery.attacks", name, tuple(ATTACKS))
        self._require_fit()
        options = self.options
        private = options.images * self._most_records + (options.cohort - 1) * options.records
        if private >= len(self.dataset.train_y):
            raise ValueError(
                f"{private} private images of {len(self.dataset.train_y)} leave none for a prior: "
                "lower recovery.images, recovery.records or recovery.cohort"
            )
        network = "dropout" if self.options.resistance else "plain"
        built = self._network(0, network)
        if "analytic" in self.options.attacks:
            first_linear(built)

    def _require_fit(self) -> None:
        """Raise ValueError for records that are no images, or attacks that are not on images."""
        shape = self.dataset.input_shape
        if len(shape) != 3 or min(shape[1:]) < 8:
            raise ValueError(
                f"task={self.dataset.name} has records of shape {shape}: recovery is measured on "
                "images with sides of at least 8, such as task=digits or task=fashion_mnist, and "
                "on text (experiment=text_recovery)"
            )
        for attack in set(self.options.attacks or ()) & set(ON_TOKENS):
            raise ValueError(f"recovery.attacks={attack} is on text: write task=shakespeare, too")

    @property
    def _most_records(self) -> int:
        records = self.options.records
        return max(records, *_BATCHES) if self.options.resistance else records

    @cached_property
    def cells(self) -> tuple[RecoveryCell, ...]:
        """All cells, the same for the same settings."""
        return tuple(dict.fromkeys(self._cells()))

    def _cells(self) -> Iterator[RecoveryCell]:
        for seed in self._seeds:
            for attack in self.options.attacks or ():
                for threat in self.options.threats or THREATS:
                    yield from self._cells_of(threat, attack, seed)
                if self.options.resistance and attack != "analytic":
                    yield from _resisting(attack, seed)

    def _cells_of(self, threat: str, attack: str, seed: int) -> Iterator[RecoveryCell]:
        epochs = self.settings.client.epochs if threat == "local_steps" else 1
        levels = self.options.noise if threat in WITH_NOISE else (0.0,)
        for level in levels:
            yield RecoveryCell(
                part="noise",
                threat=threat,
                attack=attack,
                seed=seed,
                noise_multiplier=level,
                records=self.options.records,
                epochs=epochs,
            )

    def run(self, cell: RecoveryCell) -> CellResult:
        """Attack the images of one cell."""
        victims, others = self._clients(cell)
        threat, network = self._threat(cell), self._network(cell.seed, cell.network)
        seed = self.settings.privacy.get("insecure_seed")
        if seed is not None:
            seed += cell.seed  # of a test: another stream for each seed of the experiment
        rng = SecureRandom(insecure_seed=seed)
        observations = [
            threat.observe(network, [victim, *others], seed=cell.seed, rng=rng)
            for victim in victims
        ]
        recovered = self._attack(cell.attack).recover(
            observations,
            input_shape=self.dataset.input_shape,
            pixels=self.pixels,
            seed=cell.seed,
        )
        return self._measured(cell, threat, victims, recovered)

    @cached_property
    def pixels(self) -> PixelRange:
        """A pixel's range: public for pixels in bytes, else the training part's."""
        images = self.dataset.train_x
        if images.dtype == np.uint8:
            mean, std = np.atleast_1d(self.dataset.mean), np.atleast_1d(self.dataset.std)
            # Bytes are scaled to [0, 1] and then standardised: 0 and 255 become these.
            return PixelRange(tuple(-mean / std), tuple((1.0 - mean) / std))
        return PixelRange((float(images.min()),), (float(images.max()),))

    def _rows(self, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The attacked training rows, other clients', and the prior's."""
        order = np.random.default_rng(seed).permutation(len(self.dataset.train_y))
        attacked = self.options.images * self._most_records
        others = attacked + (self.options.cohort - 1) * self.options.records
        return order[:attacked], order[attacked:others], order[others:][:_PRIOR_IMAGES]

    def _clients(self, cell: RecoveryCell) -> tuple[list[ClientRecords], list[ClientRecords]]:
        attacked, others, _ = self._rows(cell.seed)
        victims = attacked.reshape(self.options.images, -1)[:, : cell.records]
        return (
            [self._records(rows) for rows in victims],
            [self._records(rows) for rows in others.reshape(-1, self.options.records)],
        )

    def _records(self, rows: NDArray[np.int64]) -> ClientRecords:
        return ClientRecords(
            features=torch.from_numpy(self.dataset.features(rows)),
            labels=torch.from_numpy(self.dataset.labels(rows)),
        )

    def _network(self, seed: int, network: str) -> nn.Module:
        model = self.settings.model
        built = build_model(
            model.name, hidden=model.hidden, seed=seed, **self.dataset.form._asdict()
        )
        if network == "plain":
            return built
        if not isinstance(built, nn.Sequential):
            raise ValueError(
                f"model={model.name} is no plain sequence of layers, which recovery.resistance "
                "puts others between: write recovery.resistance=false"
            )
        return changed(built, network)

    def _threat(self, cell: RecoveryCell) -> ThreatModel:
        settings, cohort = self.settings, self.options.cohort
        rate, norm = settings.client.learning_rate, settings.clipping.norm
        training = KnownTraining(learning_rate=rate, epochs=cell.epochs)
        noise: dict[str, Any] = {
            "training": training,
            "clipping_norm": norm,
            "noise_multiplier": cell.noise_multiplier,
        }
        match cell.threat:
            case "raw" | "local_steps":
                return RawUpdate(training=training)
            case "clipped":
                return RawUpdate(training=training, clipping_norm=norm)
            case "secure_sum":
                return UpdateSum(**noise | {"noise_multiplier": None, "cohort": cohort})
            case "secure_sum_noise":
                return UpdateSum(**noise, cohort=cohort)
            case "client_noise":
                return NoisyUpdate(**noise)
            case "released" | "released_others_known":
                knows_others = cell.threat == "released_others_known"
                return ReleasedModel(**noise, knows_others=knows_others)
            case "dp_sgd":
                dp_sgd = DP_SGD["on"]()
                if settings.protects_records:
                    dp_sgd = settings.record_training
                return DPSGDUpdate(**noise | {"clipping_norm": dp_sgd.clipping_norm})
        raise ValueError(f"there is no threat {cell.threat!r}: write one of {', '.join(THREATS)}")

    def _attack(self, name: str) -> Attack:
        if name not in ATTACKS:
            raise ValueError(f"there is no attack {name!r}: write one of {', '.join(ATTACKS)}")
        return ATTACKS[name](self.options.steps)

    def _of_cell(self, cell: RecoveryCell, threat: ThreatModel) -> dict[str, Any]:
        """The columns that a cell's rows share."""
        return {
            "part": cell.part,
            "threat": cell.threat,
            "attack": cell.attack,
            "noise_multiplier": cell.noise_multiplier,
            "epsilon": threat.epsilon(self.options.delta),
            "delta": self.options.delta,
            "unit": threat.unit,
            "neighbours": str(threat.neighbours),
            "against": str(threat.against),
            "records": cell.records,
            "epochs": cell.epochs,
            "network": cell.network,
            "seed": cell.seed,
        }

    def _measured(
        self,
        cell: RecoveryCell,
        threat: ThreatModel,
        victims: Sequence[ClientRecords],
        recovered: Sequence[Recovered],
    ) -> CellResult:
        others = self._other_images(cell.seed)
        mean = mean_image(others)
        rows, truths, matches, nearest = [], [], [], []
        of_cell = self._of_cell(cell, threat)
        for client, (victim, guess) in enumerate(zip(victims, recovered, strict=True)):
            truth = self.pixels.to_unit(victim.features).numpy()
            images = self.pixels.to_unit(guess.features).numpy()
            for number, match in enumerate(matched(images, truth)):
                image, label = truth[number], int(victim.labels[number])
                near = nearest_image(others, image)
                rows.append(
                    {
                        **of_cell,
                        "client": client,
                        "image": number,
                        "label": label,
                        "label_recovered": int(guess.labels[match]) == label,
                        **_scores("", images[match], image),
                        **_scores("mean_image_", mean, image),
                        **_scores("nearest_", near, image),
                    }
                )
                truths.append(image)
                matches.append(images[match])
                nearest.append(near)
        return CellResult(
            rows=rows,
            truth=np.stack(truths),
            recovered=np.stack(matches),
            nearest=np.stack(nearest),
            mean=mean,
        )

    def _other_images(self, seed: int) -> NDArray[np.float32]:
        """The adversary's own images, none attacked."""
        features = self.dataset.features(self._rows(seed)[2]).astype(np.float32)
        return self.pixels.to_unit(torch.from_numpy(features)).numpy()


def changed(model: nn.Sequential, network: str) -> nn.Sequential:
    """A network with the same layers, and others that hinder an attack.

    These are victims only: batch statistics mix records, so no private training has them.

    The result shares the model's layers. `plain` changes nothing. `dropout` drops half of the
    activations, by coins that the adversary does not see. `batch_norm` normalises activations by
    their batch's mean and deviation, which the adversary can only compute from its own guesses.

    Raises:
        ValueError: If there is no such network.
    """
    if network not in NETWORKS:
        raise ValueError(f"there is no network {network!r}: write one of {', '.join(NETWORKS)}")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (name, layer) in enumerate(model.named_children()):
        last = number == len(model) - 1
        layers[name] = layer
        if network == "batch_norm" and isinstance(layer, nn.Linear) and not last:
            # The batch's own statistics, in training and in evaluation mode.
            norm = nn.BatchNorm1d(layer.out_features, track_running_stats=False)
            layers[f"{name}_norm"] = norm
        if network == "dropout" and isinstance(layer, nn.ReLU):
            layers[f"{name}_dropout"] = nn.Dropout(_DROPPED)
    return nn.Sequential(layers)


def _resisting(attack: str, seed: int) -> Iterator[RecoveryCell]:
    """Yield the cells that resist without noise, and their controls."""
    raw = RecoveryCell(part="batch", threat="raw", attack=attack, seed=seed)
    for records in _BATCHES:
        yield replace(raw, records=records)
    for epochs in _EPOCHS:
        yield replace(raw, part="epochs", epochs=epochs)
    for network, records in (
        ("plain", 1),
        ("dropout", 1),
        ("plain", _NORMALISED),
        ("batch_norm", _NORMALISED),
    ):
        yield replace(raw, part="network", network=network, records=records)


def _scores(
    prefix: str, image: NDArray[np.floating], truth: NDArray[np.floating]
) -> dict[str, float]:
    return {
        f"{prefix}mse": mse(image, truth),
        f"{prefix}psnr": psnr(image, truth),
        f"{prefix}ssim": ssim(image, truth),
    }

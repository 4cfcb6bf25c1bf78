"""Records under DP-SGD: one client trains with canary records, and an adversary guesses its coins.

Each canary record has its own input and a random label. So its gradient is as long as allowed, and
moves weights that no other record moves. A fair coin includes it or not. The client trains by the
usual code; the adversary sees the models it sends. The auditor also sees what each step released
of excluded canaries' weights: noise alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from fl_dp.accounting.trade_off import trade_off
from fl_dp.app.settings import Settings
from fl_dp.app.workload import data_of_unit
from fl_dp.clients import DPSGD
from fl_dp.clients.per_record.dp_sgd import train_with_dp_sgd
from fl_dp.guarantee import Guarantee
from fl_dp.lab.audit.lower_bounds import most_that_clopper_pearson_shows
from fl_dp.lab.audit.noise_findings import findings_on_noise
from fl_dp.lab.audit.one_run import finding_of_one_run
from fl_dp.lab.audit.scores import bounds_of_scores
from fl_dp.lab.audit.verdict import AuditReport
from fl_dp.plan import RecordPlan

_LEARNING_RATE = 1e-3  # so small that a canary's gradient keeps its direction
_LONG = 100.0  # length of a canary's input in clipping norms: its gradient is clipped

_NOISE = 0.1  # of alpha, for the noise of the steps: it needs less of it than the bounds

Trainer = Callable[..., None]
"""Trains a model as `train_with_dp_sgd` does; a broken one is what an audit has to catch."""


@dataclass(frozen=True, kw_only=True)
class AuditedRecords:
    """Records of one client, with canaries among them.

    Attributes:
        features: The client's own, shape `(n, ...)`.
        labels: The client's own, shape `(n,)`.
        num_classes: Number of labels, at least 2.
        canaries: Number of canary records, including those left out.
        seed: Seed of canaries and coins.
    """

    features: Tensor
    labels: Tensor
    num_classes: int
    canaries: int
    seed: int

    def __post_init__(self) -> None:
        """Check the number of canaries.

        Raises:
            ValueError: If there are fewer than twenty canaries.
        """
        if self.canaries < 20:
            raise ValueError(f"{self.canaries} canary records show nothing: have at least 20")

    @classmethod
    def of_first_client(cls, settings: Settings, canaries: int) -> AuditedRecords:
        """The records of a simulation's first client, with canaries.

        Raises:
            ValueError: If the task's records are no numbers, or the canaries too few.
        """
        data = data_of_unit(settings, 0, {"partition-id": 0})
        if data is None or data[0].form.vocabulary_size is not None:
            raise ValueError(
                f"task={settings.task.name} has no records of numbers to hide canaries in"
            )
        dataset, rows = data
        return cls(
            features=torch.as_tensor(dataset.features(rows)),
            labels=torch.as_tensor(dataset.labels(rows)),
            num_classes=dataset.form.num_classes,
            canaries=canaries,
            seed=settings.seed,
        )

    def coins(self) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return which canaries are in, and each one's label."""
        rng = np.random.default_rng((self.seed, 20230515))
        return rng.random(self.canaries) < 0.5, rng.integers(self.num_classes, size=self.canaries)


class _Watched(SGD):
    """The optimizer; records what each step releases of some weights.

    Attributes:
        releases: One for each step, flat.
    """

    def __init__(self, parameters: Any, *, columns: NDArray[np.int64]) -> None:
        super().__init__(parameters, lr=_LEARNING_RATE)
        self._columns = torch.from_numpy(columns)
        self.releases: list[Tensor] = []

    def step(self, closure: Any = None) -> Any:
        """Record the gradient, then step."""
        [weights] = self.param_groups[0]["params"]
        self.releases.append(weights.grad[:, self._columns].reshape(-1).clone())
        return super().step(closure)


def audit_records(
    records: AuditedRecords,
    plan: RecordPlan,
    *,
    alpha: float,
    train: Trainer = train_with_dp_sgd,
    on_participation: Callable[[], None] = lambda: None,
) -> AuditReport:
    """Train by a plan, with canaries, and return what the models prove, beside its claim.

    A training that keeps its claim is accused with probability `alpha`. `train` trains for one
    participation; `on_participation` is called after each.
    """
    included, labels = records.coins()
    own = records.features.reshape(len(records.features), -1).float()
    width = own.shape[1]
    model = nn.Linear(width + records.canaries, records.num_classes, bias=False)
    nn.init.zeros_(model.weight)
    loader = DataLoader(_with_canaries(records, own, included, labels, plan.clipping_norm))
    # Public, and the same whatever the coins say.
    expected = plan.sampling_rate * (len(own) + records.canaries / 2.0)
    # No record touches the weights of canaries that are left out: each step shows noise alone.
    made: list[_Watched] = []
    releases: list[Tensor] = []

    def watched(parameters: Any) -> _Watched:
        made.append(_Watched(parameters, columns=width + np.flatnonzero(~included)))
        return made[-1]

    dp_sgd = DPSGD(optimizer=watched, expected_batch_size=max(1.0, expected))
    for _ in range(plan.participations):
        train(model, loader, plan=plan, how=dp_sgd)
        releases += made[-1].releases  # the last that is made trains; one before it is tried out
        on_participation()
    weights = model.weight.detach().double().numpy()[:, width:]
    # At the first model a canary's gradient points from its label to all others alike.
    towards = np.eye(records.num_classes)[labels] - 1.0 / records.num_classes
    scores = (weights.T * towards).sum(axis=1)
    claim, delta = plan.epsilon().best, plan.budget.delta
    of_bounds = (1.0 - _NOISE) * alpha
    curve = trade_off(
        {plan.event: plan.steps * plan.participations},
        neighboring_relation=plan.neighboring_relation,
    )
    judge = partial(finding_of_one_run, scores, included, claim=claim, delta=delta, curve=curve)
    one_run, at_95 = judge(alpha=of_bounds / 2.0), judge(alpha=0.05)
    # No other record touches a canary's weights: their scores are independent of each other.
    order = np.random.default_rng(records.seed).permutation(len(scores))
    without, with_canary = scores[order][~included[order]], scores[order][included[order]]
    fitted = bounds_of_scores(without, with_canary, alpha=of_bounds / 2.0, delta=delta)
    most = most_that_clopper_pearson_shows(
        len(with_canary) // 2, len(without) // 2, alpha=of_bounds / 4.0, delta=delta
    )
    assert dp_sgd.expected_batch_size is not None  # given above
    charged = plan.noise_multiplier * plan.clipping_norm / dp_sgd.expected_batch_size
    noise = torch.stack(releases).double().numpy() / charged
    return AuditReport(
        promise=Guarantee.of(plan),
        subject=f"records of one client, {plan.participations} participations of {plan.steps} "
        "steps of DP-SGD",
        findings=(
            replace(
                one_run,
                alpha=of_bounds,
                bounds={**one_run.bounds, **fitted.beside(claim, curve)},
                caught=one_run.caught or fitted.violates(curve),
                power=f"the one-run bound {one_run.power}, Clopper-Pearson {most:.3g}",
            ),
            *findings_on_noise(noise, alpha=_NOISE * alpha),
        ),
        estimates={
            "one-run bound at confidence 0.95, on which no verdict rests": at_95.bounds["one_run"],
            "the same for Gaussian DP": at_95.bounds.get("one_run_gaussian", math.nan),
        },
        notes=(
            f"{int(included.sum())} of {len(included)} canary records were in; the bounds are of "
            "an adversary that sees the model after the last participation",
            f"the noise is that of all {len(releases)} steps, in weights that no record touches",
            "the one-run bound (Steinke et al. 2023) holds whatever the scores are; delta alone "
            "keeps it at 0 where confidence is above about 1 - 2 canaries x delta / guesses",
            "the one-run bound for f-DP (Mahloujifar et al. 2024) goes by the claimed trade-off "
            "curve, at any confidence",
        ),
    )


def _with_canaries(
    records: AuditedRecords,
    own: Tensor,
    included: NDArray[np.bool_],
    labels: NDArray[np.int64],
    clipping_norm: float,
) -> TensorDataset:
    rows = np.flatnonzero(included)
    canaries: Any = torch.zeros(len(rows), own.shape[1] + records.canaries)
    canaries[np.arange(len(rows)), own.shape[1] + rows] = _LONG * clipping_norm
    honest = torch.cat([own, torch.zeros(len(own), records.canaries)], dim=1)
    return TensorDataset(
        torch.cat([honest, canaries]),
        torch.cat([records.labels.long(), torch.from_numpy(labels[rows])]),
    )

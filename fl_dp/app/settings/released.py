"""Settings of the metrics that a round releases, or that are measured of its model."""

from __future__ import annotations

from dataclasses import dataclass

from fl_dp.option_errors import OptionError
from fl_dp.tasks.metrics import METRICS

from .checks import at_least, distinct, one_of, ordered_pair, positive, told


@dataclass(kw_only=True)
class MetricsSettings:
    """Clients' metrics that each round releases with the model, and metrics on public rows.

    Attributes:
        loss: Range `[low, high]` to which each client's loss is clipped; null releases none.
        accuracy: The same for its accuracy, a share: `[0, 1]`, or a part of it.
        scalar_noise_std: Noise on each sum of metrics, and of the bits of adaptive clipping, both
            scaled to [-1/2, 1/2]; null is 0.05 times the expected cohort, or more, so that they
            add at most 5 % to the noise on updates.
        public: What is measured on public rows after each round, besides loss and accuracy or R2,
            at no cost in privacy: of `balanced_accuracy`, `auc`, `f1`, `log_loss`, `perplexity`,
            `calibration_error` and `confusion_matrix`, or of numbers `mae` and `rmse`; `[]`
            measures none, null what people report for the task.
        evaluate_every: Rounds from one evaluation on public rows to the next: every one, or fewer
            where evaluating takes long. The last model is always evaluated.
        private_epsilon: Epsilon, of the budget, at which the last model is measured once on a fifth
            of each client's records, which it does not train on: accuracy, AUC of two classes, mean
            absolute error of numbers; null holds none out.
    """

    loss: list[float] | None = told(None)
    accuracy: list[float] | None = told(None)
    scalar_noise_std: float | None = told(None)
    public: list[str] | None = told(None)
    evaluate_every: int = told(1)
    private_epsilon: float | None = told(None)

    def __post_init__(self) -> None:
        """Check the values."""
        ordered_pair("metrics.loss", self.loss)
        ordered_pair("metrics.accuracy", self.accuracy)
        if self.accuracy is not None and not 0.0 <= self.accuracy[0] < self.accuracy[1] <= 1.0:
            raise OptionError(
                "metrics.accuracy is a share of the records, which lies in [0, 1]: write [0, 1], "
                f"got {self.accuracy}"
            )
        positive("metrics.scalar_noise_std", self.scalar_noise_std)
        at_least("metrics.evaluate_every", self.evaluate_every, 1)
        positive("metrics.private_epsilon", self.private_epsilon)
        distinct("metrics.public", self.public, least=0)
        for name in self.public or ():
            one_of("metrics.public", name, tuple(METRICS))

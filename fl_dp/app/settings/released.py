"""Settings of metrics that a round releases, or that are measured of its model."""

from __future__ import annotations

from dataclasses import dataclass

from fl_dp.option_errors import OptionError
from fl_dp.tasks.public_scores import METRICS

from .checks import at_least, distinct, one_of, ordered_pair, positive, tracked


@dataclass(kw_only=True)
class MetricsSettings:
    """Clients' metrics that each round releases with the model, and metrics on public rows.

    Attributes:
        loss: Range `[low, high]` to which each client's loss is clipped, to release its mean;
            null: none.
        accuracy: The same for accuracy, within `[0, 1]`.
        scalar_noise_std: Noise on each sum of metrics and of adaptive clipping's bits, scaled to
            [-1/2, 1/2]. Null adds at most 5 % to the noise on updates.
        public: More metrics on public rows after each round: `balanced_accuracy`, `auc`,
            `largest_answer`, `f1`, `log_loss`, `perplexity`, `calibration_error`,
            `confusion_matrix`; of numbers `mae` and
            `rmse`. Null: the usual ones; `[]`: none.
        evaluate_every: Rounds from one evaluation on public rows to the next; the last model is
            always evaluated.
        private_epsilon: Part of the budget that measures the last model, on a fifth of each
            client's records that is not trained on. Null: none.
    """

    loss: list[float] | None = tracked(None)
    accuracy: list[float] | None = tracked(None)
    scalar_noise_std: float | None = tracked(None)
    public: list[str] | None = tracked(None)
    evaluate_every: int = tracked(1)
    private_epsilon: float | None = tracked(None)

    def __post_init__(self) -> None:
        """Check the values."""
        ordered_pair("metrics.loss", self.loss)
        ordered_pair("metrics.accuracy", self.accuracy)
        if self.accuracy is not None and not 0.0 <= self.accuracy[0] < self.accuracy[1] <= 1.0:
            raise OptionError(
                "metrics.accuracy is a share of the records, which lies in [0, 1]: write [0, 1], "
                f"got {self.accuracy}",
                option="metrics.accuracy",
            )
        positive("metrics.scalar_noise_std", self.scalar_noise_std)
        at_least("metrics.evaluate_every", self.evaluate_every, 1)
        positive("metrics.private_epsilon", self.private_epsilon)
        distinct("metrics.public", self.public, least=0)
        for name in self.public or ():
            one_of("metrics.public", name, tuple(METRICS))

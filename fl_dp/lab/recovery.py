"""The attack that settings ask for, and the file in which each of its cells is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fl_dp.app.settings import Settings
from fl_dp.app.settings.dp_sgd import DPSGDOnSettings
from fl_dp.app.workload import dataset_of
from fl_dp.lab.attacks.inversion.names import THREATS
from fl_dp.lab.settings import recovery_settings_of

if TYPE_CHECKING:
    from fl_dp.lab.attacks.inversion.experiment import Recovery


def recovery_of(settings: Settings) -> Recovery:
    """Return the experiment.

    Raises:
        FileNotFoundError: If the data set is not there.
        ValueError: If no attack is asked for, or one does not fit the data or the model.
    """
    from fl_dp.lab.attacks.inversion.experiment import Recovery

    asked = recovery_settings_of(settings)
    if asked.attacks is None:
        raise ValueError("no attack is asked for: write experiment=data_recovery")
    training = settings.record_training if settings.protects_records else DPSGDOnSettings()
    return Recovery(
        dataset=dataset_of(settings),
        model=settings.model.name,
        hidden=settings.model.hidden,
        learning_rate=settings.client.learning_rate,
        clipping_norm=settings.clipping.norm,
        record_clipping_norm=training.clipping_norm,
        delta=asked.delta,
        attacks=asked.attacks,
        threats=asked.threats or THREATS,
        noise_multipliers=asked.noise,
        images=asked.images,
        records=asked.records,
        cohort=asked.cohort,
        epochs=settings.client.epochs,
        seeds=asked.seeds,
        first_seed=settings.seed,
        steps=asked.steps,
        resistance=asked.resistance,
        insecure_seed=settings.privacy.insecure_seed,
    )

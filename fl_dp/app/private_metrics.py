"""The last model, measured on clients' held-out rows: charged before, asked once."""

from __future__ import annotations

import json
import logging

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.files import write_text
from fl_dp.ledger import PrivacyLedger
from fl_dp.statistics import Evaluation, NoiseChoice, Query, ScoreHistograms, choose_noise
from fl_dp.strategies import AskOptions, evaluate_federation

from .run_folder import RunFolder
from .settings import Settings
from .workload import form_of_run, width_of_label

logger = logging.getLogger("flwr.fl_dp")


def private_metrics(settings: Settings, delta: float) -> NoiseChoice | None:
    """Query about the last model, with its noise; None if nothing is asked.

    Privacy: the choice's events, which the run's plan declares; see `evaluate_federation`.
    """
    epsilon = settings.metrics.private_epsilon
    if epsilon is None:
        return None
    form = form_of_run(settings)
    query: Query = Evaluation(names=("accuracy",), lows=(0.0,), highs=(1.0,))
    if form.is_of_numbers:
        query = Evaluation(names=("mae",), lows=(0.0,), highs=(width_of_label(settings),))
    elif form.num_classes == 2:
        query = ScoreHistograms()
    law = "gaussian" if settings.privacy.noised_by == "nodes" else None
    return choose_noise(query, epsilon, delta, law=law)


def measure_privately(
    grid: Grid,
    ledger: PrivacyLedger,
    folder: RunFolder,
    *,
    choice: NoiseChoice,
    arrays: ArrayRecord,
    options: AskOptions,
) -> None:
    """Ask every node how good the last model is on its held-out rows; write the answer.

    A run resumed after its last round has the answer already, or lost it with its charge. The
    config of `options` holds the settings for the nodes.
    """
    if folder.private_metrics.is_file():
        return
    try:
        answer = evaluate_federation(
            grid,
            ledger,
            "last model, on rows that clients held out",
            choice,
            options,
            arrays=arrays,
        )
    except PrivacyBudgetExhausted as error:
        logger.warning("The last model was not measured on clients' rows: %s", error)
        return
    write_text(folder.private_metrics, json.dumps(answer.to_dict(), indent=2) + "\n", public=True)

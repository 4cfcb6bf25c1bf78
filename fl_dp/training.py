"""The main job at the server: from settings to a private model and its papers."""

from __future__ import annotations

import logging
import math
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fl_dp.accounting import PrivacyLedger, privacy_statement, statement_markdown
from fl_dp.mechanisms import SecureRandom
from fl_dp.strategies import DPFedAvg
from fl_dp.tasks import evaluate, get_arrays, set_arrays

from .planning import make_plan
from .run_folder import RunFolder
from .server_optimizers import make_server_optimizer
from .settings import SETTINGS_KEY, Settings
from .workload import dataset_of, model_of, parts_of

logger = logging.getLogger("flwr.fl_dp")


def train(grid: Grid, settings: Settings, *, run_id: str) -> Result:
    """Train a task under central DP and write the run's folder.

    Args:
        grid: Flower's grid.
        settings: What to do.
        run_id: Flower's id of the run; names the folder when the settings don't.

    Returns:
        Flower's result; also in the folder.

    Raises:
        ValueError: If the settings can't be carried out; nothing was trained.
    """
    folder = RunFolder(_output_dir(settings) / (settings.run_name or f"flwr-{run_id}"))
    folder.create(settings)
    log_file = logging.FileHandler(folder.log, encoding="utf-8")
    log_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    flower_logger = logging.getLogger("flwr")
    flower_logger.addHandler(log_file)
    try:
        return _train_into(folder, grid, settings, run_id)
    except Exception:
        logger.exception("the run failed")
        raise
    finally:
        flower_logger.removeHandler(log_file)
        log_file.close()


def _train_into(folder: RunFolder, grid: Grid, settings: Settings, run_id: str) -> Result:
    plan = make_plan(settings)
    parts_of(settings)  # what is wrong with the data shows before anything is released
    dataset = dataset_of(settings)
    test_x = dataset.features(slice(None), "test")
    test_y = dataset.labels(slice(None), "test")
    model = model_of(settings)
    initial = ArrayRecord({name: Array(values) for name, values in get_arrays(model).items()})

    rng = SecureRandom(insecure_seed=settings.privacy.insecure_seed)
    with PrivacyLedger.open(folder.ledger, plan, run_id=run_id, rng=rng) as ledger:

        def evaluate_publicly(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            set_arrays(model, arrays.to_numpy_ndarrays())
            loss, accuracy = evaluate(model, test_x, test_y)
            epsilon = ledger.running_epsilon() if server_round else 0.0
            folder.append_metrics(
                {
                    "round": server_round,
                    "rounds": settings.rounds,
                    "expected_cohort": plan.denominator,
                    "test_loss": loss,
                    "test_accuracy": accuracy,
                    "epsilon": epsilon,
                }
            )
            folder.write_model(arrays)
            logger.info("\tpublic test accuracy %.4f, loss %.4f", accuracy, loss)
            return MetricRecord({"loss": loss, "accuracy": accuracy, "epsilon": epsilon})

        strategy = DPFedAvg(
            strategy=make_server_optimizer(settings.server_optimizer),
            plan=plan,
            ledger=ledger,
            roster_timeout=settings.roster_timeout,
            rng=rng,
            plateau_metric=settings.schedule.metric,
        )
        try:
            result = strategy.start(
                grid=grid,
                initial_arrays=initial,
                num_rounds=settings.rounds,
                timeout=settings.round_timeout,
                train_config=ConfigRecord({SETTINGS_KEY: settings.to_json()}),
                evaluate_fn=evaluate_publicly,
            )
        finally:
            statement = privacy_statement(ledger)
            folder.write_statement(statement, statement_markdown(statement))
    logger.info(
        "Spent epsilon %.4f at delta %.3g; everything is in %s",
        statement["epsilon"].get(statement["quoted"], math.inf),
        statement["delta"],
        folder.path,
    )
    return result


def _output_dir(settings: Settings) -> Path:
    if settings.output_dir is None:
        return Path.home() / ".fl-dp" / "runs"
    output_dir = Path(settings.output_dir).expanduser()
    if not output_dir.is_absolute():
        raise ValueError(
            f"output_dir must be absolute, got '{output_dir}': a ServerApp does not run where "
            "you called Flower from"
        )
    return output_dir

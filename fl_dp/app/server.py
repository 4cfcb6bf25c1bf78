"""The server's main job: from settings to a private model and its privacy statement."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fl_dp.accelerator.noise_source import NoiseSource
from fl_dp.app.tracking import TrackedRun, Tracker, require_installed
from fl_dp.files import private_folder, simulations_folder
from fl_dp.guarantee import Guarantee
from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import BufferedPlan, RecordPlan
from fl_dp.protocol.message_keys import COINS_SEED_KEY, ENCODER_KEY, SIMULATED_LEDGERS_KEY
from fl_dp.secagg import Roster
from fl_dp.statement import NoPromise, privacy_statement
from fl_dp.strategies import (
    AskOptions,
    DPFedAvg,
    DPFedBuff,
    NobodyContributes,
    UnprotectedFedAvg,
    wait_for_roster,
)
from fl_dp.tasks.device import training_device
from fl_dp.tasks.public_scores import public_metrics
from fl_dp.tasks.training import evaluate_with_probabilities
from fl_dp.updates import Compression

from .accounts import (
    account_of,
    enter_without_plan,
    goes_on_from,
    in_words,
    open_training,
    with_account_delta,
)
from .cautions import cautions, cautions_of_data
from .cells import digest_of
from .checkpoints import load_checkpoint, save_checkpoint
from .in_process import InProcessGrid
from .noise_of_settings import noises_left
from .overrides import ConfigError
from .planning import make_plan, make_record_plan, make_selection, target_delta
from .private_metrics import measure_privately, private_metrics
from .run_folder import RunFolder, statement_of_records
from .settings import SETTINGS_KEY, Settings
from .settings.selections import epsilon_of_owners
from .settings_encoder import what_was_public
from .trackers import final_of, start_of, trackers_of
from .tuning.choice import chosen_settings
from .virtual_time import VirtualTime, drawn_delays
from .workload import (
    check_data,
    dataset_of,
    encoder_of_run,
    initial_arrays_of,
    metrics_of,
    model_of,
    predictions_in_unit,
    set_shared,
    shared_parameters,
    with_digests,
)

logger = logging.getLogger("flwr.fl_dp")

# Without the number of contributions: where it is not noisy, it depends on clients' data.
_NOBODY = "Almost nobody contributed, so the last model is little more than the first one and noise"

Training: TypeAlias = DPFedAvg | UnprotectedFedAvg


def train(
    grid: Grid,
    settings: Settings,
    *,
    run_id: str,
    make_strategy: Callable[..., DPFedAvg] | None = None,
    trackers: Sequence[Tracker] = (),
) -> Result:
    """Train a task, or continue an interrupted run; write the run's folder.

    Args:
        grid: Flower's grid.
        settings: The training; with `resume`, the folder's own settings are used.
        run_id: Flower's id; names the folder when the settings don't.
        make_strategy: Makes the strategy where clients are protected, from `DPFedAvg`'s arguments;
            an audit passes one that it watches. None: the plan's own.
        trackers: Get the released values, besides the settings' own tracker.

    Returns:
        Flower's result; also in the folder.

    Raises:
        ValueError: The settings can't be carried out; nothing was trained.
        FileNotFoundError: There is no run to resume.
        HeldElsewhere: Another process trains in its folder; nothing was trained.
        ModuleNotFoundError: The tracker's package is missing.
    """
    settings.require_training()
    if settings.resume is not None:
        folder = RunFolder(Path(settings.resume).expanduser())
        settings = folder.read_settings()
        require_installed(settings.tracking.name)
    else:
        require_installed(settings.tracking.name)
        # `fl-dp run` starts the nodes and knows what they host; here `auto` is one client each.
        settings = settings.hosting(settings.simulation.units_at_node)
        # Files and names that do not fit show before there is a ledger.
        settings = with_digests(settings)
        shared_parameters(settings)
        folder = RunFolder(output_dir(settings) / (settings.run_name or f"flwr-{run_id}"))
        settings = with_account_delta(settings, folder.path)
        folder.create(settings)
    with folder.held():
        return _train_alone(folder, grid, settings, run_id, make_strategy, trackers)


def _train_alone(
    folder: RunFolder,
    grid: Grid,
    settings: Settings,
    run_id: str,
    make_strategy: Callable[..., DPFedAvg] | None,
    trackers: Sequence[Tracker],
) -> Result:
    """Train in a folder that no other process trains in."""
    folder.note_process()
    with logged_to(folder.log):
        settings = chosen_settings(folder, grid, settings, run_id=run_id)
        for caution in cautions(settings):
            logger.warning("%s", caution)
    tracked = TrackedRun([*trackers_of(settings, folder), *trackers])
    if settings.simulation.delay_spread and isinstance(grid, InProcessGrid):
        delays = drawn_delays(spread=settings.simulation.delay_spread, seed=settings.seed)
        grid = VirtualTime(grid, delays)
    with logged_to(folder.log), tracked:
        logger.info("%s", in_words(account_of(folder, settings), settings))
        record_plan = folder.keep_record_plan(make_record_plan(settings))
        for noise in noises_left(settings, None, record_plan):
            logger.info(noise.in_words)
            if noise.warning is not None:
                logger.warning(noise.warning)
        try:
            if settings.protects_clients:
                return _train_by_plan(
                    folder, grid, settings, record_plan, run_id, make_strategy, tracked
                )
            return _train_without_plan(folder, grid, settings, record_plan, tracked)
        finally:
            logger.info("%s", in_words(account_of(folder, settings), settings))
            with suppress(OSError, ValueError):  # a run can end before it has a statement
                tracked.conclude(final_of(folder.read_statement()))


def _train_by_plan(
    folder: RunFolder,
    grid: Grid,
    settings: Settings,
    record_plan: RecordPlan | None,
    run_id: str,
    make_strategy: Callable[..., DPFedAvg] | None,
    tracked: TrackedRun,
) -> Result:
    """Train with a promise to clients, and to their records under DP-SGD."""
    rng = settings.privacy.rng()
    resumed = folder.has_ledger
    if folder.checkpoint.is_file() and not resumed:
        raise ValueError(
            f"{folder.path} has a checkpoint and no ledger: what its rounds have spent is unknown, "
            "so it can't be continued"
        )
    # A resumed run uses the ledger's plan to the last digit, wherever it was calibrated.
    plan = folder.read_plan() if resumed else make_plan(settings)
    with open_training(
        folder, settings, plan, rng=rng, run_id=run_id, digest=digest_of(settings)
    ) as ledger:
        strategy_class = DPFedBuff if isinstance(plan, BufferedPlan) else DPFedAvg
        strategy = (make_strategy or strategy_class)(
            settings.server_optimizer.make(rounds=settings.rounds),
            plan=plan,
            ledger=ledger,
            selection=make_selection(settings, plan),
            owners=epsilon_of_owners(settings.selection.get("owners")),
            roster_may_grow=settings.roster_may_grow,
            secure_roster=roster_of(settings),
            **_options(folder, settings, record_plan, rng),
        )
        strategy.loop.sample_by(NoiseSource(training_device()).for_host)
        failure: str | None = None
        try:
            result = _start(strategy, folder, grid, settings, tracked)
            if (choice := private_metrics(settings, target_delta(settings))) is not None:
                measure_privately(
                    grid,
                    ledger,
                    folder,
                    choice=choice,
                    arrays=result.arrays,
                    options=AskOptions(
                        rng=None if settings.privacy.noised_by == "nodes" else rng,
                        config=_train_config(folder, settings),
                        timeout=settings.round_timeout,
                        roster_timeout=settings.roster_timeout,
                        secure_roster=roster_of(settings),
                    ),
                )
        except NobodyContributes:
            failure = _NOBODY
            raise
        finally:
            # Also after a failure: what was reserved is spent, and the statement must say so.
            statement = replace(
                privacy_statement(ledger),
                shared_parameters=shared_parameters(settings),
                public_inputs=what_was_public(
                    settings, goes_on_from=goes_on_from(folder, settings)
                ),
                failure=failure,
            )
            if record_plan is not None:
                records = statement_of_records(
                    record_plan, settings, strategy.most_participations, strategy.enforcement
                )
                statement = replace(statement, records=records)
            folder.write_statement(statement)
    logger.info("Promised: %s; everything is in %s", statement.guarantee, folder.path)
    return result


def _train_without_plan(
    folder: RunFolder,
    grid: Grid,
    settings: Settings,
    record_plan: RecordPlan | None,
    tracked: TrackedRun,
) -> Result:
    """Train with at most a promise to records: the server averages unclipped updates."""
    enter_without_plan(folder, settings, record_plan)
    wait_for_roster(grid, settings.task.num_clients, timeout=settings.roster_timeout)
    rng = settings.privacy.rng()
    strategy = UnprotectedFedAvg(
        settings.server_optimizer.make(rounds=settings.rounds),
        selection=make_selection(settings),
        **_options(folder, settings, record_plan, rng),
    )
    if record_plan is None:
        nothing = NoPromise(rounds=settings.rounds)
        folder.write_statement(nothing)
        try:
            return _start(strategy, folder, grid, settings, tracked)
        except NobodyContributes:
            folder.write_statement(replace(nothing, failure=_NOBODY))
            raise
    failure: str | None = None
    try:
        return _start(strategy, folder, grid, settings, tracked)
    except NobodyContributes:
        failure = _NOBODY
        raise
    finally:
        statement = statement_of_records(
            record_plan, settings, strategy.most_participations, strategy.enforcement
        )
        folder.write_statement(
            replace(
                statement,
                rounds=strategy.rounds_completed,
                failure=failure,
                shared_parameters=shared_parameters(settings),
                public_inputs=what_was_public(
                    settings, goes_on_from=goes_on_from(folder, settings)
                ),
            )
        )


def roster_of(settings: Settings) -> Roster | None:
    """Nodes of secure sums, as their owners know them; None without a roster."""
    sums = settings.privacy.get("secure_sum")
    if sums is None or sums.roster is None:
        return None
    return Roster.read(Path(sums.roster))


def _options(
    folder: RunFolder, settings: Settings, record_plan: RecordPlan | None, rng: SecureRandom
) -> dict[str, Any]:
    return {
        "weight_cap": settings.weight_cap,
        "roster_timeout": settings.roster_timeout,
        "rng": rng,
        "after_round": lambda checkpoint: save_checkpoint(checkpoint, folder.checkpoint),
        "record_plan": record_plan,
        "compression": Compression(**asdict(settings.compression)),
    }


def _start(
    strategy: Training, folder: RunFolder, grid: Grid, settings: Settings, tracked: TrackedRun
) -> Result:
    """Train from the start, or from the folder's checkpoint."""
    check_data(settings)  # errors in the data show before anything is released
    encoder = encoder_of_run(settings)
    if encoder is not None and encoder.statistics is not None:
        encoder.statistics.save(folder.features, public=True)
    dataset = dataset_of(settings)
    test_x = dataset.features(slice(None), "test")
    test_y = dataset.labels(slice(None), "test")
    in_unit = predictions_in_unit(settings)
    model = model_of(settings)
    names = metrics_of(settings)
    resumed = folder.checkpoint.is_file()
    if resumed:
        checkpoint = load_checkpoint(folder.checkpoint)
        strategy.resume(checkpoint)
        folder.drop_metrics_after(checkpoint.server_round)
        logger.info("Resuming %s after round %d", folder.path, checkpoint.server_round)
    else:
        folder.drop_metrics_after(-1)
        for caution in cautions_of_data(settings):
            logger.warning("%s", caution)
    plan = strategy.plan if isinstance(strategy, DPFedAvg) else None
    tracked.start(
        start_of(settings, folder, plan=plan, record_plan=strategy.record_plan, resumed=resumed)
    )

    def measured_of(arrays: ArrayRecord) -> dict[str, Any]:
        set_shared(settings, model, arrays)
        loss, accuracy, probabilities = evaluate_with_probabilities(model, test_x, test_y)
        measured = public_metrics(
            names, labels=in_unit(test_y), probabilities=in_unit(probabilities)
        )
        values: dict[str, Any] = {"loss": loss}
        if dataset.measure == "accuracy":
            values["accuracy"] = accuracy
        values |= measured
        if measured.get("confusion_matrix") is not None and dataset.class_names:
            values["classes"] = list(dataset.class_names)
        return values

    every = settings.metrics.evaluate_every
    unmeasured = dict.fromkeys(("loss", dataset.measure))

    def evaluate_publicly(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        due = server_round % every == 0 or server_round == settings.rounds
        measured = measured_of(arrays) if due else unmeasured
        spent = _spent(strategy, server_round)
        line = {
            "round": server_round,
            "rounds": settings.rounds,
            "expected_cohort": _expected_cohort(strategy, settings),
            "measured_on": settings.task.measured_on,
            **_on_public_rows(measured),
            **spent,
            **_promised(strategy, insecure=settings.noise_can_be_predicted),
            **_released(strategy),
        }
        clock = {"virtual_time": grid.now} if isinstance(grid, VirtualTime) else {}
        folder.append_metrics(line | clock)
        tracked.released(line)
        folder.write_model(arrays)
        return _recorded(measured, spent) if due else None

    config = _train_config(folder, settings)
    nodes_remember = settings.protects_records or settings.privacy.noised_by in ("clients", "nodes")
    if isinstance(grid, InProcessGrid) and nodes_remember:
        ledgers = Path(str(config.get(SIMULATED_LEDGERS_KEY, folder.path)))
        grid.require_shared({simulations_folder(), ledgers})
    result = strategy.start(
        grid=grid,
        initial_arrays=initial_arrays_of(settings),
        num_rounds=settings.rounds,
        timeout=settings.round_timeout,
        train_config=config,
        evaluate_fn=evaluate_publicly,
    )
    *before, last = folder.read_metrics()
    last_before = before[-1]["round"] if before else -1
    if last["test_loss"] is None:  # the training ended before its last planned round
        measured = measured_of(result.arrays)
        line = last | _on_public_rows(measured)
        folder.drop_metrics_after(last_before)
        folder.append_metrics(line)
        tracked.released(line)
        result.evaluate_metrics_serverapp[last["round"]] = _recorded(
            measured, _spent(strategy, last["round"])
        )
    return result


def _on_public_rows(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Measurements under their names in `metrics.jsonl`."""
    return {f"test_{name}": value for name, value in measured.items()}


def _recorded(measured: Mapping[str, Any], spent: Mapping[str, float]) -> MetricRecord:
    """Measured numbers and the epsilon, as Flower stores them."""
    numbers = {name: value for name, value in measured.items() if isinstance(value, float)}
    return MetricRecord({**numbers, **spent})


def _spent(strategy: Training, server_round: int) -> dict[str, float]:
    """Epsilon of clients so far, else of their records, else nothing."""
    if isinstance(strategy, DPFedAvg):
        if not server_round:
            return {"epsilon": 0.0}
        return {"epsilon": strategy.ledger.running_epsilon()}
    if strategy.record_plan is None:
        return {}
    # No client tells what it spent: the server counts questions; ledgers stop at the budget.
    most = strategy.most_participations
    budget = strategy.record_plan.budget.epsilon
    if most is None:
        return {"epsilon": budget}
    if not most:
        return {"epsilon": 0.0}
    return {"epsilon": min(budget, strategy.record_plan.epsilon(most).best)}


def _promised(strategy: Training, *, insecure: bool) -> dict[str, Any]:
    """All that the epsilon of a round means nothing without."""
    plan = strategy.plan if isinstance(strategy, DPFedAvg) else strategy.record_plan
    if plan is None:
        return {}
    return {"promise": Guarantee.of(plan, insecure=insecure).to_dict()}


def _train_config(folder: RunFolder, settings: Settings) -> ConfigRecord:
    config: dict[str, str | int] = {
        SETTINGS_KEY: settings.for_clients().to_json(),
        COINS_SEED_KEY: settings.seed,
    }
    if settings.features.digest is not None:
        config[ENCODER_KEY] = settings.features.digest
    # A node's ledger needs a cap of the node's own where the noise changes over the rounds.
    charged = settings.privacy.noised_by in ("clients", "nodes")
    charged = charged and settings.schedule.name == "constant"
    if settings.protects_records or charged:
        ledgers = folder.node_ledgers
        if settings.protects_records and (chosen := settings.record_training.ledger_dir):
            ledgers = Path(chosen)
        private_folder(ledgers)
        config[SIMULATED_LEDGERS_KEY] = str(ledgers)
    return ConfigRecord(dict(config))


def _expected_cohort(strategy: Training, settings: Settings) -> float:
    if isinstance(strategy, DPFedAvg):
        return strategy.plan.expected_cohort
    return settings.selection.sampling_rate * settings.task.num_clients


def _released(strategy: Training) -> dict[str, Any]:
    """The round's releases besides the model, and one message's bytes."""
    released: dict[str, Any] = {}
    if strategy.rounds_completed:  # bytes of one message's arrays; they do not say who got one
        released |= {"bytes_down": strategy.bytes_down, "bytes_up": strategy.bytes_up}
    if strategy.released_metrics:
        released["clients"] = dict(strategy.released_metrics)
    if isinstance(strategy, DPFedAvg) and strategy.plan.release.adaptive_clipping:
        released["next_clipping_norm"] = strategy.clipping_norms[0]
    return released


@contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Write Flower's log also to a file, with the reason if the run fails."""
    log_file = logging.FileHandler(path, encoding="utf-8")
    log_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    flower_logger = logging.getLogger("flwr")
    flower_logger.addHandler(log_file)
    try:
        yield
    except Exception:
        logger.exception("the run failed")
        raise
    finally:
        flower_logger.removeHandler(log_file)
        log_file.close()


def output_dir(settings: Settings) -> Path:
    """Folder of all runs, for a run that `fl-dp run` did not start.

    Raises:
        ConfigError: It is not absolute.
    """
    if settings.output_dir is None:
        return Path.home() / ".fl-dp" / "runs"
    output_dir = Path(settings.output_dir).expanduser()
    if not output_dir.is_absolute():
        raise ConfigError(
            f"output_dir must be absolute, got '{output_dir}': a ServerApp does not run where "
            "you called Flower from",
            option="output_dir",
        )
    return output_dir

"""Trackers of a training of the app: who is told, of which settings, and of which promise."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from fl_dp.app.keys import all_keys
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.settings import OPTIONS, Settings, TrackingSettings
from fl_dp.app.settings.options import chosen_by
from fl_dp.app.settings.sweep import SWEEP
from fl_dp.app.tracking import RunStart, Tracker, require_installed, round_values
from fl_dp.app.tracking.tracker import Scalar
from fl_dp.documents import flattened
from fl_dp.files import write_text
from fl_dp.plan import Plan, RecordPlan

TOLD = frozenset(
    [
        *(key.name for key in all_keys().values() if key.told),
        *(f"{group}.{chosen_by(group)}" for group in OPTIONS if group != "tracking"),
    ]
)
"""Settings that trackers are told: those whose fields say so."""


def trackers_of(settings: Settings, folder: RunFolder) -> list[Tracker]:
    """Return the trackers that settings ask for; they write and show nothing yet.

    Raises:
        ModuleNotFoundError: If a package is missing.
        ValueError: If somebody else has the port of the metrics.
    """
    tracking = settings.tracking
    pages: list[Tracker] = []
    if tracking.metrics_port is not None:
        from fl_dp.app.tracking.metrics_page import MetricsPage

        pages.append(MetricsPage(tracking.metrics_port))
    if tracking.name == "none":
        return pages
    shared = folder.path if _sweep_of(folder) is None else folder.path.parent
    return [*pages, make_tracker(tracking, folder.path, shared=shared)]


def make_tracker(settings: TrackingSettings, folder: Path, *, shared: Path) -> Tracker:
    """Return the tracker that settings ask for; it writes nothing yet.

    Args:
        settings: Of any tracker, for example `MLflowSettings(project="wards")`.
        folder: Of the run.
        shared: Of its sweep, or of the run alone.

    Raises:
        ModuleNotFoundError: If its package is missing.
        ValueError: If the settings ask for none.
    """
    require_installed(settings.name)
    # Here, in the training's own thread: W&B's import parses source, which Python 3.11 gives up
    # with a SystemError where a finalizer or another thread parses, too. What failed is tried once
    # more when the tracker starts, and told.
    with suppress(Exception):
        import_module(settings.name)
    return settings.make(folder, shared=shared)


def start_of(
    settings: Settings,
    folder: RunFolder,
    *,
    plan: Plan | None,
    record_plan: RecordPlan | None,
    resumed: bool,
) -> RunStart:
    """Return what trackers are told of a run that begins or goes on.

    Args:
        settings: Of the run.
        folder: Of the run, with the metrics of the rounds that stay.
        plan: What is promised to clients, if anything.
        record_plan: What is promised to records, if anything.
        resumed: Whether rounds of an earlier process stay.
    """
    sweep = _sweep_of(folder)
    before = tuple(round_values(line) for line in folder.read_metrics()) if resumed else ()
    return RunStart(
        name=folder.path.name if sweep is None else f"{sweep}/{folder.path.name}",
        identity=_identity(folder),
        group=sweep,
        rounds=settings.rounds,
        before=before,
        settings=told_settings(settings),
        promise=_promise(plan, record_plan, settings),
    )


def told_settings(settings: Settings) -> dict[str, Scalar]:
    """Return the settings that trackers are told, by key; lists as JSON, null left out."""
    return {
        key: value if isinstance(value, str | int | float) else json.dumps(value)
        for key, value in flattened(asdict(settings)).items()
        if key in TOLD and value is not None
    }


def final_of(statement: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a privacy statement says was spent, by the names that trackers know."""
    records = statement.get("records") or {}
    return {
        "final/rounds": statement.get("rounds"),
        "final/epsilon": _quoted(statement),
        "final/delta": statement.get("delta"),
        "final/record_epsilon": _quoted(records),
        "final/record_delta": records.get("delta"),
    }


def _quoted(statement: Mapping[str, Any]) -> Any:
    return dict(statement.get("epsilon") or {}).get(statement.get("quoted"))


def _promise(
    plan: Plan | None, record_plan: RecordPlan | None, settings: Settings
) -> dict[str, Any]:
    told: dict[str, Any] = {"promise/insecure": settings.privacy.insecure_seed is not None}
    if plan is not None:
        told |= {
            "promise/epsilon": plan.budget.epsilon,
            "promise/delta": plan.budget.delta,
            "promise/unit": plan.unit,
            "promise/neighboring_relation": str(plan.neighboring_relation),
            "promise/noise_multiplier": plan.noise_multiplier,
            "promise/clipping_norm": plan.clipping_norm,
            "promise/expected_cohort": plan.expected_cohort,
        }
    if record_plan is not None:
        told |= {
            "promise/record_epsilon": record_plan.budget.epsilon,
            "promise/record_delta": record_plan.budget.delta,
            "promise/record_noise_multiplier": record_plan.noise_multiplier,
        }
    return told


def _sweep_of(folder: RunFolder) -> str | None:
    """Return the name of the sweep that a run's folder lies in, if it lies in one."""
    above = folder.path.absolute().parent
    return above.name if (above / SWEEP).is_file() else None


def _identity(folder: RunFolder) -> str:
    """Return a run's random name, which stays when it is resumed."""
    if not folder.identity.is_file():
        write_text(folder.identity, secrets.token_hex(8))
    return folder.identity.read_text(encoding="utf-8").strip()

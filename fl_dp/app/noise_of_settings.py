"""What noise leaves of the configured model's training, before it starts."""

from __future__ import annotations

from fl_dp.plan import Plan, RecordPlan
from fl_dp.plan.noise_left import NoiseLeft, noise_left, noise_left_of_records
from fl_dp.updates import VectorLayout

from .planning import declared_records
from .settings import Settings


def noises_left(
    settings: Settings, plan: Plan | None, record_plan: RecordPlan | None
) -> list[NoiseLeft]:
    """Noise of each plan of a run, beside what the model can learn.

    Missing data, and a model that can't be built, raise as in `workload`.
    """
    from .workload import initial_arrays_of  # it loads PyTorch

    size = VectorLayout.of(initial_arrays_of(settings)).size
    noises = []
    if plan is not None and plan.rounds:
        noises.append(noise_left(plan, size))
    batch_size = None if record_plan is None else _batch_size(settings, record_plan)
    if record_plan is not None and batch_size is not None:
        cohort = settings.selection.sampling_rate * settings.task.num_clients
        noises.append(
            noise_left_of_records(
                record_plan,
                size,
                batch_size=batch_size,
                clients=max(1.0, cohort),
                rounds=settings.rounds,
            )
        )
    return noises


def _batch_size(settings: Settings, record_plan: RecordPlan) -> float | None:
    """Divisor of a step's sum; None where only the nodes know it, and log it."""
    chosen, task = settings.record_training, settings.task
    size: float | None = chosen.expected_batch_size
    if size is not None:
        return size
    if task.partition == "nodes":
        return None
    records = declared_records(settings) / task.num_clients
    return max(1.0, record_plan.sampling_rate * records)

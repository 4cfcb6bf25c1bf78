"""Engine of a simulation where `simulation.engine=auto` is left: by the task, on every machine.

Flower's engine starts six processes and Ray before the first round. For the data sets that come
with scikit-learn, of fewer than 2,000 records, that takes longer than to train them.
"""

from __future__ import annotations

from dataclasses import replace

from fl_dp.app.settings import Settings


def with_engine(settings: Settings) -> tuple[Settings, str | None]:
    """Return settings that name their engine, and one line if that is not Flower's.

    Whoever says how many processors, workers or GPUs there are means Flower's.
    """
    from fl_dp.tasks.datasets import (
        EMBEDDED,  # with NumPy, which a command that shows help can spare
    )

    simulation = settings.simulation
    if simulation.engine != "auto":
        return settings, None
    small = settings.task.name in EMBEDDED and not simulation.num_gpus
    if small and simulation.num_cpus is None and simulation.workers is None:
        chosen = "in_process"
        said = (
            f"all nodes answer in one process, as task={settings.task.name} is small: "
            "simulation.engine=flower trains through Flower's own engine"
        )
    else:
        chosen, said = "flower", None
    return replace(settings, simulation=replace(simulation, engine=chosen)), said

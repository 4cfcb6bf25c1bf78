"""Names that a key can take, for the keys with a fixed set of names."""

from __future__ import annotations

from fl_dp.tasks.datasets import DATASETS, PARTITIONS
from fl_dp.tasks.fit import MODELS, TRAINED_FACTORS
from fl_dp.updates.compression_options import DOWNLINKS, UPLINKS

CHOICES = {
    "report": ("html", "none"),
    "task.name": DATASETS,
    "task.partition": (*PARTITIONS, "nodes"),
    "model.name": MODELS,
    "model.lora_train": TRAINED_FACTORS,
    "privacy.unit": ("client", "record"),
    "privacy.neighboring_relation": ("zero-out", "add-or-remove-one", "replace-one"),
    "statistic.query": ("count", "sum", "mean", "histogram", "quantiles", "top"),
    "statistic.law": ("laplace", "gaussian"),
    "compression.up": UPLINKS,
    "compression.down": DOWNLINKS,
    "simulation.engine": ("auto", "flower", "in_process", "cluster"),
    "tracking.mode": ("offline", "online"),
}
"""The values of each key with a fixed set of names."""

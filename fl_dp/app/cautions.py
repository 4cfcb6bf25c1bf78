"""Cautions about settings that run as asked but promise less than it seems."""

from __future__ import annotations

import numpy as np

from fl_dp.app.settings import Settings
from fl_dp.promise import delta_rounded_up, is_large_delta
from fl_dp.tasks.datasets import Dataset
from fl_dp.tasks.datasets.names import listed

_FEW_CLIENTS = 100
_MANY_EMPTY = 0.2  # of the rounds
_LARGE_FEATURE = 10.0  # root mean square; of standardised columns it is 1
_MOST_COLUMNS = 12  # whose means fit into a line


def cautions(settings: Settings) -> list[str]:
    """What to consider before relying on a promise, one line each."""
    from fl_dp.app.planning import target_delta

    lines = [
        *_of_public_records(settings),
        *_of_held_out_rows(settings),
        *_of_counted_records(settings),
        *_of_unused_clients(settings),
        *_of_empty_rounds(settings),
    ]
    if not settings.protects_clients:
        return lines
    clients, delta = settings.task.num_clients, target_delta(settings)
    if clients < _FEW_CLIENTS and not settings.sums_records:
        instead = ""
        if settings.statistic.query is None and not settings.dp_sgd.enabled:
            instead = "; privacy=distributed_records protects each record, for which few will do"
        lines.append(
            f"{clients} clients are few: noise drowns the signal; from {_FEW_CLIENTS} clients on, "
            f"a small epsilon costs less accuracy{instead}"
        )
    if is_large_delta(delta):
        chosen = ""
        if settings.privacy.get("delta") is None:
            chosen = " (the default)" if settings.sums_records else f" (the default for {clients})"
        lines.append(
            f"delta {delta_rounded_up(delta)}{chosen} is large: with that probability epsilon may "
            "not hold for a client; fine for trying out, for real data write privacy.delta=1e-5 or "
            "less"
        )
    return lines


def cautions_of_data(settings: Settings) -> list[str]:
    """What to consider before training on these data, one line each.

    Of training rows they tell only which classes have none, and only to a simulation, whose user
    has all rows. Unreadable data raise as in `workload.dataset_of`.
    """
    from fl_dp.app.workload import dataset_of

    dataset = dataset_of(settings)
    return [*_of_untrained_classes(dataset), *_of_large_columns(settings, dataset)]


def _of_untrained_classes(dataset: Dataset) -> list[str]:
    """A line if no training row is of a class that the test part has."""
    if dataset.form.is_of_numbers or not len(dataset.train_y):
        return []
    alone = np.setdiff1d(dataset.test_y, dataset.train_y).tolist()
    if not alone:
        return []
    names = dataset.class_names or tuple(map(str, range(dataset.num_classes)))
    return [
        f"classes of the test part alone, which no model learns: "
        f"{listed([names[number] for number in alone])}; is a folder or a label misspelt?"
    ]


def _of_large_columns(settings: Settings, dataset: Dataset) -> list[str]:
    """A line if columns of the public test part are far larger than 1."""
    task = settings.task
    if task.mean is not None or task.validation or task.test_fraction is not None:
        return []
    names, x = dataset.column_names, dataset.test_x.astype(np.float64)
    if not names or not len(x):
        return []
    large = np.flatnonzero(np.sqrt((x**2).mean(axis=0)) > _LARGE_FEATURE)
    if not large.size:
        return []
    shown = [f"{names[column]} (up to {np.abs(x[:, column]).max():.3g})" for column in large]
    if len(shown) > _MOST_COLUMNS:
        shown = [*shown[:_MOST_COLUMNS], f"{len(shown) - _MOST_COLUMNS} more"]
    scale = "task.mean=[...] task.std=[...], a public number for each column"
    if len(names) <= _MOST_COLUMNS:
        std = x.std(axis=0)
        means, stds = x.mean(axis=0), np.where(std > 0.0, std, 1.0)
        # A mean can be a thousand deviations.
        mean = ",".join(f"{value:.6g}" for value in means)
        deviation = ",".join(f"{value:.3g}" for value in stds)
        scale = f"'task.mean=[{mean}]' 'task.std=[{deviation}]', the public test part's"
    return [
        f"columns are read as they are, and a model learns little from large numbers: "
        f"{', '.join(shown)}; describe them in a schema (`fl-dp data schema`), or write {scale}"
    ]


def _of_empty_rounds(settings: Settings) -> list[str]:
    """A line if secret coins leave many rounds empty, with so few clients."""
    chosen, clients = settings.selection, settings.task.num_clients
    if settings.statistic.query is not None or settings.sums_records:  # which ask everybody
        return []
    if chosen.name not in ("poisson", "truncated_poisson"):
        return []
    empty = (1.0 - chosen.sampling_rate) ** clients
    if empty < _MANY_EMPTY:
        return []
    return [
        f"nobody takes part in {empty:.0%} of the rounds, with {clients} clients and "
        f"selection.sampling_rate={chosen.sampling_rate:g}; write selection.sampling_rate=1 for "
        "everybody in each round, and the noise is chosen for that"
    ]


def _of_public_records(settings: Settings) -> list[str]:
    """A line if the user's own records are taken as public."""
    from fl_dp.tasks.datasets import OWN_DATA

    public = getattr(settings.features, "public", 0)
    if settings.task.name not in OWN_DATA or not public:
        return []
    return [
        f"features.public={public} takes {public} of your own training records for public and out "
        "of training: nothing is promised to the people in them; where they are private, write "
        "features.statistics=..., or features=scattering features.public=0 without features.project"
    ]


def _of_unused_clients(settings: Settings) -> list[str]:
    """A line if a table names clients, but its rows are dealt to others."""
    task = settings.task
    if task.client_column is None or task.partition in ("natural", "nodes"):
        return []
    return [
        f"task.client_column={task.client_column} is not used: task.partition={task.partition} "
        "deals the rows out to made-up clients, and epsilon is of these; write "
        "task.partition=natural to protect those of the column"
    ]


def _of_held_out_rows(settings: Settings) -> list[str]:
    """A line if accuracy is measured on the user's own rows, which no promise covers."""
    lines = [
        f"{key} measures accuracy and loss on rows of your own data after each round, and no "
        "promise covers these rows; write only what is public into the test part"
        for key in settings.task.held_out_by
    ]
    scaled = settings.task.mean is not None or settings.task.types is not None
    if lines and settings.task.name != "folder" and not scaled:
        lines.append(
            "columns are taken as they are, and without public rows nothing looks at their size: "
            "write task.mean and task.std if some are large numbers"
        )
    return lines


def _of_counted_records(settings: Settings) -> list[str]:
    """Return a line if the number of records is counted exactly, which no promise covers."""
    if not settings.counts_own_records:
        return []
    return [
        "privacy.num_records=null counts the records of your own data, and the statement shows "
        "their exact number; write privacy.num_records=..., about as many, which is public"
    ]

"""`fl-dp attack inversion`: images and text recovered from what training shows."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fl_dp.app.pictures import where_drawn
from fl_dp.guarantee import grouped
from fl_dp.promise import NO_PRIVACY, brief_epsilon

from .console import (
    AsJson,
    Overrides,
    doing,
    err,
    exit_on_errors,
    fail,
    finite,
    out,
    print_json,
    print_plainly,
)
from .on_public_data import DataIsPublic, counted, require_public

if TYPE_CHECKING:
    from pathlib import Path

    from fl_dp.lab.attacks.inversion.experiment import Recovery
    from fl_dp.lab.attacks.inversion.recovery_results import CellResult, Summary

    from .jobs import Job, Jobs

_SHOWS_RECORDS = "this experiment writes records, and what is recovered of them, to a file"

_EXPERIMENT = "experiment=data_recovery"
# Noise of a training; an attack has its own list, `recovery.noise_multipliers`.
_OF_TRAINING = (
    "privacy.epsilon",
    "privacy.noise_multiplier",
    "dp_sgd.epsilon",
    "dp_sgd.noise_multiplier",
)


def inversion(
    overrides: Overrides = None,
    multirun: Annotated[
        bool,
        typer.Option("-m", "--multirun", help="Sweep: `key=a,b` attacks once with each value."),
    ] = False,
    data_is_public: DataIsPublic = False,
    as_json: AsJson = False,
) -> None:
    """Recover images, or text, from updates under every threat model, with and without noise.

    OVERRIDES are settings, KEY=VALUE, on top of `experiment=data_recovery`; `fl-dp config
    recovery` lists the attack's own. For example:

    - `fl-dp attack inversion task=fashion_mnist recovery.images=2 recovery.seeds=1`

    - `fl-dp attack inversion recovery.threats=[raw,client_noise]
    recovery.attacks=[inverting_gradients] recovery.noise_multipliers=[0.001,0.01]`

    - `fl-dp attack inversion model=cnn recovery.attacks=[inverting_gradients]`

    - `fl-dp attack inversion experiment=text_recovery`

    Writes `runs/NAME/`: `recovery.csv` (a line per image or text), `summary.json`, `recovery.png`
    (against noise and epsilon), `resistance.png`, `images.png`, `config.yaml`, and `cells/`, from
    which `fl-dp attack inversion resume=runs/NAME` continues what was stopped.

    An attack that fails proves no privacy: read epsilon beside it.

    The folder holds records as they are, beside what was recovered of them: public data only.
    """
    with exit_on_errors():
        from .jobs import find_jobs

        settings = overrides or []
        if not any(text.startswith(("experiment=", "resume=")) for text in settings):
            settings = [_EXPERIMENT, *settings]
        jobs = find_jobs(settings, multirun=multirun)
        for job in jobs.trainings:
            if not job.resumed:
                require_public(job.settings, stated=data_is_public, because=_SHOWS_RECORDS)
        recover(jobs, as_json=as_json)


def recover(jobs: Jobs, *, as_json: bool) -> None:
    """Attack what the jobs name, one after the other, and show the recovered records.

    Attacked records end up in a file: the caller makes sure that they may.

    Raises:
        ValueError: If the settings do not fit, before anything is written.
        OSError: If data are missing, or nothing can be written.
    """
    # As Ctrl-C, which a shell's background jobs do not get.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = err if as_json else out
    experiments = []
    for job in jobs.trainings:
        _refuse_noise_of_training(job)
        with doing(f"loading the data: task={job.settings.task.name}"):
            from fl_dp.app.workload import dataset_of
            from fl_dp.lab.attacks.inversion.text_recovery import recovery_of

            experiments.append(recovery_of(dataset_of(job.settings), job.settings))
    jobs.note()
    runs = []
    for job, experiment in zip(jobs.trainings, experiments, strict=True):
        try:
            results = _attack_cells(job, experiment, console)
        except KeyboardInterrupt:
            fail(f"stopped; `fl-dp attack inversion resume={jobs.path}` continues it", status=130)
        runs.append(_conclude(job, experiment, results, console))
    if as_json:
        print_json({"runs": runs})


def _refuse_noise_of_training(job: Job) -> None:
    """Refuse overrides of a training's noise, which no threat model adds.

    Raises:
        ValueError: If there is one.
    """
    for text in job.overrides:
        if text.partition("=")[0] in _OF_TRAINING:
            raise ValueError(
                f"{text} is the noise of a training, and every threat model is attacked at each of "
                "recovery.noise_multipliers: write these, or leave it out"
            )


def _attack_cells(job: Job, experiment: Recovery, console: Console) -> list[CellResult]:
    from fl_dp.files import private_folder
    from fl_dp.lab.attacks.inversion.recovery_results import load_result, save_result

    if not job.resumed:
        job.folder.create(job.settings)
    folder = job.path / "cells"
    private_folder(folder)
    results = []
    files = [folder / f"{cell.name}.npz" for cell in experiment.cells]
    missing = [file for file in files if not file.exists()]
    with counted(console, f"attacking {job.title}", len(missing), "cells") as on_cell:
        for cell, file in zip(experiment.cells, files, strict=True):
            if file.exists():
                results.append(load_result(file))
                continue
            results.append(experiment.run(cell))
            save_result(results[-1], file)
            on_cell()
    return results


def _conclude(
    job: Job, experiment: Recovery, results: Sequence[CellResult], console: Console
) -> dict[str, Any]:
    """Write and show the results of a run, and return them as plain values."""
    from fl_dp.files import write_text
    from fl_dp.lab.attacks.inversion.recovery_results import is_of_text, summarised
    from fl_dp.terminal.sheets import write_sheet

    rows = list(chain.from_iterable(result.rows for result in results))
    columns = list(rows[0])
    cells = [[row[name] for name in columns] for row in rows]
    write_sheet(job.path / "recovery.csv", columns, cells)
    summaries = summarised(rows)
    title = f"{job.settings.task.name}, {job.settings.model.name}"
    draw = _draw_text if is_of_text(rows[0]) else _draw_images
    names = draw(summaries, _first_seed(experiment, results), job.path, title)
    sentences = _sentences(summaries)
    document = {
        "path": str(job.path),
        "settings": [asdict(summary) | {"fails": summary.fails} for summary in summaries],
        "sentences": sentences,
    }
    text = json.dumps(finite(document), indent=2) + "\n"
    write_text(job.path / "summary.json", text)
    print_plainly(
        console,
        *_tables(summaries, title),
        *sentences,
        f"Everything is in {job.path}; recovery.csv has a line for each that was attacked",
        where_drawn(*names, drawn=any(names.values())),
    )
    return document


def _draw_images(
    summaries: Sequence[Summary],
    first_seed: dict[tuple[str, float], CellResult],
    folder: Path,
    title: str,
) -> dict[str, bool]:
    """Draw pictures of recovered images, and return which were drawn, by name."""
    from fl_dp.lab.attacks.inversion.recovery_pictures import (
        draw_images,
        draw_recovery,
        draw_resistance,
    )

    return {
        "recovery.png": draw_recovery(summaries, folder / "recovery.png", title=title),
        "resistance.png": draw_resistance(summaries, folder / "resistance.png", title=title),
        "images.png": draw_images(first_seed, folder / "images.png", title=title),
    }


def _draw_text(
    summaries: Sequence[Summary],
    first_seed: dict[tuple[str, float], CellResult],
    folder: Path,
    title: str,
) -> dict[str, bool]:
    from fl_dp.lab.attacks.inversion.text_pictures import draw_text_recovery, draw_texts

    return {
        "recovery.png": draw_text_recovery(summaries, folder / "recovery.png", title=title),
        "images.png": draw_texts(first_seed, folder / "images.png", title=title),
    }


def _first_seed(
    experiment: Recovery, results: Sequence[CellResult]
) -> dict[tuple[str, float], CellResult]:
    """Return the strongest attack's result of the first seed, by threat and noise."""
    from fl_dp.lab.attacks.inversion.recovery_results import error_of

    best: dict[tuple[str, float], CellResult] = {}
    for cell, result in zip(experiment.cells, results, strict=True):
        if cell.part != "noise" or cell.seed != experiment.settings.seed:
            continue
        setting = cell.threat, cell.noise_multiplier
        incumbent = best.get(setting)
        if incumbent is None or error_of(result.rows[0]) < error_of(incumbent.rows[0]):
            best[setting] = result
    return best


def _sentences(summaries: Sequence[Summary]) -> list[str]:
    """Return where recovery fails under each threat with noise, and the epsilon there."""
    from fl_dp.app.settings.recovery import WITH_NOISE
    from fl_dp.lab.attacks.inversion.recovery_results import fails_from, strongest
    from fl_dp.lab.attacks.inversion.registry import WORDS

    sentences = []
    noisy = [summary for summary in summaries if summary.part == "noise"]
    for threat in WITH_NOISE:
        of_threat = strongest([summary for summary in noisy if summary.threat == threat])
        if not of_threat:
            continue
        failing = fails_from(of_threat)
        if failing is None:
            sentences.append(f"{WORDS[threat]}: recovered at every noise multiplier that was tried")
            continue
        sentences.append(
            f"{WORDS[threat]}: recovery fails from noise multiplier {failing.noise_multiplier:g} "
            f"on, at {failing.guarantee}"
        )
    if sentences:
        sentences.append(
            "An attack that fails proves no privacy: another may succeed up to epsilon"
        )
    return sentences


def _tables(summaries: Sequence[Summary], title: str) -> list[Table]:
    """Return the strongest attack of each setting, beside a guess that sees no update.

    Each promise has a table of its own.
    """
    from fl_dp.lab.attacks.inversion.recovery_results import is_of_text, strongest
    from fl_dp.terminal.sheets import sheet

    if is_of_text(summaries[0].means):
        scores, scores_of = ("in place", "guess", "occur"), _text_scores
        title = f"Recovered text: {title}"
    else:
        scores, scores_of = ("PSNR", "guess", "labels"), _image_scores
        title = f"Recovered images: {title}"
    numbers = ("noise", "epsilon", *scores, "found")
    tables: list[Table] = []
    best = strongest(summaries, by=lambda row: (_view(row), row.noise_multiplier))
    for promise, members in grouped(best, _promise).items():
        rows = []
        for summary in members:
            noise = f"{summary.noise_multiplier:g}" if summary.noise_multiplier else "none"
            epsilon, succeeds = brief_epsilon(summary.epsilon), "no" if summary.fails else "yes"
            rows.append((_view(summary), noise, epsilon, *scores_of(summary.means), succeeds))
        tables.append(sheet(f"{title}; {promise}", ("seen", *numbers), rows, numbers=numbers))
    return tables


def _promise(summary: Summary) -> str:
    """Return all of a promise but the number."""
    return f"epsilon {summary.guarantee.terms}" if summary.noise_multiplier else NO_PRIVACY


def _image_scores(means: dict[str, float]) -> tuple[str, str, str]:
    return (
        f"{means['psnr']:.1f}",
        f"{means['mean_image_psnr']:.1f}",
        f"{100 * means['label_recovered']:.0f} %",
    )


def _text_scores(means: dict[str, float]) -> tuple[str, str, str]:
    in_place, guess = 100 * means["in_place"], 100 * means["guess_in_place"]
    return f"{in_place:.0f} %", f"{guess:.0f} %", f"{100 * means['occurring']:.0f} %"


def _view(summary: Summary) -> str:
    """Return what the adversary sees, in words."""
    views = {
        "noise": summary.threat,
        "batch": f"raw, {summary.records} images",
        "epochs": f"raw, {summary.epochs} steps",
        "network": f"raw, {summary.network}, {summary.records} images",
    }
    return views[summary.part]

"""Folders that somebody filled, shown to whoever opens them: a sweep, a report, the dashboard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from dashboards import OWN, dashboard_of, reader
from hostile import VALUES, cases, changed, damaged_bytes, text_of
from ledger_files import fresh_path
from pages import require_harmless
from starlette.testclient import TestClient
from written_runs import write_run

from fl_dp.app.cells import digest_of
from fl_dp.app.compose import compose_settings
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.settings import SweepSettings
from fl_dp.commands.jobs import jobs_of_sweep
from fl_dp.viewer.dashboard.started_runs import StartedRuns
from fl_dp.viewer.found_runs import RunsFolder, read_run
from fl_dp.viewer.report import report_page

MARKUP = (
    '"><script>alert(1)</script>',
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "<!--<script>",
    "]]><svg/onload=alert(1)>",
    "{{7*7}}{% raw %}",
    "javascript:alert(1)",
    "\u2028\u202e<b>",
)


# A sweep that is to go on.


@dataclass(frozen=True)
class Sweep:
    """What `sweep.json` says of a sweep of two trainings, and the settings of the first."""

    document: dict[str, Any]
    settings: Any


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    settings = compose_settings(["task.num_clients=20", "rounds=2"])
    cells = [
        {
            "name": f"run-{seed}",
            "variant": "",
            "place": None,
            "digest": digest_of(replace(settings, seed=seed)),
            "overrides": ["task.num_clients=20", "rounds=2", f"seed={seed}"],
        }
        for seed in (0, 1)
    ]
    return Sweep({"experiment": asdict(SweepSettings()), "cells": cells}, settings)


def files_of(folder: Path) -> dict[Path, bytes]:
    # But for locks, which are empty and which a look leaves behind.
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".lock"]
    return {file: file.read_bytes() for file in files}


@cases(10)
def test_a_damaged_sweep_goes_on_in_its_own_folder_or_is_refused(sweep: Sweep, rng: Random) -> None:
    with fresh_path() as path:
        folder = path.with_name("sweep")
        RunFolder(folder / "run-0").create(sweep.settings)
        if rng.random() < 0.8:  # composing what is missing takes five times as long
            RunFolder(folder / "run-1").create(replace(sweep.settings, seed=1))
        (folder / "sweep.json").write_text(text_of(sweep.document, rng), errors="replace")
        if rng.random() < 0.3:
            file = folder / "run-0" / "config.yaml"
            file.write_bytes(damaged_bytes(file.read_bytes(), rng))
        before = files_of(path.parent)
        with suppress(ValueError, OSError):  # which a command tells in one line
            jobs = jobs_of_sweep(folder)
            assert {job.path.parent for job in jobs.trainings} == {folder}
            assert isinstance(jobs.side_by_side, int)
            assert all(isinstance(job.title, str) and job.sent for job in jobs.trainings)
        assert files_of(path.parent) == before


@pytest.mark.parametrize("name", ["", "..", "../run-0", "/tmp", "run-0/../../x", 5, None])
def test_a_sweep_s_training_lies_in_its_folder(sweep: Sweep, tmp_path: Path, name: object) -> None:
    cells = [sweep.document["cells"][0] | {"name": name}]
    (tmp_path / "sweep.json").write_text(json.dumps(sweep.document | {"cells": cells}))
    with pytest.raises(ValueError, match=r"run-NUMBER|texts alone"):
        jobs_of_sweep(tmp_path)


@pytest.mark.parametrize("wrong", [{"side_by_side": 1.5}, {"side_by_side": True}, {"axis": 5}])
def test_a_sweep_s_settings_have_their_types(
    sweep: Sweep, tmp_path: Path, wrong: dict[str, object]
) -> None:
    experiment = sweep.document["experiment"] | wrong
    (tmp_path / "sweep.json").write_text(json.dumps(sweep.document | {"experiment": experiment}))
    with pytest.raises(ValueError, match=r"must be a (whole number|text), got"):
        jobs_of_sweep(tmp_path)


# Pages.


def marked(document: Any, rng: Random) -> Any:
    """Return a document in which one text or key has markup, besides what `changed` does."""
    text = json.dumps(changed(document, rng) if rng.random() < 0.5 else document)
    places = [found.start() + 1 for found in re.finditer(r'"[A-Za-z]', text)]
    if places:
        place = rng.choice(places)
        text = text[:place] + json.dumps(rng.choice(MARKUP))[1:-1] + text[place:]
    return json.loads(text)


def hostile_run(place: Path, rng: Random) -> Path:
    """Write the folder of a run whose documents have markup in their texts."""
    run = write_run(place, rounds=2)
    if rng.random() < 0.7:
        statement = marked(json.loads((run / "privacy.json").read_text()), rng)
        (run / "privacy.json").write_text(json.dumps(statement), errors="replace")
    if rng.random() < 0.7:
        settings = marked(yaml.safe_load((run / "config.yaml").read_text()), rng)
        (run / "config.yaml").write_text(yaml.safe_dump(settings), errors="replace")
    if rng.random() < 0.7:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        at = rng.randrange(len(lines))
        lines[at] = json.dumps(marked(json.loads(lines[at]), rng))
        (run / "metrics.jsonl").write_text("\n".join(lines) + "\n", errors="replace")
    if rng.random() < 0.5:
        (run / "run.log").write_text(rng.choice(MARKUP) * 3, errors="replace")
    return run


@cases(15)
def test_a_report_of_hostile_texts_runs_and_loads_nothing_of_theirs(rng: Random) -> None:
    with fresh_path() as path:
        name = rng.choice(MARKUP[:-1]).replace("/", "_")  # the last can't be printed
        runs = [hostile_run(path.parent / name, rng)]
        if rng.random() < 0.5:
            runs.append(write_run(path.parent / "b", rounds=2))
        page = report_page([read_run(run) for run in runs])
        require_harmless(page, in_one_file=True)


# The dashboard's routes.

_ROUTES = "/ /run/ /points/ /image/ /compare /budgets /start /started/ /static/ /login /nowhere/"
ROUTES = _ROUTES.split()
CHANGES = ("/price", "/start", "/stop/a", "/logout", "/login")
_PLACES = "a a/images.png .. ../../etc/passwd a%00 a/../a /etc/passwd %ff%fe a// % a;b"
PLACES = [*_PLACES.split(), "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "a" * 3000, "\u202e"]
FIELDS = ("q", "state", "sort", "page", "runs", "run", "sweep", "task", "language", "key", "token")


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with fresh_path() as path:
        root = path.with_name("runs")
        hostile_run(root / "a", Random(1))
        write_run(root / MARKUP[2].replace("/", "_"), rounds=2)
        # Nothing can be priced, so nothing can be started.
        started = StartedRuns(root=root, command=["false"])
        yield reader(dashboard_of(root, started=started).site())


def one_field(rng: Random) -> tuple[str, str]:
    from fl_dp.viewer.dashboard.start_form import GROUPS, RUN_NAME, offered

    name = rng.choice((*FIELDS, RUN_NAME, *GROUPS, *offered(own_data=False), "", *MARKUP))
    value = rng.choice((*MARKUP, *(str(each) for each in VALUES if isinstance(each, str | int))))
    return name, value.encode("utf-8", "replace").decode()


@cases(80)
def test_the_dashboard_answers_any_address_and_form(client: TestClient, rng: Random) -> None:
    fields = dict(one_field(rng) for _ in range(rng.randrange(4)))
    if rng.random() < 0.7:
        route = rng.choice(ROUTES)
        place = rng.choice((*PLACES, *MARKUP)) if route.endswith("/") else ""
        answer = client.get(route + place.replace("\u2028", ""), params=fields)
    else:
        answer = client.post(rng.choice(CHANGES), data=fields, headers=OWN)
        client.cookies.update(dict(answer.cookies))
    assert answer.status_code < 500
    if "text/html" in answer.headers.get("content-type", ""):
        require_harmless(answer.text)
    if "location" in answer.headers:
        assert answer.headers["location"].startswith("/")
    assert "root:" not in answer.text  # of /etc/passwd


# A run's folder.

_TEXTS = ("config.yaml", "metrics.jsonl", "privacy.json", "run.log")


@cases(30)
def test_a_run_s_folder_is_shown_whatever_it_holds(rng: Random) -> None:
    with fresh_path() as path:
        run = write_run(path.parent / "runs" / "a", rounds=2)
        for _ in range(rng.choice((1, 2))):
            file = run / rng.choice(_TEXTS)
            raw = file.read_bytes() if file.is_file() else b"a line\n"
            file.write_bytes(damaged_bytes(raw, rng))
        (path.parent / "runs" / "sweep.json").write_bytes(rng.randbytes(rng.randrange(40)))
        before = {each: each.read_bytes() for each in run.iterdir()}
        assert read_run(run).card.name
        assert RunsFolder(run.parent).listing() is not None
        assert {each: each.read_bytes() for each in run.iterdir()} == before


@cases(25)
def test_documents_of_a_run_are_shown_whatever_they_say(rng: Random) -> None:
    with fresh_path() as path:
        run = write_run(path.parent / "a", rounds=2)
        statement = json.loads((run / "privacy.json").read_text())
        (run / "privacy.json").write_text(text_of(statement, rng), errors="replace")
        lines = (run / "metrics.jsonl").read_text().splitlines()
        lines[rng.randrange(len(lines))] = text_of(json.loads(lines[0]), rng)
        (run / "metrics.jsonl").write_text("\n".join(lines) + "\n", errors="replace")
        settings = yaml.safe_load((run / "config.yaml").read_text())
        (run / "config.yaml").write_text(yaml.safe_dump(changed(settings, rng)), errors="replace")
        read_run(run)

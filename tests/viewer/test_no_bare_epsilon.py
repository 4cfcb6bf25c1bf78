"""No epsilon is shown without its delta, unit, neighbours and adversary: a walk over all views.

Runs have epsilons whose digits stand nowhere else. Each place of these digits has to be in a
widget, a table or a chart that tells the rest, too.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from command_line import call, train_here, use
from dashboards import dashboard_of, reader
from flat_plans import noised_plan
from matplotlib.figure import Figure
from sweep_results import RESULT
from written_runs import PROMISE, statement, write_run

from fl_dp.accounting import PrivacyBudget, PrivacyBudgetExhausted
from fl_dp.guarantee import Guarantee
from fl_dp.ledger import NodeLedger, PrivacyLedger
from fl_dp.ledger.node import Account
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.statement import PrivacyStatement
from fl_dp.statement.markdown import statement_markdown
from fl_dp.statement.sentences import UNITS
from fl_dp.terminal.node_ledger_view import node_ledger_summary
from fl_dp.terminal.summary import summary_tables
from fl_dp.viewer.found_runs import RunsFolder, read_run
from fl_dp.viewer.papers import PAPERS, write_paper
from fl_dp.viewer.report import report_page
from fl_dp.viewer.run_pictures import plot_curves
from fl_dp.viewer.runs_view import runs_tables

STATED, SPENT = 7.6543, 3.2187
DIGITS = re.compile(r"7\.65\d|3\.2187|3\.219")
SERVER = "everyone, the server included"
TERMS = "at delta 0.003, one client (zero-out), against whoever sees the models"
RECORDS = "at delta 1e-05, one record (replace-one), against everyone, the server included"
CELL = re.compile(r"at delta \S+, one \w+ \([a-z -]+\), against (who|everyone|a server)")
VOID = {"meta", "link", "br", "img", "input", "rect", "line", "hr"}
CELLS = {"table", "figure", "p", "svg"}


class Shown(HTMLParser):
    """Epsilons of a page that stand in no widget, figure, table or paragraph with the rest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._open: list[tuple[str, set[str], list[str]]] = []
        self.bare: list[str] = []
        self.found = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID:
            return
        values = {name: value or "" for name, value in attrs}
        text = [values[name] for name in ("aria-label", "data-title") if name in values]
        self._open.append((tag, set(values.get("class", "").split()), text))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Nothing stands in it."""

    def handle_endtag(self, tag: str) -> None:
        while self._open:
            name, classes, text = self._open.pop()
            if name in ("script", "style", "title"):
                text = []
            whole = " ".join(" ".join(text).split())
            if DIGITS.search(whole):
                if CELL.search(whole) and (name in CELLS or "promise" in classes):
                    self.found += 1
                    text = [DIGITS.sub("", whole)]
                elif not self._open or name == "main":
                    self.bare.append(DIGITS.sub("HERE", whole)[:3000])
                    text = []
            if self._open:
                self._open[-1][2].extend(text)
            if name == tag:
                return

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[-1][2].append(data)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    so_far = {"pld": SPENT}
    write_run(folder / "a", "seed=1", epsilon=STATED)
    write_run(folder / "early", "seed=2", done=1, epsilon=STATED, epsilon_so_far=so_far)
    of_records: dict[str, Any] = {
        "unit": UNITS["record"],
        "delta": 1e-5,
        "neighboring_relation": "replace-one",
        "against": SERVER,
    }
    write_run(folder / "records", "clipping.norm=0.25", epsilon=STATED, **of_records)
    besides = statement(rounds=4, done=4, epsilon=STATED) | of_records
    write_run(folder / "both", "clipping.norm=1", epsilon=STATED, records=besides)
    write_run(folder / "goes-on", "seed=3", done=2, epsilon=STATED, stated=False)
    write_run(folder / "s" / "run-0", epsilon=STATED)
    cells = [{"name": "run-0", "variant": "x", "place": "1"}]
    (folder / "s" / "sweep.json").write_text(json.dumps({"cells": cells}))
    return folder


RUNS = ("a", "early", "records", "both", "goes-on")
COMPARED = "/compare?" + "&".join(f"run={name}" for name in RUNS)


@pytest.mark.parametrize(
    "address",
    ["/", "/sweep/s", COMPARED, *(f"/run/{name}" for name in RUNS)],
)
def test_each_page_of_the_dashboard(root: Path, address: str) -> None:
    shown = Shown(reader(dashboard_of(root).site()).get(address).text)
    assert shown.found
    assert shown.bare == []


def test_the_walk_finds_a_bare_number() -> None:
    page = "<main><p>epsilon 7.6543</p><p>TERMS</p></main>"
    assert Shown(page.replace("TERMS", TERMS)).bare == [f"epsilon HERE3 {TERMS}"]
    assert Shown(f"<main><p>epsilon 7.6543 {TERMS}</p></main>").bare == []
    assert bare_parts("epsilon 7.6543\n## B\n7.6543, " + TERMS) == ["epsilon 7.6543"]


def bare_parts(text: str, between: str = r"\n#+ ") -> list[str]:
    """Return the sections, or other parts, that have an epsilon without the rest."""
    parts = [" ".join(part.split()) for part in re.split(between, text)]
    found = [part for part in parts if DIGITS.search(part)]
    assert found
    return [part for part in found if not CELL.search(part)]


PAPERS_OF = [*PAPERS[:-1], "nist-800-226.zh", "gdpr.zh", "pipl.zh", "edpb.zh"]


@pytest.mark.parametrize("name", ["a", "early"])
@pytest.mark.parametrize("form", PAPERS_OF)
def test_each_paper(root: Path, tmp_path: Path, form: str, name: str) -> None:
    form, _, language = form.partition(".")
    ending = ".yaml" if form == "registry" else ".md"
    target = tmp_path / f"paper{ending}"
    write_paper(form, root / name, target, language=language or "en")
    # The registry's schema has fields for epsilon and delta, and one for what they mean.
    between = r"\n  (?=\w)" if form == "registry" else r"\n#+ "
    assert bare_parts(target.read_text(), between) == []


@pytest.mark.parametrize("name", ["a", "early"])
def test_each_statement(root: Path, name: str) -> None:
    document = json.loads((root / name / "privacy.json").read_text())
    page = statement_markdown(PrivacyStatement.from_dict(document))
    assert bare_parts(page) == []


def test_the_budgets_of_ledgers(tmp_path: Path) -> None:
    budget = PrivacyBudget(epsilon=STATED, delta=1e-5)
    plan = noised_plan(
        5.0, delta=1e-5, rounds=2, sampling_rate=1.0, clipping_norm=1.0, num_clients=20
    )
    server, node = tmp_path / "server.db", tmp_path / "node.db"
    with PrivacyLedger.open(server, replace(plan, budget=budget)) as ledger:
        ledger.commit(ledger.reserve(round=1))
    with NodeLedger.open(node) as own:
        account = Account(unit="record", source="ward")
        own.charge(account, GaussianEvent(noise_multiplier=9.0), budget=budget, what="round 1")
        [line] = [line for line in node_ledger_summary([own]) if "epsilon" in line]
        with pytest.raises(PrivacyBudgetExhausted, match=CELL.pattern):
            own.charge(account, GaussianEvent(noise_multiplier=0.1), budget=budget, what="r")
    assert bare_parts(line) == []
    dashboard = dashboard_of(tmp_path / "runs", ledgers=[str(server), str(node)])
    shown = Shown(reader(dashboard.site()).get("/budgets").text)
    assert (shown.found, shown.bare) == (2, [])


@pytest.mark.parametrize("names", [["a"], ["early"], ["both"], ["a", "early", "records", "both"]])
def test_each_report(root: Path, names: list[str]) -> None:
    runs = [read_run(root / name) for name in names]
    shown = Shown(report_page(runs))
    assert shown.found
    assert shown.bare == []


def test_the_terminal_s_tables(root: Path) -> None:
    cards = RunsFolder(root).listing().cards
    tables = runs_tables(cards)
    assert {f"epsilon {TERMS}", f"epsilon {RECORDS}"} <= set(tables)
    promises = [card.promise for card in cards if card.promise is not None]
    summaries = [
        replace(RESULT, curve=str(at), promise=promise) for at, promise in enumerate(promises)
    ]
    titles = {str(table.title) for table in summary_tables(summaries)}
    assert titles == {f"epsilon {promise.terms}" for promise in promises}


def test_the_pictures(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    lines = (root / "a" / "metrics.jsonl").read_text().splitlines()
    plot_curves({"": [list(map(json.loads, lines))]}, root / "x.png")
    of_epsilon = [axes for axes in figures[0].axes if axes.get_ylabel() == "epsilon"]
    assert len(of_epsilon) == 1
    assert TERMS in " ".join(of_epsilon[0].get_title().split())


def test_a_run_on_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    use(monkeypatch, train_here)
    small = ["task.num_clients=10", "rounds=2", "selection.sampling_rate=1", "report=none"]
    done = call("run", *small, "simulation.engine=in_process", "privacy.epsilon=7", "run_name=r")
    assert done.exit_code == 0, done.stderr
    said = " ".join(done.stdout.split())
    stated = Guarantee.stated(json.loads((tmp_path / "runs" / "r" / "privacy.json").read_text()))
    # Above the rounds, and above the table.
    assert said.count(stated.terms) >= 2
    assert said.index(stated.planned) < said.index("round 1/2")
    for command in ("plan", "ledger"):
        what = [*small[:3], "privacy.epsilon=7"] if command == "plan" else ["runs/r"]
        assert stated.terms in " ".join(call(command, *what).stdout.split())


def test_a_written_run_is_read_back() -> None:
    read = Guarantee.read(PROMISE | {"epsilon": STATED})
    assert read is not None
    assert read.terms == TERMS

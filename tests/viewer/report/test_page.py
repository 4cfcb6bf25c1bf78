"""The report's page: what it shows, and that nothing in a run's folder can harm its reader."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from pages import Page
from pngs import png, write_png
from written_attacks import write_attack
from written_runs import write_run

from fl_dp.viewer.found_runs import RunState, read_run
from fl_dp.viewer.found_runs.images import IMAGES
from fl_dp.viewer.found_runs.run_groups import differences, groups_of
from fl_dp.viewer.report import report_page, write_report
from fl_dp.viewer.report.charts import charts_of
from fl_dp.viewer.report.page_words import LANGUAGES, WORDS, page_language
from fl_dp.viewer.report.reported_run import ReportedRun

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}</script>\u2028'


def page_of(*paths: Path) -> str:
    return report_page([read_run(path) for path in paths])


def test_a_page_tells_what_the_run_came_to(tmp_path: Path) -> None:
    text = Page(page_of(write_run(tmp_path / "a", epsilon=2.0))).text
    for said in (
        "Promised: epsilon 2 of 2 at delta 0.003, one client (zero-out), against whoever sees",
        "0.9000",
        "accuracy on test rows",
        "the choice of hyper-parameters, if it was made on the clients' data",
        "bytes up from a client in a round",
        "expected cohort",
        "selection.sampling_rate",
    ):
        assert said in text


def test_each_language_of_the_page_has_every_word_with_the_same_values_in_it() -> None:
    assert LANGUAGES == ("en", "zh")
    words = {}
    for code in LANGUAGES:
        with page_language(code):
            words[code] = dict(WORDS)
    assert list(words["zh"]) == list(words["en"])
    for key, text in words["en"].items():
        assert set(re.findall(r"{(\w+)}", text)) == set(re.findall(r"{(\w+)}", words["zh"][key]))


def test_a_guess_is_bounded_as_the_definition_of_privacy_says(tmp_path: Path) -> None:
    [said] = [
        each
        for each in ReportedRun(read_run(write_run(tmp_path / "a", epsilon=1.0))).plain
        if "in 100 of those who did" in each
    ]
    # e * 0.01 + 0.003 = 0.0302, rounded up to a tenth in a hundred.
    assert "at most 3.1 in 100 of those who did" in said


def test_the_promise_to_each_group_with_its_own_budget_is_shown(tmp_path: Path) -> None:
    group = {"budget": 1.0, "share": 0.5, "sampling_rate": 0.1, "epsilon": 0.99991}
    wrong: object
    for wrong in ([1], "x", [{"budget": "1"}], {}):
        run = read_run(write_run(tmp_path / str(wrong), own_budgets=wrong))
        assert "a budget of their own" not in Page(report_page([run])).text
    run = read_run(write_run(tmp_path / "right", own_budgets=[group]))
    text = Page(report_page([run])).text
    assert "to the 50% of the clients with a budget of their own" in text
    assert "epsilon 1 of 1 at delta 0.003, one client" in text


def test_where_nothing_is_promised_the_page_says_so_first(tmp_path: Path) -> None:
    none = write_run(tmp_path / "none", "privacy=none")
    (none / "privacy.json").write_text('{"quoted": "none", "epsilon": {}, "delta": 0, "rounds": 4}')
    insecure = write_run(tmp_path / "insecure", insecure=True)
    missing = write_run(tmp_path / "missing", stated=False)
    (missing / "metrics.jsonl").unlink()
    for path, words in (
        (none, "may learn any"),
        (insecure, "predicted"),
        (missing, "No statement"),
    ):
        facts = ReportedRun(read_run(path))
        assert facts.warning
        assert words in facts.promise
        assert facts.plain == []


def test_a_run_that_goes_on_says_its_promise_so_far(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "a", done=1, stated=False))
    cell = "epsilon 4 of 8 so far at delta 0.003, one client (zero-out), against whoever sees"
    assert f"So far, as no statement says yet what is promised: {cell}" in Page(page).text
    assert '<svg class="gauge"' in page


def test_every_chart_says_in_words_and_numbers_what_it_shows(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / str(seed), f"seed={seed}")) for seed in (0, 1)]
    charts = charts_of(groups_of(runs))
    wanted = "accuracy accuracy_epsilon loss loss_epsilon epsilon"
    assert {chart.key for chart in charts} >= set(wanted.split())
    page = Page(report_page(runs))
    places = [attributes for _, attributes in page.elements if "data-chart" in attributes]
    assert len(places) == len(charts)
    for place, chart in zip(places, charts, strict=True):
        assert place["role"] == "img"
        assert chart.title in str(place["aria-label"])
        assert all(row[2] in page.text for row in chart.rows())


def test_runs_that_differ_in_their_seed_alone_are_one_curve_with_a_band(tmp_path: Path) -> None:
    low = write_run(tmp_path / "a", "seed=0")
    high = write_run(tmp_path / "b", "seed=1")
    other = write_run(tmp_path / "c", "clipping.norm=0.25")
    text = (high / "metrics.jsonl").read_text()
    better = text.replace('"test_accuracy": 0.9', '"test_accuracy": 1')
    (high / "metrics.jsonl").write_text(better)
    groups = groups_of([read_run(path) for path in (low, high, other)])
    assert [len(group.runs) for group in groups] == [2, 1]
    assert [group.name for group in groups] == ["clipping.norm=0.5", "clipping.norm=0.25"]
    assert [group.name for group in groups_of(groups[0].runs)] == [f"{low.name} and 1 more"]
    [accuracy] = [chart for chart in charts_of(groups) if chart.key == "accuracy"]
    banded, plain = accuracy.curves
    _, last = banded.points[-1]
    assert (last.low, last.mean, last.high) == pytest.approx((0.9, 0.95, 1.0))
    assert banded.has_band
    assert not plain.has_band


def test_a_comparison_names_what_differs_and_nothing_else(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "a", "seed=0", "privacy.epsilon=2"),
        write_run(tmp_path / "b", "seed=1", "clipping.norms=[0.1,0.2]", "clipping.name=per_layer"),
    ]
    runs = [read_run(path) for path in paths]
    assert set(differences(runs)) == {"privacy.epsilon", "clipping.name", "clipping.norms"}
    text = Page(report_page(runs)).text
    assert "[0.1,0.2]" in text
    assert "per_layer" in text


def test_nothing_hostile_becomes_markup(tmp_path: Path) -> None:
    path = tmp_path / "<img src=x onerror=alert(3)>"
    write_run(path, unit=HOSTILE, adversary=HOSTILE, not_covered=[HOSTILE], mechanism=HOSTILE)
    settings = (path / "config.yaml").read_text()
    settings = settings.replace("name: digits", f"name: {json.dumps(HOSTILE)}")
    (path / "config.yaml").write_text(f"{settings}{json.dumps(HOSTILE)}: {json.dumps(HOSTILE)}\n")
    line = {"round": 5, "test_accuracy": 1, "clients": {HOSTILE: 0.5}, "epsilon": 3}
    with (path / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    (path / "audit.json").write_text(json.dumps({HOSTILE: HOSTILE, "sentences": [HOSTILE]}))
    other = write_run(tmp_path / "b")
    for page in (page_of(path), page_of(path, other)):
        tags = Page(page)
        kinds = {element for element, _ in tags.elements}
        assert not kinds & {"img", "iframe", "object", "link", "form", "base", "a"}
        handlers = [
            name for _, attributes in tags.elements for name in attributes if name.startswith("on")
        ]
        assert handlers == []
        assert [kind for kind, _ in tags.scripts if kind != "application/json"] == [""]
        for kind, text in tags.scripts:
            if kind == "application/json":
                json.loads(text)
        assert "{{7*7}}" in tags.text  # shown, not computed


def test_the_page_runs_our_script_alone_and_loads_nothing(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "a"))
    tags = Page(page)
    [policy] = [
        str(attributes["content"])
        for tag, attributes in tags.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    [script] = [text for kind, text in tags.scripts if kind == ""]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert not any({"src", "href"} & set(attributes) for _, attributes in tags.elements)
    assert not re.search(r"url\(|@import", page)


def test_folders_of_the_machine_and_the_seed_of_the_noise_are_left_out(tmp_path: Path) -> None:
    page = page_of(
        write_run(
            tmp_path / "a",
            "output_dir=/srv/hospital",
            "privacy.insecure_seed=987654321",
            "task.data_dir=/srv/patients",
            "run_name=hidden-name",
            "privacy.witness_dir=/srv/witness",
        )
    )
    for secret in ("/srv/", "987654321", "hidden-name", str(tmp_path)):
        assert secret not in page


def test_what_cannot_be_read_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "config.yaml").write_text("[" * 9999)
    (path / "privacy.json").write_text('{"epsilon": [1], "quoted": {}, "noise_multipliers": ["x"]}')
    with (path / "metrics.jsonl").open("a") as stream:
        stream.write("rubbish\n")
    found = read_run(path)
    assert found.card.state == RunState.BROKEN
    text = Page(report_page([found])).text
    assert "config.yaml is nested too deeply" in text or "config.yaml is no YAML" in text
    assert "1 lines that tell no round" in text
    assert "Accuracy over the rounds" in text


def test_numbers_beyond_bounds_break_no_page(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", noise_multipliers=[1e308] * 3)
    said = json.loads((path / "privacy.json").read_text())
    said |= {"clipping_norm": 0, "denominator": 0, "rounds": -1, "budget": {"epsilon": 0}}
    said |= {"epsilon": {"pld": -4, "x": 1e300}, "delta": 7, "epsilon_so_far": {"pld": -1e308}}
    (path / "privacy.json").write_text(json.dumps(said))
    (path / "model.safetensors").write_bytes(b"\xff" * 64)
    line = {"round": 2**53 - 1, "test_loss": 1e308, "test_accuracy": -1e308, "epsilon": 1e308}
    with (path / "metrics.jsonl").open("a") as stream:
        stream.write((json.dumps(line) + "\n") * 3)
    page_of(path, write_run(tmp_path / "b"))


def test_a_folder_of_runs_is_one_page_that_only_its_owner_reads(tmp_path: Path) -> None:
    for index in range(3):
        write_run(tmp_path / "sweep" / f"run-{index}", f"seed={index}")
    target = write_report([tmp_path / "sweep"])
    assert target == tmp_path / "sweep" / "report.html"
    assert target.stat().st_mode & 0o077 == 0
    assert "Report of 3 runs" in target.read_text()


def pictures_in(page: str) -> list[dict[str, str | None]]:
    return [attributes for tag, attributes in Page(page).elements if tag == "img"]


def test_pictures_of_runs_and_sweeps_are_in_the_file_itself(tmp_path: Path) -> None:
    write_run(tmp_path / "sweep" / "run-0")
    write_run(tmp_path / "sweep" / "run-1", "seed=1")
    write_png(tmp_path / "sweep" / "experiment.png", 40, 20)
    drawn = write_png(tmp_path / "sweep" / "run-0" / "images.png", 60, 30)
    first, second = pictures_in(write_report([tmp_path / "sweep"]).read_text())
    assert (first["width"], first["height"]) == ("40", "20")
    encoded = base64.b64encode(drawn.read_bytes()).decode()
    assert second["src"] == f"data:image/png;base64,{encoded}"
    assert "were attacked" in str(second["alt"])
    assert all(f"image.{name}" in WORDS for name in (*IMAGES, "roc.png"))


@pytest.mark.parametrize("wrong", ["svg", "link", "wall", "empty", "head"])
def test_what_is_no_picture_of_ours_is_left_out(tmp_path: Path, wrong: str) -> None:
    path = write_run(tmp_path / "a")
    file = path / "images.png"
    match wrong:
        case "svg":
            file.write_text("<svg onload=alert(1)>")
        case "link":
            file.symlink_to(write_png(tmp_path / "elsewhere.png", 4, 4))
        case "wall":
            file.write_bytes(png(4, 4, said=(1 << 20, 1 << 20)))
        case "empty":
            file.write_bytes(png(4, 4, said=(0, 4)))
        case "head":
            file.write_bytes(png(4, 4)[:20])
    page = write_report([path]).read_text()
    assert pictures_in(page) == []
    assert "svg onload" not in page


def test_a_page_takes_so_many_bytes_of_pictures_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(write_png(write_run(tmp_path / "a") / "images.png", 40, 40).read_bytes())
    write_png(write_run(tmp_path / "b") / "images.png", 40, 40)
    monkeypatch.setattr("fl_dp.viewer.report.render.MOST", 2 * size - 1)
    page = write_report([tmp_path]).read_text()
    assert len(pictures_in(page)) == 1
    assert "Left out: b/images.png" in Page(page).text


def test_an_attack_on_membership_is_told_beside_a_run_or_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a")
    attack = write_attack(tmp_path / "runs" / "attack")
    beside, alone = write_report([tmp_path / "runs"]), write_report([attack])
    for page in (beside.read_text(), alone.read_text()):
        text = " ".join(Page(page).text.split())
        assert "Attack on membership: attack" in text
        assert "8 models of logistic on digits, 800 members against 800 others" in text
        assert "loss threshold0.5121 %3.1 % (2 % – 4.5 %)21 %no" in text  # cells of a row
        [picture] = pictures_in(page)
        assert (picture["width"], picture["height"]) == ("90", "50")
    assert "Report of an attack" in alone.read_text()
    assert "Report of a run" in beside.read_text()


def test_a_hostile_attack_s_folder_becomes_no_markup(tmp_path: Path) -> None:
    attack = write_attack(tmp_path / "<img src=x onerror=alert(3)>", attack=HOSTILE, tpr="1e999")
    page = write_report([attack]).read_text()
    kinds = [element for element, _ in Page(page).elements]
    assert kinds.count("img") == 1  # the attack's picture
    assert kinds.count("script") == 1
    assert "{{7*7}}" in Page(page).text
    (attack / "membership.csv").write_bytes(b"\0" * 100 + b'"' * 300_000)
    (attack / "roc.png").unlink()
    (attack / "roc.png").symlink_to("/etc/passwd")
    text = Page(write_report([attack]).read_text()).text
    assert "membership.csv is larger than" in text
    assert "is a link" in text


def test_a_large_delta_is_warned_of_below_the_promise(tmp_path: Path) -> None:
    small, large = (
        ReportedRun(read_run(write_run(tmp_path / name, delta=delta)))
        for name, delta in (("small", 1e-3), ("large", 0.00101))
    )
    assert small.large_delta == ""
    assert "0.00101" in large.large_delta
    assert large.large_delta in Page(report_page([large.run])).text


def test_the_statement_stands_before_the_curves(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "a"))
    assert page.index("Gaussian on an integer grid") < page.index("data-chart=")

"""Pages: what they show of runs, and what hostile folders and addresses do to them: nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from dashboards import dashboard_of, png, reader
from pages import Page, require_harmless
from starlette.testclient import TestClient
from written_runs import write_run

from fl_dp.viewer.found_runs import read_run
from fl_dp.viewer.report import report_page

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>'\"{{7007*7}}"


def client_of(root: Path) -> TestClient:
    return reader(dashboard_of(root).site())


def test_the_list_shows_every_run_with_state_accuracy_and_epsilon(tmp_path: Path) -> None:
    write_run(tmp_path / "first", epsilon=2.0)
    write_run(tmp_path / "second", done=2)
    page = client_of(tmp_path).get("/").text
    for shown in ("first", "second", "finished", "stopped", "90.0%", "2 of 2", "2 / 4", "digits"):
        assert shown in page
    assert "2 of 2 runs" in page


def test_a_constant_answer_is_called_so_on_every_page(tmp_path: Path) -> None:
    for seed, share in ((0, 1.0), (1, 1.0), (2, 0.9)):
        path = write_run(tmp_path / f"run-{seed}", f"seed={seed}")
        lines = (path / "metrics.jsonl").read_text().splitlines()
        last = json.loads(lines[-1]) | {"test_largest_answer": share}
        (path / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    client, runs = client_of(tmp_path), [read_run(tmp_path / f"run-{n}") for n in range(3)]
    listed = client.get("/").text
    assert listed.count("90.0% (one answer) on test rows") == 2
    for number, shown in ((0, "90.0% (one answer)"), (2, "90.0%")):
        assert f'<span id="score">{shown}</span>' in client.get(f"/run/run-{number}").text
    both, all_runs = (
        client.get("/compare?" + "&".join(f"run=run-{n}" for n in numbers)).text
        for numbers in ((0, 1), (0, 1, 2))
    )
    assert "90.0% ± 0.0% (one answer)" in both
    assert "90.0% ± 0.0%" in all_runs and "± 0.0% (one answer)" not in all_runs  # one learned
    assert "0.9000 ± 0.0000 (one answer)" in report_page(runs[:2])
    assert "0.9000 (one answer)" in report_page(runs[:1])
    assert "(one answer)" not in report_page(runs[2:])
    assert "90.0%（所有答案相同）" in client.get("/?lang=zh").text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", {"a", "b", "s/run-0"}),
        ("q=seed%3D7", {"b"}),
        ("q=SEED=7+rounds", {"b"}),
        ("q=no-such-word", set()),
        ("state=stopped", {"a"}),
        ("task=breast_cancer", {"b"}),
        ("sweep=s", {"s/run-0"}),
        ("state=nonsense", set()),
        ("sort=nonsense&page=-1", {"a", "b", "s/run-0"}),
        ("sort=epsilon", ["b", "s/run-0", "a"]),
        ("page=" + "9" * 5000, {"a", "b", "s/run-0"}),
        ("page=2", {"a", "b", "s/run-0"}),
    ],
)
def test_runs_are_searched_filtered_and_sorted(
    three: TestClient, query: str, found: set[str] | list[str]
) -> None:
    page = three.get(f"/?{query}").text
    links = [at.get("href") or "" for tag, at in Page(page).elements if tag == "a"]
    assert type(found)(link[5:] for link in links if link.startswith("/run/")) == found


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "a", done=2)
    write_run(root / "b", "seed=7", "task.name=breast_cancer", epsilon=1.0)
    write_run(root / "s" / "run-0", epsilon=2.0)
    cells = [{"name": "run-0", "variant": "schedule=cosine", "place": None}]
    (root / "s" / "sweep.json").write_text(json.dumps({"cells": cells}))
    return client_of(root)


def test_a_run_s_page_has_plan_statement_settings_and_log(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", rounds=5, done=3)
    (path / "run.log").write_text("the last line\n")
    page = client_of(tmp_path).get("/run/a").text
    for shown in ("what happened", "one client&#39;s whole contribution", "the last line"):
        assert shown in page
    assert re.search(r"rounds</th><td[^>]*>5</td><td[^>]*>3</td>", page)
    assert "selection.sampling_rate" in page
    assert "fl-dp run resume=" in page  # it was stopped: what to do


def test_epsilon_stands_with_all_that_it_means_nothing_without(tmp_path: Path) -> None:
    write_run(tmp_path / "ended")
    write_run(tmp_path / "goes-on", done=1, stated=False)
    record = "one record of one client, over the whole training"
    write_run(tmp_path / "records", unit=record, delta=1e-5)
    write_run(tmp_path / "early", done=1, epsilon_so_far={"pld": 0.25})
    write_run(tmp_path / "none", "privacy.mode=none", quoted="none")
    client = client_of(tmp_path)
    models = "against whoever sees the models"
    for name, numbers, terms in (
        ("ended", "8 of 8", f"at delta 0.003, one client (zero-out), {models}"),
        ("goes-on", "4 of 8 so far", f"at delta 0.003, one client (zero-out), {models}"),
        ("records", "8 of 8", f"at delta 1e-05, one record (zero-out), {models}"),
        ("early", "8 stated, 0.25 spent", f"at delta 0.003, one client (zero-out), {models}"),
    ):
        page = client.get(f"/run/{name}").text
        assert f'<span class="numbers">{numbers}</span>' in page
        assert f'<small class="terms">{terms}</small>' in page
        assert ("Less was spent than is stated" in page) is (name == "early")
        # A full bar would look alike whatever is promised.
        assert ('class="gauge' in page) is (name in ("goes-on", "early"))
    page = client.get("/run/none").text
    assert '<span class="numbers">no privacy</span>' in page
    assert 'class="gauge"' not in page.partition("<h2")[0]


def test_what_is_outside_of_the_promise_is_told(tmp_path: Path) -> None:
    sentence = "the first weights, w.pt: nothing is promised to the data they were trained on"
    path = write_run(tmp_path / "a", public_inputs=[sentence])
    assert sentence in client_of(tmp_path).get("/run/a").text
    assert sentence in report_page([read_run(path)])


def test_epsilons_of_different_promises_are_on_no_common_axis(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "seed=1")
    write_run(tmp_path / "b", "clipping.norm=0.25")
    write_run(tmp_path / "c", "clipping.norm=0.125", delta=1e-5)
    write_run(tmp_path / "d", "clipping.norm=1", quoted="none")
    page = client_of(tmp_path).get("/compare?run=a&run=c&run=b&run=d").text
    charts = re.findall(r'data-chart="([^"]+)" data-title="([^"]+)" [^>]*data-rows="([^"]*)"', page)
    of_epsilon = [(title, rows) for name, title, rows in charts if "epsilon" in name]
    assert [rows for _, rows in of_epsilon] == ["0 2", "0 2", "1", "1"]
    for title, rows in of_epsilon:
        assert ("at delta 0.003" if rows == "0 2" else "at delta 1e-05") in title
    assert all(not rows for name, _, rows in charts if "epsilon" not in name)
    # Rows of the tables are grouped, too: each promise once.
    results = page.partition("<caption>Results")[2].partition("</table>")[0]
    assert re.findall(r'href="/run/(\w)"', results) == ["a", "b", "c", "d"]


def test_a_comparison_shows_no_setting_that_nobody_chose(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    path = write_run(tmp_path / "b", "server_optimizer=fedavg")
    config = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(config.replace("  noise_multiplier: null\n", ""))
    page = client_of(tmp_path).get("/compare?run=a&run=b").text
    differing = page.partition("Settings that differ")[2]
    assert "not set" not in differing
    assert "privacy.noise_multiplier" not in differing
    assert "null" not in differing.partition("</table>")[0]


def test_a_server_app_s_exception_is_shown_with_what_to_do(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", done=1, stated=False)
    (path / "run.log").write_text("ERROR the run failed\nValueError: no such file\n")
    page = client_of(tmp_path).get("/run/a").text
    assert "The run failed" in page
    assert "ValueError: no such file" in page
    assert f"resume={tmp_path / 'a'}" in page


def test_a_command_to_copy_is_harmless_whatever_the_run_is_called(tmp_path: Path) -> None:
    write_run(tmp_path / "a; touch harm", done=2)
    page = client_of(tmp_path).get("/run/a;%20touch%20harm").text
    assert f"fl-dp run &#39;resume={tmp_path}/a; touch harm&#39;" in page


def test_comparison_shows_results_and_what_differs(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "seed=1", "clipping.norm=0.25", epsilon=1.0)
    write_run(tmp_path / "b", "seed=2", epsilon=3.0)
    page = client_of(tmp_path).get("/compare?run=a&run=b&run=a&run=gone").text
    differing = page.partition("Settings that differ")[2]
    assert re.search(r"clipping.norm</th><td>0.25</td><td>0.5</td>", differing)
    assert "selection.sampling_rate" not in differing
    assert "There is no run gone." in page


def test_runs_that_differ_in_their_seed_alone_are_one_row_with_mean_and_deviation(
    tmp_path: Path,
) -> None:
    for seed, reached in ((1, 0.9), (2, 0.8)):
        path = write_run(tmp_path / f"a{seed}", f"seed={seed}")
        text = (path / "metrics.jsonl").read_text()
        (path / "metrics.jsonl").write_text(
            text.replace('_accuracy": 0.9', f'_accuracy": {reached}')
        )
    write_run(tmp_path / "b", "seed=1", "clipping.norm=0.25", done=2)
    client = client_of(tmp_path)
    page = client.get("/compare?run=a1&run=b&run=a2").text
    seeds = page.partition('id="seeds"')[2].partition("</table>")[0]
    assert "85.0% ± 7.1%" in seeds
    assert "1, 1 unfinished" in seeds
    assert seeds.count("<tr>") == 1 + 2
    legend = page.partition('class="legend"')[2].partition("</ul>")[0]
    assert re.findall(r">([\d, ]+)\.<", legend) == ["1, 3", "2"]
    assert re.findall(r'data-row="(\d)"', page) == ["0", "0", "1"]
    assert 'id="seeds"' not in client.get("/compare?run=a1&run=b").text


# Hostile content.


def test_html_in_names_settings_and_log_lines_stays_text(tmp_path: Path) -> None:
    name = SCRIPT.replace("/", "")
    path = write_run(tmp_path / name, done=2)
    config = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(config.replace("name: digits", f"name: '{SCRIPT[:40]}'"))
    (path / "run.log").write_text(f"the run failed {SCRIPT}\n")
    statement = json.loads((path / "privacy.json").read_text())
    statement |= {"unit": SCRIPT, SCRIPT: SCRIPT, "not_covered": [SCRIPT]}
    (path / "privacy.json").write_text(json.dumps(statement))
    write_run(tmp_path / "sweep" / "run-0")
    cells = [{"name": "run-0", "variant": SCRIPT, "place": SCRIPT}]
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps({"cells": cells}))
    client = client_of(tmp_path)
    pages = ["/", "/run/sweep/run-0", "/?" + "q=" + SCRIPT]
    links = [at["href"] or "" for tag, at in Page(client.get("/").text).elements if tag == "a"]
    pages += [link for link in links if link.startswith(("/run/", "/?sweep="))]
    assert len(pages) >= 5
    for page in [*pages, f"/compare?run=sweep/run-0&run={SCRIPT}"]:
        text = client.get(page).text
        assert client.get(page).status_code == 200, page
        require_harmless(text)
        assert "49049" not in text  # not a template either
        assert "<img src=x" not in text


ASTRAY = (
    "%2e%2e ../secret ..%2Fsecret %2e%2e%2fsecret %2Fetc /etc a%00 a/../../x %ff link a/link %2e"
)


@pytest.mark.parametrize(
    "name", [*ASTRAY.split(), "a%0d%0aSet-Cookie:x=1", "x" * 5000, "a\\..\\secret", ""]
)
@pytest.mark.parametrize("page", ["run", "points", "events", "image"])
def test_no_address_leads_out_of_the_folder(walled: TestClient, page: str, name: str) -> None:
    for address in (f"/{page}/{name}", f"/{page}/{name}/images.png"):
        answer = walled.get(address)
        assert answer.status_code in (404, 405), address
        assert "SECRET" not in answer.text
        assert "set-cookie" not in answer.headers


@pytest.fixture(scope="module")
def walled(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    folder = tmp_path_factory.mktemp("walled")
    secret = write_run(folder / "secret")
    (secret / "run.log").write_text("SECRET")
    png(secret / "images.png")
    path = write_run(folder / "runs" / "a")
    (folder / "runs" / "link").symlink_to(secret)
    (path / "link").symlink_to(secret)
    (path / "images.png").symlink_to(secret / "images.png")
    return client_of(folder / "runs")


@pytest.mark.parametrize("file", ["images.png", "config.yaml", "ledger.db", "run.log", "x.png"])
def test_an_image_is_a_png_of_a_known_name_and_no_link(walled: TestClient, file: str) -> None:
    assert walled.get(f"/image/a/{file}").status_code == 404


def test_a_file_that_is_only_called_an_image_is_not_sent(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "images.png").write_text("<script>alert(1)</script>")
    client = client_of(tmp_path)
    assert client.get("/image/a/images.png").status_code == 404
    assert "/image/" not in client.get("/run/a").text


@pytest.mark.parametrize("name", ["..%2Fsite.py", "%2e%2e/site.py", "nothing.js", "page.css/x", ""])
def test_static_files_are_those_of_a_list(walled: TestClient, name: str) -> None:
    assert walled.get(f"/static/{name}").status_code == 404


def test_broken_files_are_told_and_the_page_stands(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "privacy.json").write_text('{"epsilon": ' + "[" * 100_000)
    (path / "metrics.jsonl").write_bytes(b'{"round": 1, "test_accuracy": NaN}\n\xff\xfe\n{]\n[]\n')
    (path / "config.yaml").write_text("a: &a [*a]\n" * 3)
    odd = write_run(tmp_path / "odd")
    odd_statement = {"noise_multipliers": ["x", None, [1]], "budget": [], "not_covered": "x"}
    (odd / "privacy.json").write_text(json.dumps(odd_statement | {"epsilon": {"pld": "1"}}))
    client = client_of(tmp_path)
    for page in ("/", "/run/a", "/points/a", "/run/odd", "/points/odd", "/compare?run=a&run=odd"):
        assert client.get(page).status_code == 200, page
    assert "unreadable" in client.get("/").text


def test_numbers_beyond_all_measure_are_survived(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", "selection.sampling_rate=1e308", "clipping.norm=1e308")
    huge = {"noise_multipliers": [10**400, -(10**400)], "clipping_norm": 10**400}
    budget = {"epsilon": 10**400, "delta": 10**400}
    said = json.loads((path / "privacy.json").read_text())
    (path / "privacy.json").write_text(json.dumps(said | huge | {"budget": budget}))
    client = client_of(tmp_path)
    for page in ("/", "/run/a", "/points/a", "/compare?run=a"):
        assert client.get(page).status_code == 200, page


@pytest.mark.parametrize(
    "page", ["/", "/login", "/budgets", "/run/a", "/compare?run=a", "/nowhere"]
)
def test_every_page_is_there_in_both_languages(tmp_path: Path, page: str) -> None:
    write_run(tmp_path / "a")
    client = client_of(tmp_path)
    joint = "&" if "?" in page else "?"
    chinese = client.get(f"{page}{joint}lang=zh")
    assert '<html lang="zh-CN">' in chinese.text
    assert "控制台" in chinese.text
    assert "控制台" in client.get(page).text  # the choice is kept
    assert '<html lang="en">' in client.get(f"{page}{joint}lang=en").text
    require_harmless(chinese.text)


def test_a_link_to_the_other_language_stays_on_this_host(tmp_path: Path) -> None:
    page = client_of(tmp_path).get("http://127.0.0.1:8765//evil.example/").text
    require_harmless(page)


@pytest.mark.parametrize(("delta", "warned"), [(1e-3, False), (0.0011, True)])
def test_a_large_delta_is_warned_of(tmp_path: Path, delta: float, warned: bool) -> None:
    write_run(tmp_path / "a", delta=delta)
    assert ('id="large-delta"' in client_of(tmp_path).get("/run/a").text) is warned


def test_the_statement_stands_before_the_curves(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    page = client_of(tmp_path).get("/run/a").text
    assert page.index("sees every released model") < page.index('data-chart="accuracy"')

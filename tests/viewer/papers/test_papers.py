"""Papers of a run: they say what the statement says, and what a person must still fill in."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from written_runs import write_run

from fl_dp.viewer.papers import PAPERS, templates, write_paper
from fl_dp.viewer.papers.templates import TO_FILL, TO_FILL_IN

TEXTS = [name for name in PAPERS if name != "trade-off"]
MARKDOWN = [name for name in TEXTS if name != "registry"]
TRANSLATED = ["edpb", "nist-800-226", "gdpr", "pipl"]
IN_A_LANGUAGE = [*((form, "en") for form in MARKDOWN), *((form, "zh") for form in TRANSLATED)]


def paper(form: str, folder: Path, language: str = "en") -> str:
    [file, *_] = write_paper(form, folder, language=language)
    assert file.stat().st_mode & 0o077 == 0
    return file.read_text()


@pytest.mark.parametrize("form", TEXTS)
def test_each_paper_has_the_promise_and_says_what_is_left_to_a_person(
    tmp_path: Path, form: str
) -> None:
    text = paper(form, write_run(tmp_path / "a", epsilon=2.0))
    assert (
        "epsilon 2 at delta 0.003, one client (zero-out), against whoever sees the models" in text
    )
    assert "one client's whole contribution over the whole training" in text
    assert "the choice of hyper-parameters" in text
    assert text.count(TO_FILL) > 5


GROUPS = [
    {"budget": 1.0, "share": 0.5, "sampling_rate": 0.1, "epsilon": 0.9999},
    {"budget": 2.0, "share": 0.5, "sampling_rate": 0.2, "epsilon": 2.0},
]


@pytest.mark.parametrize(("form", "language"), IN_A_LANGUAGE)
def test_a_paper_says_the_promise_to_each_group_with_its_own_budget(
    tmp_path: Path, form: str, language: str
) -> None:
    text = paper(form, write_run(tmp_path / "a", epsilon=2.0, own_budgets=GROUPS), language)
    assert "(epsilon 0.9999 for 50 % of the clients)" in text


@pytest.mark.parametrize(("form", "language"), IN_A_LANGUAGE)
def test_the_list_of_what_is_left_counts_every_point(
    tmp_path: Path, form: str, language: str
) -> None:
    text = paper(form, write_run(tmp_path / "a"), language)
    said = {"en": r"\*\*(\d+) points are left to a person", "zh": r"\*\*(\d+) 处需由人填写"}
    [count] = re.findall(said[language], text)
    asked = [line for line in text.splitlines() if line.startswith(f"*{TO_FILL_IN[language]}")]
    assert int(count) == len(asked) > 0


def shape(text: str) -> tuple[list[str], set[str], int, int]:
    """Return the levels of a paper's headings, its facts, points to fill in, and sources."""
    return (
        re.findall(r"^#+ ", text, re.MULTILINE),
        set(re.findall(r"\b(?:facts|promise)\.\w+", text)),
        len(re.findall("|".join(TO_FILL_IN.values()), text)),
        len(re.findall(r"^(?:Source: |出处：)", text, re.MULTILINE)),
    )


@pytest.mark.parametrize("form", TRANSLATED)
def test_a_translated_paper_has_the_same_points_facts_and_sources(
    tmp_path: Path, form: str
) -> None:
    folder = Path(templates.__file__).parent / "templates"
    names = {"edpb": "edpb_28_2024", "nist-800-226": "nist_800_226"}
    name = f"{names.get(form, form)}.md.j2"
    english, chinese = ((folder / place / name).read_text() for place in ("", "zh"))
    assert shape(chinese) == shape(english)
    for delta in (0.02, 1e-6):  # what is said and asked under conditions, too
        path = write_run(tmp_path / f"{delta}", epsilon=0.5, delta=delta)
        assert shape(paper(form, path, "zh")) == shape(paper(form, path))
    text = paper(form, path, "zh")
    assert "one client's whole contribution" in text  # quoted from the statement
    assert "不主张" in text or "不是认证" in text


def test_no_paper_calls_a_model_anonymous_or_certified(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    assert "does not claim that the model is anonymous" in paper("edpb", path)
    assert "It is no certificate" in paper("nist-800-226", path)
    for form in ("gdpr", "pipl"):
        assert "does not claim that the model or the data are anonymous" in paper(form, path)
    for form in ("edpb", "nist-800-226", "gdpr", "pipl"):
        assert "How far this was compared with the source" in paper(form, path)


def test_a_model_card_begins_as_model_hubs_read_it(tmp_path: Path) -> None:
    hostile = '"\n---\nlicense: mit\n<script>alert(1)</script> ${x} {{y}} |'
    path = write_run(tmp_path / "a", f"task.name={json.dumps('x')}", epsilon=2.0, mechanism=hostile)
    text = paper("model-card", path)
    _, front, page = text.split("---\n", 2)
    values = yaml.safe_load(front)
    assert values["differential_privacy"]["epsilon"] == 2.0
    assert values["differential_privacy"]["delta"] == 0.003
    assert values["differential_privacy"]["mechanism"] == hostile
    assert values["license"] == TO_FILL
    assert values["datasets"] == [TO_FILL]
    # All that the specification requires of a result; what only a person knows is marked.
    [model] = values["model-index"]
    [result] = model["results"]
    assert model["name"] == "a"
    assert result["task"] == {"type": TO_FILL}
    assert result["dataset"] == {"type": TO_FILL, "name": "x", "split": "test"}
    assert result["metrics"] == [
        {"type": "accuracy", "value": 0.9, "name": "Test accuracy"},
        {
            "type": "balanced_accuracy",
            "value": pytest.approx(0.8),
            "name": "Test balanced accuracy",
        },
    ]
    assert "balanced accuracy 0.8000." in page and "cost nothing of the privacy budget" in page
    assert "<script" not in page


@pytest.mark.parametrize(("form", "language"), IN_A_LANGUAGE)
def test_no_text_of_a_run_becomes_a_heading_markup_or_a_template(
    tmp_path: Path, form: str, language: str
) -> None:
    hostile = "x\n---\n# Certified\n<b>bold</b> [a](https://b) `c` {{ 7 }} {% raw %} | d"
    said: dict[str, Any] = dict.fromkeys(("unit", "adversary", "trusted", "mechanism"), hostile)
    said |= {key: [hostile] for key in ("not_covered", "randomness")}
    path = write_run(tmp_path / "a", f"task.name={json.dumps('<b>')}", **said)
    page = paper(form, path, language).rpartition("\n---\n")[2]
    assert "{{ 7 }}" in page
    assert "\n# Certified" not in page
    for markup in ("<b>", "[a](", "| d"):
        assert markup not in page.replace(f"\\{markup}", "")


def test_a_registry_entry_has_every_field_of_the_schema_and_no_other(tmp_path: Path) -> None:
    """Names of opendp/deployments-registry-data, which takes no others."""
    entry = yaml.safe_load(paper("registry", write_run(tmp_path / "a", epsilon=2.0)))
    assert set(entry) == {"url_slug", "status", "tier", "deployment"}
    assert entry["tier"] == 3
    deployment = entry["deployment"]
    details = "model_name release_type data_source_type access_type"
    assert {part: sorted(fields) for part, fields in deployment.items()} == {
        part: sorted(names.split())
        for part, names in {
            "basic": "name data_curators intended_use data_product_type data_product_region "
            "description publication_date data_product_sector",
            "dp_variant": "variant_name data_domain unprotected_quantities",
            "privacy_loss": "privacy_unit privacy_unit_details privacy_parameters "
            "privacy_parameters_details",
            "deployment_model": f"actors {details} {details.replace(' ', '_details ')}_details",
            "accounting": "post_processing composition",
            "implementation": "preprocessing_and_hyperparameter_tuning mechanisms justification",
            "administrative": "sources notes registry_authors",
        }.items()
    }
    assert deployment["privacy_loss"]["privacy_parameters"] == {"epsilon": 2.0, "delta": 0.003}


@pytest.mark.parametrize(
    ("mode", "named"),
    [("central", "Central"), ("distributed", "Federated"), ("local", "Local"), ("x", TO_FILL)],
)
def test_a_registry_entry_chooses_from_the_schema_or_leaves_it_to_a_person(
    tmp_path: Path, mode: str, named: str
) -> None:
    path = write_run(tmp_path / "a", f"privacy.mode={mode}")
    deployment = yaml.safe_load(paper("registry", path))["deployment"]
    assert deployment["deployment_model"]["model_name"] == named
    known = deployment["deployment_model"]
    assert (known["release_type"], known["access_type"]) == ("Many releases", "Non-interactive")
    assert deployment["dp_variant"]["variant_name"] == "Approximate DP"
    assert deployment["basic"]["data_product_type"] == "Machine learning model"


def test_the_trade_off_curve_is_that_of_the_releases_and_never_below_epsilon_delta(
    tmp_path: Path,
) -> None:
    # One Gaussian of noise multiplier 1 without sampling: at a false-positive rate of
    # Phi(-1) = 0.1587 half are missed (Dong, Roth and Su 2022).
    event = {"event": "gaussian", "noise_multiplier": 1.0, "count": 1}
    bounds = {"pld": 2.0}
    path = write_run(tmp_path / "a", epsilon=2.0, releases=[event], epsilon_so_far=bounds)
    said = json.loads((path / "privacy.json").read_text()) | {"epsilon": bounds, "delta": 0.03}
    (path / "privacy.json").write_text(json.dumps(said))
    [table, *_] = write_paper("trade-off", path)
    rows = [
        {key: float(value) for key, value in row.items()}
        for row in csv.DictReader(table.open(encoding="utf-8"))
    ]
    for row in rows:
        alarms = row["false_positive_rate"]
        allowed = max(0.0, 1.0 - 0.03 - math.exp(2.0) * alarms)
        allowed = max(allowed, math.exp(-2.0) * (1.0 - 0.03 - alarms))
        assert row["by_epsilon_delta_alone"] == pytest.approx(allowed, abs=2e-9)
        assert row["false_negative_rate"] >= row["by_epsilon_delta_alone"]
    near = min(rows, key=lambda row: abs(row["false_positive_rate"] - 0.158655))
    assert near["false_negative_rate"] == pytest.approx(0.5, abs=0.02)


def test_a_run_that_stopped_has_the_curve_of_its_promise_alone(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", done=1, epsilon_so_far={"pld": 0.5})
    [table, *_] = write_paper("trade-off", path)
    for row in csv.DictReader(table.open(encoding="utf-8")):
        assert row["false_negative_rate"] == row["by_epsilon_delta_alone"]


NO_PROMISE = {"quoted": "none", "epsilon": {}, "delta": 0, "rounds": 4}


@pytest.mark.parametrize("form", PAPERS)
@pytest.mark.parametrize(
    ("said", "told"),
    [(NO_PROMISE, "promises nothing"), ({"insecure": True}, "predicted")],
    ids=["no privacy", "predictable noise"],
)
def test_a_run_that_promises_nothing_gets_no_paper_but_a_card_that_says_so(
    tmp_path: Path, form: str, said: dict[str, Any], told: str
) -> None:
    path = write_run(tmp_path / "a", "privacy=none")
    stated = json.loads((path / "privacy.json").read_text())
    (path / "privacy.json").write_text(json.dumps(stated | said))
    if form != "model-card":
        with pytest.raises(ValueError, match=told):
            write_paper(form, path)
        return
    text = paper(form, path)
    assert yaml.safe_load(text.split("---\n")[1])["differential_privacy"] == {"promised": False}
    assert "Nothing is promised" in text or said is not NO_PROMISE


@pytest.mark.parametrize("text", ["", "[]", '{"quoted": "pld"}', '{"ledger": 1}'])
def test_a_statement_that_is_none_gets_no_paper(tmp_path: Path, text: str) -> None:
    path = write_run(tmp_path / "a")
    (path / "privacy.json").write_text(text)
    for form in PAPERS:
        with pytest.raises(ValueError, match=r"statement"):
            write_paper(form, path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epsilon", {"pld": "x"}),
        ("delta", "small"),
        ("not_covered", [1]),
        ("rule", None),
        ("epsilon", [1]),
        ("releases", [{"event": "laplace"}]),
        ("num_clients", "many"),
        ("clipping_norm", "x"),
        ("randomness", 3),
        ("unit", {}),
    ],
)
def test_a_statement_of_other_kinds_of_values_ends_in_one_line(
    tmp_path: Path, key: str, value: object
) -> None:
    path = write_run(tmp_path / "a")
    said = json.loads((path / "privacy.json").read_text())
    (path / "privacy.json").write_text(json.dumps(said | {key: value}))
    refused = 0
    for form in PAPERS:
        try:
            write_paper(form, path)
        except ValueError as error:
            assert "statement" in str(error)
            refused += 1
    assert refused > 0


@pytest.mark.parametrize(
    ("delta", "said", "asked"),
    [
        (0.02, "ABOVE one in the number of clients", True),
        (0.003, "below one in the number of clients", True),
        (1e-6, "small by both measures", False),
    ],
)
def test_a_delta_is_measured_against_the_number_of_clients(
    tmp_path: Path, delta: float, said: str, asked: bool
) -> None:
    text = paper("nist-800-226", write_run(tmp_path / "a", delta=delta))
    [point] = [each for each in text.split("\n### ") if each.startswith("A large delta")]
    assert said in point  # of 200 clients: one is 0.005, one in the square 2.5e-05
    assert (TO_FILL in point) == asked

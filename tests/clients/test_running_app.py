"""Which app runs, as Flower's folder of unpacked bundles shows it, and which an owner allows."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.common.config import get_project_dir

from fl_dp.clients.owner.running_app import AppRule, RunningApp, rules_in, running_app

APP = RunningApp(name="hospital/heart", version="1.4.0", fab_hash="3f2a9c01")
PROJECT = '[project]\nname = "heart"\nversion = "1.4.0"\n[tool.flwr.app]\npublisher = "hospital"\n'


def unpacked(folder: Path, name: str = "hospital.heart.1.4.0.3f2a9c01", text: str = PROJECT) -> str:
    place = folder / "apps" / name
    place.mkdir(parents=True)
    (place / "pyproject.toml").write_text(text)
    return str(place)


def test_it_is_read_where_flower_has_unpacked_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(unpacked(tmp_path))
    assert running_app() == APP
    assert str(APP) == "hospital/heart==1.4.0@3f2a9c01"
    # Flower puts the app that it loads first.
    monkeypatch.syspath_prepend(unpacked(tmp_path, "h.liver.2.0.0.00000000", PROJECT))
    found = running_app()
    assert found is not None and found.fab_hash == "00000000"


def test_it_is_the_folder_that_flower_itself_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins where flwr unpacks bundles: another place would be seen as none, and refused."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    place = get_project_dir("hospital/heart", "1.4.0", "3f2a9c01" + "0" * 56)
    assert place == tmp_path / "apps" / "hospital.heart.1.4.0.3f2a9c01"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hospital.heart.1.4.0.3f2a9c01", ""),
        ("hospital.heart.1.4.0.3f2a9c01", "no toml ["),
        ("hospital.heart.1.4.0.3f2a9c01", PROJECT.replace("hospital", "hos\\npital")),
        ("hospital.heart.1.4.0", PROJECT),
    ],
)
def test_what_can_not_be_read_is_no_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setattr("sys.path", [unpacked(tmp_path, name, text)])
    assert running_app() is None


def test_where_all_digits_of_the_bundle_are_seen_all_of_the_rule_s_are_compared() -> None:
    whole = RunningApp(name="hospital/heart", version="1.4.0", fab_hash="3f2a9c01" + "a" * 56)
    assert AppRule.parse("hospital/heart@3f2a9c01" + "a" * 56).allows(whole)
    assert AppRule.parse("hospital/heart@3f2a9c01").allows(whole)
    assert not AppRule.parse("hospital/heart@3f2a9c01" + "a" * 55 + "b").allows(whole)


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ("hospital/heart", True),
        ("hospital/heart>=1.2,<2", True),
        ("hospital/heart==1.4.0", True),
        ("hospital/heart==1.4.0@3f2a9c01", True),
        ("hospital/heart@3f2a9c01" + "a" * 56, True),  # of the full hash Flower shows eight digits
        ("hospital/heart>=1.5", False),
        ("hospital/heart<1.4", False),
        ("hospital/heart!=1.4.0", False),
        ("hospital/heart@3f2a9c02", False),
        ("hospital/hearts", False),
        ("clinic/heart", False),
    ],
)
def test_a_rule_allows_what_it_names(rule: str, allowed: bool) -> None:
    assert AppRule.parse(rule).allows(APP) is allowed


@pytest.mark.parametrize(
    "rule",
    [
        "heart",
        "hospital/",
        "a/b/c",
        "hospital/heart@12",
        "hospital/heart@XYZW1234",
        "hospital/heart=1.2",
        "",
    ],
)
def test_a_rule_that_can_not_be_meant_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match="got"):
        AppRule.parse(rule)


@pytest.mark.parametrize("value", [" ", [], None, {"hospital/heart": 1}])
def test_no_rules_are_an_error_and_not_all_apps(value: object) -> None:
    with pytest.raises(ValueError, match="write one or more apps"):
        rules_in(value)


def test_rules_stand_in_a_text_or_a_list() -> None:
    one, two = "hospital/heart>=1.2,<2", "clinic/liver"
    assert rules_in(f"{one}  {two}") == rules_in([one, two])

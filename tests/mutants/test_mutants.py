"""Each mutant of the lists is noticed by the tests that it names: cut tests, keep their power."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants import ROOT, Mutant, all_mutants, copy_tree, is_noticed

MUTANTS = all_mutants()


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the repository."""
    folder = tmp_path_factory.mktemp("mutants")
    copy_tree(folder)
    return folder


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_line_stands_in_the_file(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert mutant.changed(text) != text
    for test in mutant.tests:
        assert (ROOT / test.partition("::")[0]).exists(), f"{mutant.name}: no {test}"


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_test_notices_it(mutant: Mutant, tree: Path) -> None:
    noticed, output = is_noticed(mutant, tree)
    assert noticed, output

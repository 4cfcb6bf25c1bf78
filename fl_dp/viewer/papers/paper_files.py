"""Files of the papers, by their names."""

from __future__ import annotations

from pathlib import Path

from fl_dp.files import write_text

from .facts import Facts
from .templates import filled_markdown, filled_yaml, has_template
from .trade_off_paper import write_trade_off

_FILES = {  # each text has a template of its name
    "model-card": "model_card.md",
    "registry": "registry.yaml",
    "nist-800-226": "nist_800_226.md",
    "edpb": "edpb_28_2024.md",
    "gdpr": "gdpr.md",
    "pipl": "pipl.md",
    "trade-off": "trade_off.csv",
}

PAPERS = tuple(_FILES)
"""Names of the papers."""


def write_paper(
    form: str, folder: Path, output: Path | None = None, *, language: str = "en"
) -> list[Path]:
    """Write a paper of a run, readable by its owner alone, and return its files.

    `form` is one of `PAPERS`, `folder` the run's. `output` None puts the file into that folder.
    `language` needs a template.

    Raises:
        OSError: If the run's statement can't be read, or the paper can't be written.
        ValueError: If the statement is not valid or promises nothing, the name is wrong, or the
            paper is not in that language.
        ModuleNotFoundError: Without jinja2.
    """
    name = _FILES[form]
    if language != "en":
        if not has_template(f"{language}/{name}.j2"):
            raise ValueError(f"--format {form} is in English alone: leave out --language")
        name = f"{Path(name).stem}.{language}{Path(name).suffix}"
    facts = Facts.read(folder)
    target = folder / name if output is None else output
    ending = Path(name).suffix
    if target.suffix.lower() != ending or target.is_dir():
        raise ValueError(f"this paper's name must end in {ending}, got '{target}'")
    try:
        if form == "trade-off":
            return write_trade_off(facts, target)
        text = _filled(form, facts, language)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        # Somebody edited the statement: a value has another type.
        raise ValueError(f"{folder}: the privacy statement can't be read: {error!r}") from error
    write_text(target, text)
    return [target]


def _filled(form: str, facts: Facts, language: str) -> str:
    if form != "model-card":
        _ = facts.promise  # a card alone can say that nothing is promised
    if form == "registry":
        return filled_yaml(_FILES[form], facts)
    return filled_markdown(f"{_FILES[form]}.j2", facts, language)

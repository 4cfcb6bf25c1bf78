"""Files of the papers, by their names."""

from __future__ import annotations

from pathlib import Path

from fl_dp.files import write_text

from .edpb import edpb_paper
from .model_card import model_card
from .nist import nist_paper
from .registry import registry_entry
from .subject import Subject
from .trade_off import write_trade_off

_TEXTS = {
    "model-card": (model_card, "model_card.md"),
    "registry": (registry_entry, "registry.yaml"),
    "nist-800-226": (nist_paper, "nist_800_226.md"),
    "edpb": (edpb_paper, "edpb_28_2024.md"),
}
_TRADE_OFF = "trade_off.csv"

PAPERS = (*_TEXTS, "trade-off")
"""Names of the papers."""


def write_paper(form: str, folder: Path, output: Path | None = None) -> list[Path]:
    """Write a paper of a run, readable by its owner alone, and return its files.

    Args:
        form: One of `PAPERS`.
        folder: Of the run.
        output: The file; None puts it into the run's folder.

    Raises:
        OSError: If the run's statement can't be read, or the paper can't be written.
        ValueError: If the statement is none of ours or promises nothing, or the name is wrong.
    """
    subject = Subject.read(folder)
    name = _TRADE_OFF if form == "trade-off" else _TEXTS[form][1]
    target = folder / name if output is None else output
    ending = Path(name).suffix
    if target.suffix.lower() != ending or target.is_dir():
        raise ValueError(f"this paper's name must end in {ending}, got '{target}'")
    try:
        if form == "trade-off":
            return write_trade_off(subject, target)
        text = _TEXTS[form][0](subject)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        # Somebody wrote a value of another kind into it.
        raise ValueError(f"{folder}: the privacy statement can't be read: {error!r}") from error
    write_text(target, text)
    return [target]

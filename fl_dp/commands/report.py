"""`fl-dp report`: a page, or a paper, of what runs came to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from .console import exit_on_errors, require_one_of, tell


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...")],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="html, model-card, registry, nist-800-226, edpb, gdpr, pipl, trade-off.",
        ),
    ] = "html",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; else beside the run.")
    ] = None,
    language: Annotated[
        str, typer.Option("--language", help="en or zh: of html, nist-800-226, edpb, gdpr, pipl.")
    ] = "en",
) -> None:
    """Write the results of runs for people: one page of charts and tables, or a paper.

    RUN is the folder of a run, of a sweep, or one that holds runs. Several are compared: what
    differs between their settings, and curves with bands over seeds. It can also be the folder of
    an attack on membership, which stands beside the runs. For example:

    - `fl-dp report runs/NAME`

    - `fl-dp report runs/A runs/B --output compared.html`

    - `fl-dp report runs/NAME runs/ATTACK`

    - `fl-dp report runs/NAME --format model-card`

    `html` is one file that loads nothing: it opens from a disk and prints. It names no folder
    of this machine and no seed of the noise. Only its owner may read
    the file, unless its mode is changed.

    The papers are of one run, and each says which of its fields a person must still fill in:
    `model-card` (Markdown as model hubs read it), `registry` (the fields of a public registry of
    deployments), `nist-800-226` (what to evaluate, point by point), `edpb` (documents to keep
    about a model that is called anonymous), `gdpr` and `pipl` (facts for the articles of a law)
    and `trade-off` (a CSV and a PNG).

    Sentences of the privacy statement stay in English in every language: they are quoted.

    Nothing is verified here: `fl-dp ledger` does that.
    """
    with exit_on_errors():
        from fl_dp.viewer.report.page_words import LANGUAGES

        require_one_of("--language", language, LANGUAGES)
        if form == "html":
            from fl_dp.viewer.report import write_report

            tell(f"Report: {write_report(runs, output, language=language)}")
            return
        from fl_dp.viewer.papers import PAPERS, write_paper

        require_one_of("--format", form, ["html", *PAPERS])
        for file in write_paper(form, _one(runs), output, language=language):
            tell(f"Paper: {file}")


def _one(runs: Sequence[Path]) -> Path:
    if len(runs) > 1:
        raise ValueError(f"a paper is of one run, got {len(runs)}: write one command each")
    if not (runs[0] / "config.yaml").exists():
        raise FileNotFoundError(f"there is no run in {runs[0]}: it has no config.yaml")
    return runs[0]

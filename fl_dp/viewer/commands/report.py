"""`fl-dp report`: a page, or a paper, of what runs came to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fl_dp.commands.console import failures_told, require_one_of, tell

if TYPE_CHECKING:
    from fl_dp.viewer.found_runs import FoundAttack, FoundRun, Image

_PAGE = "report.html"
_MOST_RUNS = 200


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
    with failures_told():
        from fl_dp.viewer.report.page_words import LANGUAGES

        require_one_of("--language", language, LANGUAGES)
        if form == "html":
            target = write_report(runs, output, language=language)
            tell(f"Report: {target}")
            return
        from fl_dp.viewer.papers import PAPERS, write_paper

        require_one_of("--format", form, ["html", *PAPERS])
        for file in write_paper(form, _one(runs), output, language=language):
            tell(f"Paper: {file}")


def write_report(
    places: Sequence[Path], output: Path | None = None, *, language: str = "en"
) -> Path:
    """Write the page of runs and return where it is.

    Args:
        places: Folders of runs, of attacks on membership, or that hold some.
        output: The file; None puts it into the one folder that is named, else into this one.
        language: Of the page.

    Raises:
        FileNotFoundError: If there is no run.
        ValueError: If the file's name is no page's, or there are too many runs.
        ModuleNotFoundError: Without jinja2.
        OSError: If something can't be read or written.
    """
    from fl_dp.files import write_text
    from fl_dp.viewer.report import report_page

    if output is None:
        output = places[0] / _PAGE if len(places) == 1 else Path(_PAGE)
    if output.suffix.lower() not in (".html", ".htm") or output.is_dir():
        raise ValueError(f"the report is a page: write a name that ends in .html, got '{output}'")
    found = _found(places)
    page = report_page(
        list(found.runs.values()),
        attacks=list(found.attacks.values()),
        images=found.images,
        language=language,
    )
    write_text(output, page)
    return output


@dataclass(kw_only=True)
class _FolderContents:
    """What lies in the folders that were named, each once.

    Attributes:
        runs: By their folders.
        attacks: On membership, by their folders.
        images: That runs and sweeps drew.
    """

    runs: dict[Path, FoundRun] = field(default_factory=dict)
    attacks: dict[Path, FoundAttack] = field(default_factory=dict)
    images: list[Image] = field(default_factory=list)

    def add_images(self, folder: Path) -> None:
        """Take the images of a folder; what can't be shown is left out, as are links."""
        from fl_dp.viewer.found_runs.images import images_of, read_image

        for name in images_of(folder.parent, folder.name):
            with suppress(OSError, ValueError):
                self.images.append(read_image(folder.parent, folder.name, name))


def _found(places: Sequence[Path]) -> _FolderContents:
    """Return what lies in folders.

    Raises:
        FileNotFoundError: If one of the folders holds neither a run nor an attack.
        ValueError: If there are too many runs.
    """
    from fl_dp.viewer.found_runs import RunsFolder, read_run
    from fl_dp.viewer.found_runs.attack_folders import attacks_in, is_attack, read_attack

    found = _FolderContents()
    if len(places) > _MOST_RUNS:
        raise ValueError(f"{len(places)} runs, and a page takes {_MOST_RUNS}: name fewer")
    for place in places:
        whole = place.resolve()
        if (place / "config.yaml").exists():
            if whole not in found.runs:
                found.runs[whole] = read_run(place)
                found.add_images(whole)
            continue
        if is_attack(place):
            found.attacks.setdefault(whole, read_attack(place))
            continue
        if not place.is_dir():
            raise FileNotFoundError(f"there is no folder {place}")
        folder = RunsFolder(place)
        names = sorted(card.name for card in folder.listing().cards)
        attacks = attacks_in(whole)
        if not names and not attacks:
            raise FileNotFoundError(
                f"there is no run in {place}: name the folder of a run, of a sweep, or several"
            )
        if len(names) + len(found.runs) > _MOST_RUNS:
            raise ValueError(
                f"{place} holds {len(names)} runs, and a page takes {_MOST_RUNS}: name fewer"
            )
        found.add_images(whole)
        for name in names:
            if folder.root / name not in found.runs:
                found.runs[folder.root / name] = folder.read(name)
                found.add_images(folder.root / name)
        for attack in attacks:
            found.attacks.setdefault(whole / attack.name, attack)
    return found


def _one(runs: Sequence[Path]) -> Path:
    if len(runs) > 1:
        raise ValueError(f"a paper is of one run, got {len(runs)}: write one command each")
    if not (runs[0] / "config.yaml").exists():
        raise FileNotFoundError(f"there is no run in {runs[0]}: it has no config.yaml")
    return runs[0]

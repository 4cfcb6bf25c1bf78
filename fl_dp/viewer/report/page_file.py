"""The page's file: what named folders hold, each once, as one page of HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fl_dp.files import write_text
from fl_dp.viewer.found_runs import FoundAttack, FoundRun, Image, RunsFolder, read_run
from fl_dp.viewer.found_runs.attack_folders import attacks_in, is_attack, read_attack
from fl_dp.viewer.found_runs.images import images_of, read_image

from .render import report_page

_PAGE = "report.html"
_MOST_RUNS = 200


def write_report(
    folders: Sequence[Path], output: Path | None = None, *, language: str = "en"
) -> Path:
    """Write the page of runs and return its path.

    Args:
        folders: Folders of runs, of attacks on membership, or that hold some.
        output: The file; None puts it into the named folder if there is one, else into this one.
        language: Language of the page.

    Raises:
        FileNotFoundError: If there is no run.
        ValueError: If the file's name is no page's, or there are too many runs.
        ModuleNotFoundError: Without jinja2.
        OSError: If something can't be read or written.
    """
    if output is None:
        output = folders[0] / _PAGE if len(folders) == 1 else Path(_PAGE)
    if output.suffix.lower() not in (".html", ".htm") or output.is_dir():
        raise ValueError(f"the report is a page: write a name that ends in .html, got '{output}'")
    contents = _contents(folders)
    page = report_page(
        list(contents.runs.values()),
        attacks=list(contents.attacks.values()),
        images=contents.images,
        language=language,
    )
    write_text(output, page)
    return output


@dataclass(kw_only=True)
class _FolderContents:
    """Contents of the named folders, each once: runs and attacks by folder, and drawn images."""

    runs: dict[Path, FoundRun] = field(default_factory=dict)
    attacks: dict[Path, FoundAttack] = field(default_factory=dict)
    images: list[Image] = field(default_factory=list)

    def add_run(self, path: Path, read: Callable[[], FoundRun]) -> None:
        """Read a run and its images, unless it was read before."""
        if path not in self.runs:
            self.runs[path] = read()
            self.add_images(path)

    def add_images(self, folder: Path) -> None:
        """Add the images of a folder; links and what can't be shown are left out."""
        for name in images_of(folder.parent, folder.name):
            with suppress(OSError, ValueError):
                self.images.append(read_image(folder.parent, folder.name, name))


def _contents(folders: Sequence[Path]) -> _FolderContents:
    """Return the contents of folders.

    Raises:
        FileNotFoundError: If one of the folders holds neither a run nor an attack.
        ValueError: If there are too many runs.
    """
    contents = _FolderContents()
    if len(folders) > _MOST_RUNS:
        raise ValueError(f"{len(folders)} runs, and a page takes {_MOST_RUNS}: name fewer")
    for folder in folders:
        path = folder.resolve()
        if (folder / "config.yaml").exists():
            contents.add_run(path, partial(read_run, folder))
            continue
        if is_attack(folder):
            contents.attacks.setdefault(path, read_attack(folder))
            continue
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}")
        runs = RunsFolder(folder)
        names = sorted(card.name for card in runs.listing().cards)
        attacks = attacks_in(path)
        if not names and not attacks:
            raise FileNotFoundError(
                f"there is no run in {folder}: name the folder of a run, of a sweep, or several"
            )
        if len(names) + len(contents.runs) > _MOST_RUNS:
            raise ValueError(
                f"{folder} holds {len(names)} runs, and a page takes {_MOST_RUNS}: name fewer"
            )
        contents.add_images(path)
        for name in names:
            contents.add_run(runs.root / name, partial(runs.read, name))
        for attack in attacks:
            contents.attacks.setdefault(path / attack.name, attack)
    return contents

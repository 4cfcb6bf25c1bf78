"""Mutants: one changed line each, with the tests that must notice it.

A list is a file `tests/mutants/ROOM.yaml`. One entry:

    - file: fl_dp/mechanisms/gaussian.py
      old: return noise_multiplier * clipping_norm
      new: return 0.9 * noise_multiplier * clipping_norm
      tests: tests/mechanisms/test_gaussian.py::test_law

`old` is one whole line without its indentation, and stands once in the file. `tests` are paths or
node ids, separated by blanks. By hand: `python tests/support/mutants.py ROOM.yaml [FIRST [LAST]]`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
LISTS = ROOT / "tests" / "mutants"
TIMEOUT = 600.0  # seconds: a mutant that never ends counts as noticed
_NOTICED = 1  # pytest's exit status where a test failed


@dataclass(frozen=True)
class Mutant:
    """One changed line.

    Attributes:
        name: The list and the place in it, counted from one.
        file: Path of the changed file in the repository.
        old: The line, without its indentation.
        new: The line in its place, without its indentation.
        tests: Paths or node ids of the tests that must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def changed(self, text: str) -> str:
        """The file's text with the changed line.

        Raises:
            ValueError: The old line does not stand exactly once in the file.
        """
        lines = text.splitlines()
        numbers = [number for number, line in enumerate(lines) if line.strip() == self.old]
        if len(numbers) != 1:
            raise ValueError(
                f"{self.name}: {self.file} has {len(numbers)} lines {self.old!r}, not 1"
            )
        line = lines[numbers[0]]
        indentation = line[: len(line) - len(line.lstrip())]
        lines[numbers[0]] = indentation + self.new
        return "\n".join(lines) + "\n"


def read_mutants(path: Path) -> list[Mutant]:
    """The mutants of one list."""
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [
        Mutant(
            name=f"{path.stem}-{number}",
            file=entry["file"],
            old=entry["old"].strip(),
            new=entry["new"].strip(),
            tests=tuple(entry["tests"].split()),
        )
        for number, entry in enumerate(entries, start=1)
    ]


def all_mutants() -> list[Mutant]:
    """The mutants of every list."""
    return [mutant for path in sorted(LISTS.glob("*.yaml")) for mutant in read_mutants(path)]


def copy_tree(folder: Path) -> None:
    """Copy the repository's files, without what git ignores, into an empty folder."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.rstrip("\0").split("\0"):
        copied = folder / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copied)


def is_noticed(mutant: Mutant, tree: Path) -> tuple[bool, str]:
    """Run a mutant's tests in a copy of the repository with the changed line.

    The copy is as `copy_tree` wrote it, and unchanged afterwards.

    Returns:
        Whether a test failed, and what pytest wrote.
    """
    path = tree / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(mutant.changed(text), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "", "-p", "no:cacheprovider"]
    # Bytecode would outlive a change within one second that keeps the file's length.
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        process = subprocess.run(
            [*command, *mutant.tests],
            cwd=tree,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return True, f"still running after {TIMEOUT:g} s"
    finally:
        path.write_text(text, encoding="utf-8")
    return process.returncode == _NOTICED, process.stdout


def main() -> int:
    """Try the mutants of one list, and print those that no test noticed."""
    mutants = read_mutants(LISTS / sys.argv[1])
    bounds = [int(number) for number in sys.argv[2:]]
    first = bounds[0] if bounds else 1
    last = bounds[1] if len(bounds) > 1 else len(mutants)
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(Path(folder))
        for mutant in mutants[first - 1 : last]:
            noticed, output = is_noticed(mutant, Path(folder))
            survivors += not noticed
            print(mutant.name, "noticed" if noticed else f"SURVIVED\n{output[-2000:]}", flush=True)
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())

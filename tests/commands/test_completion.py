"""Completion of the command line by shells: the scripts, run by the shells that are here."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import call, said_on_stderr

from fl_dp.app.keys import all_keys
from fl_dp.app.overrides import group_options
from fl_dp.tasks.datasets import DATASETS


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "fl-dp.bash"
    path.write_text(call("completion", "bash").stdout)
    return path


def completed(script: Path, *words: str, breaks: str = " =:") -> list[str]:
    """Return what bash offers for the last of some words, which it has split as it does."""
    listed = " ".join(f"'{word}'" for word in ("fl-dp", *words))
    code = (
        f"source {script}; COMP_WORDBREAKS='{breaks}'; COMP_WORDS=({listed}); "
        f"COMP_CWORD={len(words)}; _fl_dp; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-uc", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ru"], ["run", "runs"]),
        (["com"], ["completion"]),
        (["attack", "inv"], ["inversion"]),
        (["node", "id"], ["identity"]),
        (["run", "privacy.eps"], ["privacy.epsilon="]),
        (["attack", "inversion", "privacy.eps"], ["privacy.epsilon="]),
        (["run", "-m", "task.num_c"], ["task.num_clients="]),
        (["run", "task", "=", "dig"], ["digits"]),
        (["run", "tracking", "=", "w"], ["wandb"]),
        (["plan", "rounds", "=", "3", "selection", "=", "fi"], ["fixed"]),
        (["run", "roster_may_grow", "="], ["true", "false"]),
        (["run", "-m", "selection", "=", "fixed,pois"], ["fixed,poisson"]),
        (["runs", "--so"], ["--sort"]),
        (["stats", "hist"], ["histogram"]),
        (["data", "fash"], ["fashion_mnist"]),
        (["config", "dp_sgd.ste"], ["dp_sgd.steps"]),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_bash_completes_commands_options_groups_keys_and_values(
    script: Path, words: list[str], offered: list[str]
) -> None:
    assert completed(script, *words) == offered


def test_bash_offers_every_key_and_every_option_of_a_group(script: Path) -> None:
    assert {f"{key}=" for key in all_keys()} <= set(completed(script, "run", ""))
    for group, options in group_options().items():
        assert completed(script, "run", group, "=") == list(options)
    assert set(completed(script, "data", "")) == {*DATASETS, "--to", "--json", "--help"}


def test_bash_offers_nothing_of_ours_where_nothing_is_known(script: Path) -> None:
    assert completed(script, "run", "rounds", "=") == []
    assert completed(script, "run", "nonesuch", "=", "x") == []
    assert completed(script, "nonesuch", "x") == []


def test_bash_keeps_the_key_where_it_does_not_split_at_the_equals_sign(script: Path) -> None:
    assert completed(script, "run", "task=dig", breaks=" ") == ["task=digits"]


def test_a_key_that_is_typed_at_a_terminal_is_completed_by_tab(script: Path) -> None:
    """In an interactive bash: `complete`, `compopt` and the splitting are bash's own."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(PS1="$ ", TERM="dumb", HISTFILE="/dev/null")
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    try:
        os.write(terminal, f'fl-dp() {{ echo "got:$*"; }}; source {script}\n'.encode())
        os.write(terminal, b"fl-dp run privacy.eps\t2 task=fash\t rounds=3\n")
        said = b""
        while b"got:run" not in said.replace(b"got:$*", b""):
            said += os.read(terminal, 4096)
    finally:
        os.write(terminal, b"\nexit\n")
        os.close(terminal)
        os.waitpid(child, 0)
    # A key waits for its value, a value is followed by a space.
    assert b"got:run privacy.epsilon=2 task=fashion_mnist rounds=3" in said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_one_that_its_shell_reads(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    written = call("completion", shell).stdout
    done = subprocess.run([shell, "-n"], input=written, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_hold_the_same_words(shell: str) -> None:
    written = call("completion", shell).stdout
    for word in ("runs", "inversion", "privacy.epsilon=", "fashion_mnist", "truncated_poisson"):
        assert word in written


def test_a_shell_that_is_not_known_is_refused_with_those_that_are() -> None:
    result = call("completion", "bsah")
    assert result.exit_code == 2
    assert "must be one of bash, zsh, fish, got 'bsah': did you mean bash?" in said_on_stderr(
        result
    )


def test_a_script_is_printed_without_what_a_training_loads() -> None:
    code = """
import json, sys
from typer.testing import CliRunner
from fl_dp.commands.entry import app
assert CliRunner().invoke(app, ["completion", "fish"]).exit_code == 0
assert not {"torch", "scipy", "ray", "flwr", "hydra", "omegaconf"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)

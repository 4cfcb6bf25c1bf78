"""`model.shared` and LoRA in every mode of the app: stopped, resumed, and with a hostile server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fl_dp.strategies.node_answers import RehearsalFailed
from flwr.app import ArrayRecord, Context, Message
from torch import nn

from fl_dp.app import server, task_client
from fl_dp.app.checkpoints import save_checkpoint
from fl_dp.app.compose import ConfigError, compose_settings
from fl_dp.app.in_process import InProcessGrid
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.server import train
from fl_dp.app.workload import model_of
from fl_dp.clients import OpacusClient, node_records
from fl_dp.clients.owner.node_privacy import simulated_nodes
from fl_dp.ledger import PrivacyLedger
from fl_dp.model_arrays import get_arrays
from fl_dp.secagg import SumTerms
from fl_dp.statement.check import statement_page
from fl_dp.strategies import Checkpoint, NobodyContributes

CLIENTS = 6
SMALL = (
    "model=mlp",
    "model.hidden=4",
    f"task.num_clients={CLIENTS}",
    "rounds=2",
    "client.epochs=1",
    "privacy.epsilon=50",
    "privacy.delta=1e-2",
    "privacy.contribution_check=false",
)
MODES: dict[str, tuple[str, ...]] = {
    "central": ("selection.sampling_rate=0.9",),
    "units": ("selection.sampling_rate=0.9", "simulation.units_per_node=3"),
    "local": ("privacy=local", "selection=public", "selection.sampling_rate=0.5"),
    "distributed": ("privacy=distributed", "selection=public", "selection.sampling_rate=1"),
    "distributed and dp_sgd": (
        "privacy=distributed",
        "selection=public",
        "selection.sampling_rate=1",
        "dp_sgd=on",
        "dp_sgd.steps=1",
        "dp_sgd.epsilon=50",
        "dp_sgd.delta=1e-3",
    ),
    "buffered": ("privacy=buffered", "selection.sampling_rate=0.34"),
    "spaced": (
        "selection=public",
        "selection.sampling_rate=0.34",
        "privacy=correlated",
        "rounds=4",
    ),
    "cyclic": (
        "selection.sampling_rate=0.34",
        "privacy=correlated",
        "privacy.groups=2",
        "privacy.bands=2",
        "rounds=4",
    ),
}
RECORDS = ("privacy=distributed_records", "privacy.delta=1e-4", "selection.sampling_rate=0.25")
PERSONAL = "model.shared=['1.*']"
HEAD = ("3.weight", "3.bias", "5.weight", "5.bias")
SHARED = ("1.weight", "1.bias")
LORA_B = ("1.b.weight", "3.b.weight", "5.b.weight")
LORA = ("1.a.weight", "1.b.weight", "3.a.weight", "3.b.weight", "5.a.weight", "5.b.weight")


class Watched:
    """The app, with a note of what nodes were sent, what they kept, and what was trained."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.contexts: dict[int, Context] = {}
        self.sent: list[tuple[str, ...]] = []
        self.masked: list[int] = []
        self.trained = 0
        for place, name in (
            (task_client, "train_alone"),
            (OpacusClient, "fit"),
            (node_records._Gradients, "clipped_sum"),
        ):
            monkeypatch.setattr(place, name, self._counted(getattr(place, name)))

    def _counted(self, train_it: Any) -> Any:
        def counted(first: Any, *args: Any, **options: Any) -> Any:
            modules = [first] if isinstance(first, nn.Module) else []
            frozen = {
                name: (each, each.clone())
                for module in modules
                for name, each in module.named_parameters()
                if not each.requires_grad
            }
            done = train_it(first, *args, **options)
            self.trained += 1
            assert all((now == before).all() for now, before in frozen.values())
            return done

        return counted

    def __call__(self, message: Message, context: Context) -> Message:
        self.contexts[context.node_id] = context
        if message.metadata.message_type.startswith("train"):
            (arrays,) = message.content.array_records.values()
            self.sent.append(tuple(arrays))
            for record in message.content.config_records.values():
                for value in record.values():
                    if isinstance(value, str) and '"segments"' in value:
                        terms = SumTerms.from_json(value)
                        self.masked.append(sum(each.size for each in terms.segments))
        return task_client.app(message, context)

    def heads(self) -> list[np.ndarray]:
        """Return the last bias of every personal part that was kept."""
        return [
            record["5.bias"].numpy()
            for context in self.contexts.values()
            for key, record in context.state.array_records.items()
            if key.startswith("fl-dp-personal") and "5.bias" in record
        ]


def play(watched: Watched, settings: Any, run_id: str, nodes: int = 0, **owner: Any) -> Any:
    nodes = nodes or settings.simulation.num_nodes(CLIENTS)
    configs = [{"partition-id": node, **owner} for node in range(nodes)]
    with simulated_nodes():
        return train(InProcessGrid(watched, configs), settings, run_id=run_id)


def settings_of(folder: Path, mode: str, *overrides: str) -> Any:
    return compose_settings(
        [*SMALL, *MODES.get(mode, RECORDS), *overrides, f"output_dir={folder}", "run_name=run"]
    )


def stopped_and_resumed(
    watched: Watched, settings: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    def stopped(checkpoint: Checkpoint, path: Path) -> None:
        save_checkpoint(checkpoint, path)
        if checkpoint.server_round == 1:
            raise KeyboardInterrupt

    nodes = settings.simulation.num_nodes(CLIENTS)
    with monkeypatch.context() as patched:
        patched.setattr(server, "save_checkpoint", stopped)
        with pytest.raises(KeyboardInterrupt):
            play(watched, settings, "1")
    return play(watched, compose_settings([f"resume={folder / 'run'}"]), "2", nodes)


CASES = [
    *((mode, (PERSONAL,), SHARED) for mode in MODES),
    *(
        (mode, ("model.lora_rank=2", f"model.lora_train={factor}"), names)
        for mode, factor, names in (
            ("local", "both", LORA),
            ("distributed", "b", LORA_B),
            ("buffered", "b", LORA_B),
            ("records", "both", LORA),
        )
    ),
]


@pytest.mark.parametrize(("mode", "overrides", "names"), CASES)
def test_what_is_shared_alone_travels_and_gets_noise_before_and_after_a_restart(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    overrides: tuple[str, ...],
    names: tuple[str, ...],
) -> None:
    watched = Watched(monkeypatch)
    settings = settings_of(tmp_path, mode, *overrides)
    first = get_arrays(model_of(settings))
    result = stopped_and_resumed(watched, settings, tmp_path, monkeypatch)
    assert tuple(result.arrays) == names
    assert {name: array.shape for name, array in result.arrays.items()} == {
        name: first[name].shape for name in names
    }
    assert set(watched.sent) == {names}
    # All that is released got noise; a coordinate's may be below float32's last digit.
    for name in names:
        assert (result.arrays[name].numpy() != first[name]).mean() > 0.5
    folder = RunFolder(tmp_path / "run")
    statement = folder.read_statement()
    assert statement["shared_parameters"] == list(names)
    assert "neither released nor covered" in statement_page(statement)
    assert (statement.get("records") is not None) == ("dp_sgd" in mode)
    with PrivacyLedger.read(folder.ledger) as ledger:
        assert ledger.rounds_spent == ledger.rounds_committed == settings.rounds
    size = sum(first[name].size for name in names)
    secure = mode == "records" or "distributed" in mode
    assert set(watched.masked) == ({size} if secure else set())
    assert watched.trained
    heads = watched.heads()
    if names == SHARED:
        assert len(heads) >= 2
        assert not any((head == first["5.bias"]).all() for head in heads)
        assert len({head.tobytes() for head in heads}) == len(heads)
    else:
        assert not heads


@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_sends_more_than_is_shared_gets_nothing_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    def all_of_it(settings: Any) -> ArrayRecord:
        return ArrayRecord(model_of(settings).state_dict())

    watched = Watched(monkeypatch)
    monkeypatch.setattr(server, "initial_arrays_of", all_of_it)
    monkeypatch.setattr(server, "set_shared", lambda *of_the_run: None)
    with pytest.raises(NobodyContributes, match=r"every client of a round failed|almost nobody"):
        play(watched, settings_of(tmp_path, mode, PERSONAL), "1")
    assert set(watched.sent) == {SHARED + HEAD}
    assert watched.trained == 0
    assert not watched.heads()


@pytest.mark.parametrize("mode", ["central", "local", "distributed", "buffered"])
def test_an_owner_who_shares_less_is_not_trained_whatever_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    watched = Watched(monkeypatch)
    settings = settings_of(tmp_path, mode, "model.shared=['1.*','3.*']")
    with pytest.raises(RehearsalFailed, match="take no part: nothing was charged"):
        play(watched, settings, "1", 0, **{"dp-shared-parameters": "1.*"})
    assert not watched.sent
    assert watched.trained == 0
    assert not watched.heads()


@pytest.mark.parametrize("patterns", ["'*'", "'1.*','9.*'"])
def test_patterns_that_do_not_fit_are_refused_before_a_ledger_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patterns: str
) -> None:
    watched = Watched(monkeypatch)
    with pytest.raises(ValueError, match=r"model\.shared="):
        play(watched, settings_of(tmp_path, "central", f"model.shared=[{patterns}]"), "1")
    assert not RunFolder(tmp_path / "run").ledger.exists()
    assert not watched.sent


def test_a_personal_part_is_refused_where_records_are_summed() -> None:
    with pytest.raises(ConfigError, match=r"or leave model\.shared out"):
        compose_settings(["privacy=distributed_records", "model.shared=['1.bias']"])


def test_a_simulation_by_secure_sums_leaves_nothing_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    play(Watched(monkeypatch), settings_of(tmp_path, "distributed"), "1")
    assert list((tmp_path / ".fl-dp" / "simulations").iterdir()) == []

"""Settings are typed and checked before anything starts, and reach the clients as they are."""

from __future__ import annotations

import re
import threading
from copy import deepcopy
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import call, said_on_stderr
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from hydra import compose, initialize_config_dir
from local_grid import FIRST_NODE, LocalGrid
from omegaconf import OmegaConf

from fl_dp.app import task_client as client_app
from fl_dp.app.compose import ConfigError, compose_settings, config_folder, expand_sweep
from fl_dp.app.keys import all_keys
from fl_dp.app.overrides import check_values, group_options, parsed
from fl_dp.app.planning import check_layers, make_plan
from fl_dp.app.recipes import with_recipe
from fl_dp.app.schema import settings_of
from fl_dp.app.settings import CHOICES, OPTIONS, SETTINGS_KEY, Settings
from fl_dp.app.settings.options import chosen_by
from fl_dp.app.task_client import TaskClient
from fl_dp.documents import flattened
from fl_dp.model_arrays import get_arrays, set_arrays
from fl_dp.tasks.datasets import client_indices, load_dataset
from fl_dp.tasks.models import build_model
from fl_dp.tasks.training import train_locally

GROUP_OPTIONS = sorted(
    path.relative_to(config_folder()).with_suffix("").parts
    for path in config_folder().glob("*/*.yaml")
)

# Overrides of every group, each far from its default.
EVERYTHING = [
    "seed=7",
    "rounds=11",
    "round_timeout=12.5",
    "roster_may_grow=true",
    "output_dir=/some/where",
    "run_name=a-name",
    "task=csv",
    "task.num_clients=321",
    "task.partition=dirichlet",
    "task.clients=['!north']",
    "task.classes=[well,ill]",
    "task.columns=[age,weight]",
    "task.image_shape=[3,8,8]",
    "task.mean=[50,70]",
    "task.std=[20,15]",
    "features=checkpoint",
    "features.file=/an/encoder.safetensors",
    "features.module=package.module:function",
    "features.public=400",
    "features.digest=abc",
    "model=cnn",
    "model.initial=/first/weights.safetensors",
    "model.shared=['0.*']",
    "model.lora_rank=3",
    "privacy.epsilon=1.5",
    "privacy.neighboring_relation=replace-one",
    "privacy.contribution_check=false",
    "clipping=per_layer",
    "clipping.norms=[0.1,0.2]",
    "schedule=step",
    "schedule.levels=2",
    "selection=exponential",
    "selection.epsilon=0.2",
    "server_optimizer=fedyogi",
    "server_optimizer.beta_2=0.9",
    "client.learning_rate=0.01",
    "simulation.engine=in_process",
    "simulation.delay_spread=0.5",
    "metrics.loss=[0,3]",
    "metrics.public=[auc,f1]",
    "weight_cap=9",
    "compression.up=top_k",
    "dp_sgd=on",
    "dp_sgd.grad_sample_mode=ghost",
    "tracking=mlflow",
    "tracking.uri=https://mlflow.example.org",
    "tracking.mode=online",
    "tune.candidates=['client.epochs=1','client.epochs=2']",
    "recovery.attacks=[dlg]",
]


def option_with(key: str) -> list[str]:
    """The option of a group that has a key, as an override; none for other groups."""
    known = all_keys()[key]
    return [f"{known.group}={known.options[0]}"] if known.options else []


def promise_with(key: str) -> list[str]:
    """The promise that an option of `option_with` needs, as an override."""
    known = all_keys()[key]
    if (
        known.group != "selection"
        or known.options[0] in OPTIONS["privacy"]["central"].fitting.selection
    ):
        return []
    options = OPTIONS["privacy"].items()
    return [
        next(
            f"privacy={name}" for name, one in options if known.options[0] in one.fitting.selection
        )
    ]


@cache
def document_with(*overrides: str) -> dict[str, Any]:
    return asdict(compose_settings(overrides))


def read(key: str, value: str) -> Settings:
    """Read settings with one value as a file has it; Hydra takes five times as long."""
    document = deepcopy(document_with(*option_with(key), *promise_with(key)))
    *groups, name = key.split(".")
    part = document
    for group in groups:
        part = part[group]
    part[name] = yaml.safe_load(value)
    return settings_of(document)


# What is refused.


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("privacy.epsilonn=2", "epsilonn"),
        ("client.optimizer.momentum=0.9", "optimizer"),
    ],
)
def test_an_unknown_key_is_refused_by_name(override: str, key: str) -> None:
    with pytest.raises(ConfigError, match=f"'?{key}'?"):
        compose_settings([override])


def test_letters_of_every_language_need_no_quotes() -> None:
    assert compose_settings(["output_dir=测试"]).output_dir == "测试"
    assert expand_sweep(["output_dir=测试", "seed=1,2"]) == [
        ["output_dir=测试", f"seed={seed}"] for seed in (1, 2)
    ]


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("epsilon=2", "did you mean privacy.epsilon, dp_sgd.epsilon or selection.epsilon?"),
        ("privcy.epsilon=2", "did you mean privacy.epsilon?"),
        ("privacy/mode=central", "write privacy=central, correlated, buffered, grouped, local"),
        ("task=fashon_mnist", "did you mean task=fashion_mnist?"),
        ("privacy=local privacy.secure_sum.bits=9", "is a key of privacy=distributed"),
        ("client.lr=2", "`fl-dp config client` lists client.learning_rate"),
        ("+rounds=3", "write rounds=3, without the +"),
        ("rounds=3,5", "add -m to run with each"),
        ("metrics.loss=0,5", "or write metrics.loss=[0,5] for a list"),
        ("task.columns=[a,", "put quotes around all of it, 'task.columns=[a]'"),
    ],
)
def test_an_error_says_what_may_have_been_meant_in_one_line(override: str, meant: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose_settings(re.split(" (?=privacy)", override))
    assert meant in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_accuracy_is_a_share_and_no_percentage() -> None:
    with pytest.raises(ConfigError, match=r"metrics\.accuracy is a share .*write \[0, 1\], got"):
        compose_settings(["metrics.accuracy=[0,100]"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rounds=many", "rounds must be a whole number, got 'many'"),
        ("clipping.norm=null", "clipping.norm must be a number, got null"),
        ("metrics.loss=[0,a]", "metrics.loss must be a list of numbers, or null, got '[0,a]'"),
        ("dp_sgd.secure_randomness=perhaps", "must be true or false, got 'perhaps'"),
    ],
)
def test_a_wrong_value_is_said_with_what_is_allowed(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose_settings([override])
    assert said in str(refused.value)
    assert "Integer" not in str(refused.value)


def test_an_unknown_option_of_a_group_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="task=nonesuch") as refused:
        compose_settings(["task=nonesuch"])
    for known in [option for of, option in GROUP_OPTIONS if of == "task"]:
        assert known in str(refused.value)


def test_an_option_that_is_gone_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(ConfigError, match="selection=dp_utility is gone") as refused:
        compose_settings(["selection=dp_utility"])
    for instead in re.findall(r"selection=\w+", str(refused.value))[1:]:
        assert instead != "selection=dp_utility"
        compose_settings([instead])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", "-1"),
        ("task.records_per_client", "0"),
        ("rounds", "0"),
        ("round_timeout", "0.0"),
        ("run_name", "a/b"),
        ("task.num_clients", "0"),
        ("task.partition", "random"),
        ("model.name", "resnet"),
        ("features.public", "-1"),
        ("features.statistics", "run/features.safetensors"),
        ("privacy.scheme", "uniform"),
        ("clipping.target_quantile", "1.0"),
        ("weight_cap", "0.0"),
        ("simulation.units_per_node", "0"),
        ("privacy.epsilon", "0.0"),
        ("privacy.delta", "1.0"),
        ("privacy.noise_multiplier", "0.0"),
        ("clipping.norm", "0.0"),
        ("selection.sampling_rate", "1.01"),
        ("schedule.spend", "never"),
        ("privacy.neighboring_relation", "replace"),
        ("privacy.insecure_seed", "-1"),
        ("privacy.witness_dir", "witness"),
        ("server_optimizer.learning_rate", "0.0"),
        ("server_optimizer.momentum", "1.0"),
        ("server_optimizer.beta_2", "nan"),
        ("client.learning_rate", "0.0"),
        ("client.epochs", "0"),
        ("compression.up", "zip"),
        ("compression.fraction", "0.0"),
        ("simulation.num_cpus", "0"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_key_and_value(key: str, value: str) -> None:
    with pytest.raises(ValueError) as refused:
        read(key, value)
    name = key.rpartition(".")[2] if key.startswith("schedule") else key  # a shape checks itself
    assert f"{name} must" in str(refused.value)
    assert value in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.classes=[ill,ill]"], r"task\.classes must be at least 2 different names"),
        (["task.columns=[label]"], r"task\.columns has 'label', which is task\.label_column"),
        (["task.partition=natural"], r"write task\.client_column too"),
        (["task.image_shape=[8,8]"], r"task\.image_shape must be \[channels, height, width\]"),
        (["task.mean=[0]"], r"task\.mean and task\.std belong together.*None"),
        (["task.test_fraction=1.0"], r"task\.test_fraction must lie in \(0, 1\), got 1\.0"),
        (["total_weight=99"], "give weight_cap"),
        (["task.partition=nodes", "simulation.units_per_node=2"], "with its own data is one unit"),
    ],
)
def test_a_description_of_own_data_that_makes_no_sense_is_refused(
    overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        compose_settings(["task=csv", *overrides])


def test_keys_of_own_data_are_refused_for_public_sets() -> None:
    with pytest.raises(ConfigError, match=r"task\.classes is for your own data.*task=digits"):
        compose_settings(["task.classes=[1,2]"])


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["sweep.seeds=[0]"], "is for an experiment, and there is none"),
        (["experiment=schedules", "sweep.only=[constnt]"], "got 'constnt': did you mean constant?"),
        (["experiment=client_count", "sweep.values=null"], "7 images a client has no values"),
        (
            ["task.partition=dirichlet", "task.records_per_client=7"],
            "for task.partition=iid or natural",
        ),
        (["task=csv", "task.partition=nodes", "task.validation=true"], "the server has none"),
    ],
)
def test_an_experiment_that_makes_no_sense_is_refused_in_one_line(
    overrides: list[str], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as refused:
        compose_settings(overrides)
    assert "\n" not in str(refused.value)


def test_a_run_with_neither_a_budget_nor_a_noise_multiplier_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.epsilon and privacy\.noise_multiplier"):
        compose_settings(["privacy.epsilon=null"])


def test_a_noise_multiplier_alone_is_enough() -> None:
    privacy = compose_settings(["privacy.epsilon=null", "privacy.noise_multiplier=2"]).privacy
    assert (privacy.epsilon, privacy.noise_multiplier) == (None, 2.0)


# What is known of each key.


def test_every_key_is_known_with_its_default_and_a_sentence_of_help() -> None:
    keys = all_keys()
    default = flat(Settings())
    chosen = {f"{group}.{chosen_by(group)}" for group in OPTIONS}
    assert {name: keys[name].default for name in default.keys() - chosen} == {
        name: value for name, value in default.items() if name not in chosen
    }
    assert [name for name, key in keys.items() if not key.help.endswith(".")] == []


def test_the_choices_of_a_key_are_those_that_are_checked() -> None:
    listed = {name: key.choices for name, key in all_keys().items() if key.choices}
    assert CHOICES.items() <= listed.items()
    assert {"selection.utility", "schedule.spend", "privacy.scheme"} <= listed.keys()
    for name, choices in listed.items():
        with pytest.raises(ValueError, match=f"{name} must be one of {', '.join(choices)}"):
            read(name, "nonesuch")


@pytest.mark.parametrize(
    "overrides",
    [
        "selection.participation_cap=5",
        "weight_cap=3 total_weight=1000",
        "privacy.noise_multiplier=1e-9",
    ],
)
def test_an_error_of_a_plan_names_keys_by_their_last_word_and_no_class(overrides: str) -> None:
    with pytest.raises(ValueError) as refused:
        make_plan(compose_settings(overrides.split()))
    last_words = {key.rpartition(".")[2] for key in all_keys()} | {*group_options()}
    named = set(re.findall(r"\w+_\w+|\w+(?==)", str(refused.value)))
    assert named - last_words <= {"cohort", "separation"}  # which a selection counts itself
    assert not re.search(r"[a-z][A-Z]", str(refused.value))


@pytest.mark.parametrize(
    ("overrides", "mode", "enabled"),
    [
        ("dp_sgd=on", "central", True),
        ("privacy=dp_sgd", "dp_sgd", True),
        ("privacy=none", "none", False),
    ],
)
def test_dp_sgd_is_a_layer_that_goes_with_every_mode(
    overrides: str, mode: str, enabled: bool
) -> None:
    settings = compose_settings(overrides.split())
    assert (settings.privacy.mode, settings.dp_sgd.enabled) == (mode, enabled)
    assert settings.protects_records is enabled
    assert settings.protects_clients is (mode not in ("none", "dp_sgd"))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("privacy=dp_sgd privacy.epsilon=4", "or dp_sgd.epsilon for records, or leave"),
        ("dp_sgd.epsilon=4", "dp_sgd.epsilon is a key of dp_sgd=on, which is not chosen"),
        ("dp_sgd.enabled=true", "write dp_sgd=off or on"),
        ("dp_sgd=on dp_sgd.epsilon=null", "dp_sgd.epsilon and dp_sgd.noise_multiplier are both"),
        ("privacy.mode=dp_sgd", "write privacy=central, correlated, buffered"),
        ("privacy=central privacy.secure_sum.bits=20", "is a key of privacy=distributed"),
    ],
)
def test_a_budget_that_nobody_would_keep_to_is_refused_in_one_line(
    overrides: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        compose_settings(overrides.split())
    assert "\n" not in str(refused.value)


def test_a_budget_of_records_without_dp_sgd_is_refused_wherever_it_was_written() -> None:
    text = compose_settings(["dp_sgd=on"]).to_json().replace('"enabled": true', '"enabled": false')
    with pytest.raises(ValueError, match="no set of settings"):
        Settings.from_json(text)


def test_as_many_norms_as_arrays_are_asked_for() -> None:
    settings = compose_settings(["clipping=per_layer", "clipping.norms=[0.1,0.2,0.3]"])
    with pytest.raises(ValueError, match=r"has 3 norms and model=logistic has 2 .* write 2 norms"):
        check_layers(settings)
    check_layers(compose_settings(["clipping=per_layer", "clipping.norms=[0.1,0.2]"]))


# What is composed.


@pytest.mark.parametrize(
    "overrides",
    [
        ["client.epochs=2", "selection=public", "selection.participation_cap=2", "seed=3"],
        ["task=fashion_mnist", "privacy=local", "tracking=wandb", "tracking.project='a b'"],
        ["sweep.only=[constant]", "experiment=schedules", "rounds=7", "~sweep"],
    ],
    ids=" ".join,
)
def test_values_are_put_in_as_hydra_does(overrides: list[str]) -> None:
    settings = compose_settings(overrides)
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        by_hydra: Any = compose("config", overrides=list(with_recipe(overrides)))
    assert settings_of(OmegaConf.to_container(by_hydra)) == settings  # type: ignore[arg-type]  # its keys are texts


@pytest.mark.parametrize(("group", "option"), GROUP_OPTIONS)
def test_every_file_in_the_configuration_composes_and_its_values_arrive(
    group: Any, option: str
) -> None:
    path = config_folder() / group / f"{option}.yaml"
    written: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=True) or {}
    written.pop("defaults", None)
    is_global = "# @package _global_" in path.read_text(encoding="utf-8")
    composed = asdict(compose_settings([f"{group}={option}"]))

    def assert_within(part: dict[str, Any], whole: Any) -> None:
        for key, value in part.items():
            if isinstance(value, dict):
                assert_within(value, whole[key])
            elif key in ("values", "at"):  # places on an axis are text
                assert whole[key] == [str(each) for each in value] or whole[key] == str(value)
            else:
                assert whole[key] == value

    assert_within(written, composed if is_global else composed[group])


def test_without_overrides_the_configuration_holds_the_defaults_of_the_settings() -> None:
    assert compose_settings([]) == Settings()


def flat(settings: Any) -> dict[str, Any]:
    """Every setting by its dotted key."""
    return flattened(asdict(settings))


@pytest.mark.parametrize("overrides", [[], EVERYTHING], ids=["defaults", "everything"])
def test_json_brings_the_same_settings_back(overrides: list[Any]) -> None:
    settings = compose_settings(overrides)
    assert Settings.from_json(settings.to_json()) == settings


def test_every_key_takes_what_is_shown_as_its_default() -> None:
    for name, key in all_keys().items():
        if name != "sweep.curves":  # which come from a file
            check_values([parsed(f"{name}={key.default_text}")])


def test_json_of_values_out_of_range_is_refused() -> None:
    text = compose_settings([]).to_json().replace('"norm": 0.5', '"norm": -1.0')
    with pytest.raises(ValueError, match=r"clipping\.norm must be positive"):
        Settings.from_json(text)


def test_composing_does_not_depend_on_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("rounds: 999\n", encoding="utf-8")
    here = compose_settings(EVERYTHING)
    monkeypatch.chdir(tmp_path)
    assert compose_settings(EVERYTHING) == here


def test_composing_carries_nothing_over_even_after_a_refusal() -> None:
    compose_settings(EVERYTHING)
    with pytest.raises(ConfigError):
        compose_settings(["rounds=0"])
    assert compose_settings([]) == Settings()


def test_threads_compose_at_the_same_time() -> None:
    composed = {}

    def compose_rounds(rounds: Any) -> None:
        composed[rounds] = compose_settings([f"rounds={rounds}"]).rounds

    threads = [threading.Thread(target=compose_rounds, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert composed == {1: 1, 2: 2, 3: 3, 4: 4}


def test_composing_leaves_another_hydra_of_the_process_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("theirs: 1\n", encoding="utf-8")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        compose_settings([])
        assert compose("config").theirs == 1


# Sweeps.


@pytest.mark.parametrize(
    ("overrides", "jobs"),
    [
        ([], [[]]),
        (
            ["privacy.epsilon=2,8", "seed=0,1"],
            [
                ["privacy.epsilon=2", "seed=0"],
                ["privacy.epsilon=2", "seed=1"],
                ["privacy.epsilon=8", "seed=0"],
                ["privacy.epsilon=8", "seed=1"],
            ],
        ),
        (["seed=range(0,3)"], [["seed=0"], ["seed=1"], ["seed=2"]]),
        (["task.data_dir='/a,b'"], [["task.data_dir='/a,b'"]]),
    ],
)
def test_a_sweep_is_every_combination_with_the_last_key_fastest(
    overrides: list[Any], jobs: list[Any]
) -> None:
    assert expand_sweep(overrides) == jobs


def test_a_quoted_choice_of_a_sweep_keeps_its_characters() -> None:
    jobs = expand_sweep(["task.data_dir='/with space','/with,comma'"])
    found = [compose_settings(job).task.data_dir for job in jobs]
    assert found == ["/with space", "/with,comma"]


@pytest.mark.parametrize("override", ["seed=1,", "clipping.norm=interval(0,1)"])
def test_a_sweep_that_has_no_list_of_values_is_refused(override: str) -> None:
    with pytest.raises(ConfigError):
        expand_sweep([override])


# The settings at a client.


SMALL = ["task.num_clients=20", "client.batch_size=1000", "client.epochs=1"]


def initial_parameters(settings: Settings) -> list[np.ndarray]:
    return [*get_arrays(model_of(settings)).values()]


def model_of(settings: Settings) -> Any:
    dataset = load_dataset(settings.task.name)
    return build_model(
        settings.model.name,
        input_shape=dataset.input_shape,
        num_classes=dataset.num_classes,
        hidden=settings.model.hidden,
        seed=settings.seed,
    )


def node_context(partition_id: int) -> Context:
    return Context(
        run_id=1,
        node_id=partition_id + 1,
        node_config={"partition-id": partition_id},
        state=RecordDict(),
        run_config={},
    )


def fit(
    settings: Settings, partition_id: int = 0, server_round: int = 1, parameters: Any = None
) -> tuple[Any, Any, Any]:
    parameters = initial_parameters(settings) if parameters is None else parameters
    config: dict[str, Any] = {SETTINGS_KEY: settings.to_json(), "server-round": server_round}
    return TaskClient(node_context(partition_id)).fit(parameters, config)


def same_arrays(first: Any, second: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    "overrides",
    [
        ["task.partition=dirichlet", "task.alpha=0.3"],
        ["task.partition=shards", "task.shards_per_client=3"],
        ["model=mlp", "model.hidden=12", "client.epochs=3"],
    ],
    ids=" ".join,
)
def test_a_client_trains_as_the_settings_in_the_message_say(overrides: list[str]) -> None:
    settings = compose_settings(SMALL + overrides)
    task, client = settings.task, settings.client
    dataset, model = load_dataset(task.name), model_of(settings)
    rows = client_indices(
        task.name,
        num_clients=task.num_clients,
        kind=task.partition,
        seed=settings.seed,
        alpha=task.alpha,
        shards_per_client=task.shards_per_client,
    )[3]
    start = [values + 0.01 for values in initial_parameters(settings)]
    set_arrays(model, start)
    # One batch holds all of the client's rows, so their order changes nothing but rounding.
    train_locally(
        model,
        dataset.features(rows),
        dataset.labels(rows),
        learning_rate=client.learning_rate,
        epochs=client.epochs,
        batch_size=client.batch_size,
        seed=99,
    )
    arrays, _, _ = fit(settings, partition_id=3, parameters=start)
    for got, expected, before in zip(arrays, get_arrays(model).values(), start, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)
        assert not np.array_equal(got, before)


def test_a_client_trains_the_same_when_a_round_is_repeated() -> None:
    settings = compose_settings(["task.num_clients=20", "client.batch_size=4"])
    assert same_arrays(fit(settings, server_round=2)[0], fit(settings, server_round=2)[0])


@pytest.mark.parametrize("change", [{"server_round": 3}, {"partition_id": 1}])
def test_a_client_trains_differently_in_another_round_or_place(change: dict[str, int]) -> None:
    settings = compose_settings(["task.num_clients=20", "client.batch_size=4"])
    here = {"server_round": 2, "partition_id": 0}
    assert not same_arrays(fit(settings, **here)[0], fit(settings, **here | change)[0])


def answer_of_the_client_app(settings_json: str, node_config: dict[str, Any]) -> Message:
    """Send one train message through the app's own door."""

    def answer(message: Message, partition: int) -> Message:
        return client_app.app(message, Context(1, FIRST_NODE, node_config, RecordDict(), {}))

    grid = LocalGrid(answer, 1)
    names = get_arrays(model_of(compose_settings(SMALL)))
    arrays = ArrayRecord({name: Array(values) for name, values in names.items()})
    config = ConfigRecord({SETTINGS_KEY: settings_json, "server-round": 1})
    content = RecordDict({"arrays": arrays, "config": config})
    [reply] = grid.send_and_receive(
        [Message(content, dst_node_id=FIRST_NODE, message_type="train")]
    )
    return reply


def test_the_client_app_trains_the_part_that_the_node_s_configuration_names() -> None:
    settings = compose_settings(SMALL)
    reply = answer_of_the_client_app(settings.to_json(), {"partition-id": 4})
    expected, _, _ = fit(settings, partition_id=4)
    assert same_arrays(reply.content.array_records["arrays"].to_numpy_ndarrays(), expected)


def test_settings_that_a_client_refuses_are_an_error_without_their_text() -> None:
    broken = compose_settings(SMALL).to_json().replace('"epochs": 1', '"epochs": 0')
    reply = answer_of_the_client_app(broken, {"partition-id": 0})
    assert reply.error.reason == "OptionError"


def test_digits_and_brackets_without_an_end_are_refused() -> None:
    for value in ("9" * 5000, "[" * 3000 + "]" * 3000):
        with pytest.raises(ConfigError, match=r"^'seed=.{34,36}\.\.\.' can't be read"):
            compose_settings([f"seed={value}"])


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["privacy.epsilon=4,0"], "or privacy.epsilon=4.0 for one number"),
        (["task.classes=[ill (bad),b]"], r"'task.classes=\[\"ill \(bad\)\",b\]'"),
    ],
)
def test_a_value_in_another_form_is_told_how_it_is_written(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        compose_settings(overrides)
    written = re.findall(r"'([\w.]+=\[[^']*\])'$", str(refused.value))
    for override in written[-1:]:
        parsed(override)  # what it says can be read


@pytest.mark.parametrize(
    "overrides",
    [
        ("privacy.epsilon=4", "rounds=3", "privacy.epsilon=8"),
        ("seed=1", "++seed=1"),
    ],
)
def test_a_key_that_is_written_twice_is_refused(overrides: tuple[str, ...]) -> None:
    key = overrides[0].partition("=")[0]
    result = call("run", *overrides)
    assert result.exit_code == 2
    assert f"{key} is written twice" in said_on_stderr(result)
    assert overrides[-1] in said_on_stderr(result)

"""`features=` in the app: what trains, what is said of it, and what stays as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from app_trainings import trained_in_process
from safetensors.torch import load_file
from small_sentences import write_encoder

from fl_dp.app import settings_encoder, workload
from fl_dp.app.cells import digest_of
from fl_dp.app.compose import ConfigError, compose_settings
from fl_dp.app.planning import declared_records, make_plan, make_record_plan
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.settings import Settings
from fl_dp.app.settings.features import CheckpointSettings, SentencesSettings
from fl_dp.app.workload import dataset_of, encoder_of_run, form_of_run, training_rows, with_digests
from fl_dp.statement.check import statement_page
from fl_dp.tasks.datasets import load_dataset
from fl_dp.tasks.datasets.text_bytes import padded
from fl_dp.tasks.features import Encoder, Sentences
from fl_dp.tasks.features.sentence_encoder import FILES, encoder_files

SCATTERING = (
    "features=scattering",
    "features.public=300",
    "features.project=40",
    "features.shrink=10",
)
PATCHES = ("features=patches", "features.side=3", "features.count=16", *SCATTERING[1:])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for kept in (
        settings_encoder._encoded,
        settings_encoder.fitted_encoder,
        settings_encoder.encoder_digest,
    ):
        kept.cache_clear()
    return tmp_path / "cache/fl-dp/features"


def trained(folder: Path, *overrides: str) -> RunFolder:
    small = ("task.num_clients=20", "selection.sampling_rate=0.9", "rounds=4")
    return trained_in_process(folder, *small, *overrides)


@pytest.mark.parametrize(
    "privacy", ["privacy.epsilon=50", "privacy=dp_sgd dp_sgd.epsilon=50 dp_sgd.steps=2 rounds=2"]
)
def test_a_model_is_trained_on_vectors_and_the_statement_says_what_was_public(
    tmp_path: Path, cache: Path, privacy: str
) -> None:
    run = trained(tmp_path, *SCATTERING, *privacy.split())
    assert load_file(run.model)["1.weight"].shape == (10, 40)
    assert run.read_metrics()[-1]["test_accuracy"] > 0.3  # chance is 0.1
    # Encoded once: one file of vectors, one of statistics.
    assert len(list(cache.glob("*.npy"))) == len(list(cache.glob("*.safetensors"))) == 1
    assert load_file(run.features)["directions"].shape == (324, 40)
    statement = run.read_statement()
    digest = run.read_settings().features.digest
    assert digest is not None
    encoder, public = statement["public_inputs"]
    assert encoder == f"the encoder features=scattering, SHA-256 {digest}"
    assert "300 training records of task=digits without their labels" in public
    page = statement_page(statement)
    assert digest in page
    assert f"| outside the promise | {encoder} |" in page
    assert f"| outside the promise | {public} |" in page
    assert public.endswith("directions: nothing is promised to the people in them")


def test_public_records_that_come_with_a_set_are_told_from_training_records() -> None:
    settings = compose_settings(["task=movies", "features=words", "features.public=10"])
    _, records = settings_encoder.what_was_public(settings) or ()
    assert records.startswith(
        "10 public records that come with task=movies, for the features' mean"
    )


def test_the_file_of_an_encoder_is_named_without_its_place() -> None:
    settings = compose_settings(
        ["features=checkpoint", "features.file=/srv/vit.safetensors", "features.module=mine:ViT"]
    )
    [said] = settings_encoder.what_was_public(settings) or ()
    assert said.startswith("the encoder features=checkpoint of vit.safetensors, SHA-256 ")
    assert said.endswith(": nothing is promised to the data that it was trained on")


def statistics_of(folder: Path, *overrides: str) -> Path:
    """Write what a run with these features leaves for others."""
    encoder = encoder_of_run(compose_settings(overrides))
    assert encoder is not None and encoder.statistics is not None
    encoder.statistics.save(folder / "features.safetensors", public=True)
    return folder / "features.safetensors"


def test_statistics_of_another_run_need_no_public_part_and_stay_the_same(tmp_path: Path) -> None:
    file = statistics_of(tmp_path, *SCATTERING)
    run = trained(tmp_path, "features=scattering", f"features.statistics={file}")
    assert load_file(run.model)["1.weight"].shape == (10, 40)
    said = run.read_statement()["public_inputs"]
    assert said[1:] == [
        "the features' statistics, of records that lie elsewhere: nothing is promised to those "
        "records here"
    ]
    # All training records are clients' then.
    whole, settings = len(load_dataset("digits").train_y), run.read_settings()
    assert sum(map(len, training_rows(settings))) == whole
    with_public_part = compose_settings(["privacy=distributed_records", *SCATTERING])
    assert sum(map(len, training_rows(with_public_part))) == whole - 300
    assert declared_records(with_public_part) == whole - 300
    # The run goes on with its own encoder alone.
    changed = bytearray(file.read_bytes())
    changed[-4] ^= 1
    file.write_bytes(changed)
    settings_encoder.encoder_digest.cache_clear()  # as in the process that goes on with it
    with pytest.raises(ValueError, match=r"features\.digest is .*have the same files"):
        with_digests(settings)


# What stays.


def test_without_features_nothing_is_touched(tmp_path: Path, cache: Path) -> None:
    assert dataset_of(Settings()) is load_dataset("digits")
    assert with_digests(Settings()) == Settings()
    run = trained(tmp_path)
    assert not cache.exists()
    assert not run.features.exists()
    assert "public_inputs" not in run.read_statement()


def test_features_are_in_the_digest_of_settings_and_what_their_files_hold_is_not() -> None:
    given = compose_settings([*SCATTERING])
    assert digest_of(given) != digest_of(Settings())
    # What files hold is found when a run starts, and a cell of a sweep is known before.
    assert digest_of(with_digests(given)) == digest_of(given)


@pytest.mark.parametrize(
    "overrides",
    [
        ("privacy=central", "metrics.loss=[0,3]", "clipping=adaptive"),
        ("privacy=local", "rounds=10"),
        (
            "privacy=distributed_records",
            "privacy.num_records=1137",
            "rounds=10",
            "task.num_clients=9",
        ),
    ],
)
def test_the_accounting_of_clients_and_sums_is_the_same(overrides: tuple[str, ...]) -> None:
    """A vector is its own record's, so a unit moves what it moved before."""
    plain, with_features = (
        make_plan(compose_settings([*overrides, *each])) for each in ((), SCATTERING)
    )
    assert plain == with_features


def test_the_accounting_of_dp_sgd_is_the_same() -> None:
    plans = [
        make_record_plan(compose_settings(["privacy=dp_sgd", *each])) for each in ((), SCATTERING)
    ]
    assert plans[0] is not None
    assert plans[0] == plans[1]


def test_validation_rows_are_neither_public_nor_trained_on() -> None:
    settings = compose_settings(["task.validation=true", *SCATTERING])
    whole = len(load_dataset("digits").train_y)
    found = dataset_of(settings)
    assert len(found.train_y) + len(found.test_y) + 300 == whole


# What an encoder's digest stands for.


@pytest.mark.parametrize("override", ["features.public=301", "features.project=39"])
def test_another_encoder_has_another_digest(override: str) -> None:
    first = with_digests(compose_settings([*SCATTERING])).features.digest
    other = with_digests(compose_settings([*SCATTERING, override])).features.digest
    assert first != other


def test_another_source_is_another_encoder_and_is_compared_before_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "my_networks"
    package.mkdir()
    for file in ("__init__.py", "small.py"):
        (package / file).write_text("raise SystemExit('imported')\n", encoding="utf-8")
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(b"any")
    monkeypatch.syspath_prepend(tmp_path)
    module, file = "features.module=my_networks.small:Net", f"features.file={weights}"
    chosen = compose_settings(["features=checkpoint", module, file]).features
    assert isinstance(chosen, CheckpointSettings)
    first = settings_encoder.encoder_digest(chosen, None)
    settings_encoder.encoder_digest.cache_clear()
    assert settings_encoder.encoder_digest(chosen, None) == first
    (package / "small.py").write_text("SIDE = 224\n", encoding="utf-8")
    settings_encoder.encoder_digest.cache_clear()
    assert settings_encoder.encoder_digest(chosen, None) != first


def test_texts_are_encoded_by_a_folder_and_each_of_its_files_makes_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = replace(
        load_dataset("digits"),
        train_x=padded(["a good film", "a bad film", "good"], 20),
        train_y=np.array([1, 0, 1]),
        test_x=padded(["dull"], 20),
        test_y=np.array([0]),
        num_classes=2,
        vocabulary_size=256,
    )
    monkeypatch.setattr(workload, "load_dataset", lambda *_, **__: texts)
    folder = tmp_path / "tiny"
    write_encoder(folder)
    (folder / "README.md").write_text("A model of nobody.", encoding="utf-8")
    chosen = ["features=sentences", f"features.folder={folder}"]
    settings = with_digests(compose_settings(chosen))
    assert form_of_run(settings).input_shape == (16,)
    vectors = dataset_of(settings).features(slice(None))
    expected = Encoder(Sentences(*encoder_files(str(folder))))(texts.train_x)
    np.testing.assert_array_equal(vectors, expected)
    digest = settings.features.digest
    [public] = settings_encoder.what_was_public(settings) or ()
    assert public == (
        f"the encoder features=sentences of tiny, SHA-256 {digest}: nothing is promised to the "
        "data that it was trained on"
    )

    def digest_now(folder: Path) -> str:
        settings_encoder.encoder_digest.cache_clear()
        chosen = compose_settings(["features=sentences", f"features.folder={folder}"]).features
        assert isinstance(chosen, SentencesSettings)
        return settings_encoder.encoder_digest(chosen, None)

    (folder / "README.md").unlink()
    assert digest_now(folder.rename(tmp_path / "moved")) == digest
    for name in FILES:
        file = tmp_path / "moved" / name
        before = file.read_bytes()
        file.write_bytes(before + b" ")
        assert digest_now(file.parent) != digest
        file.write_bytes(before)


@pytest.mark.parametrize("module", ["nonesuch", "json.tool.numpy"])
def test_a_module_that_is_missing_is_named(tmp_path: Path, module: str) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"any")
    with pytest.raises(ModuleNotFoundError, match=rf"no module '{module}' here; PYTHONPATH"):
        with_digests(
            compose_settings(
                ["features=checkpoint", f"features.file={file}", f"features.module={module}:Net"]
            )
        )


def test_patches_of_another_run_need_no_public_part(tmp_path: Path) -> None:
    first = compose_settings(PATCHES)
    assert (
        "the windows that are compared with" in (settings_encoder.what_was_public(first) or ())[1]
    )
    file = f"features.statistics={statistics_of(tmp_path, *PATCHES)}"
    second = with_digests(compose_settings([*PATCHES[:3], file]))
    assert second.features.digest != with_digests(first).features.digest
    before, after = dataset_of(first), dataset_of(second)
    np.testing.assert_array_equal(after.test_x, before.test_x)
    assert len(after.train_y) == len(before.train_y) + 300
    with pytest.raises(ValueError, match=r"features\.statistics does not fit: 'filters'"):
        with_digests(compose_settings([PATCHES[0], "features.side=3", file]))


# What is refused, in one line.


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["features.public=3"],
            "is a key of features=scattering, patches, checkpoint, words or sentences",
        ),
        (["features=scattering", "features.project=3"], "needs public records"),
        (
            ["features=scattering", "features.public=9", "features.shrink=3"],
            "write features.project of at least that",
        ),
        (
            ["features=scattering", "features.public=9", "features.statistics=/a/b"],
            "is in place of features.public",
        ),
        (["features=checkpoint", "features.file=a.safetensors"], "as in features.file=/srv/a.s"),
        (["features=sentences", "features.folder=minilm"], "as in features.folder=/srv/minilm"),
    ],
)
def test_a_slip_is_one_clear_line(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose_settings(overrides)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["task=breast_cancer", "features=scattering"], "scattering needs .channels"),
        ([*SCATTERING, "features.public=1437"], r"write a smaller features\.public"),
        ([*SCATTERING, "features.group_norm=25"], r"group_norm=25 does not divide"),
        (
            ["features=checkpoint", "features.file=/no/such", "features.module=torch.nn:Flatten"],
            r"features\.file=/no/such can't be read here \(No such file.*: write",
        ),
        (
            ["features=sentences", "features.folder=/no/such"],
            r"features\.folder=/no/such has no config\.json and no model\.safetensors and no tok",
        ),
    ],
)
def test_what_does_not_fit_the_data_is_refused_before_there_is_a_ledger(
    tmp_path: Path, overrides: list[str], said: str
) -> None:
    with pytest.raises((ValueError, OSError), match=said):
        trained(tmp_path, *overrides)
    assert not list(tmp_path.rglob("ledger.db"))


@pytest.mark.parametrize(
    ("vocabulary", "features", "refusal"),
    [
        (4, "scattering", "takes numbers, and the records are tokens: write features=none"),
        (4, "words", "takes texts, and the records are tokens: write features=none"),
        (None, "words", "takes texts, and the records are numbers: write features=none"),
        (256, "scattering", "takes numbers, and the records are texts: write features=words"),
    ],
)
def test_an_encoder_of_other_records_is_refused(
    monkeypatch: pytest.MonkeyPatch, vocabulary: int | None, features: str, refusal: str
) -> None:
    tokens = replace(
        load_dataset("digits"),
        train_x=np.zeros((9, 5), np.uint8),
        train_y=np.zeros(9, np.int64),
        test_x=np.zeros((1, 5), np.uint8),
        test_y=np.zeros(1, np.int64),
        vocabulary_size=vocabulary,
    )
    monkeypatch.setattr(workload, "load_dataset", lambda *_, **__: tokens)
    with pytest.raises(ValueError, match=f"features={features} {refusal}"):
        form_of_run(compose_settings([f"features={features}"]))

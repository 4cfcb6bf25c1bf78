"""The settings' encoder: the data that it makes, and who may run it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_dp.clients.owner.node_config import NodeConfig
from fl_dp.files import sha256_of
from fl_dp.tasks.datasets import BRING_PUBLIC, Dataset, Form
from fl_dp.tasks.device import training_device

from .settings import Settings
from .settings.features import (
    CheckpointSettings,
    EncoderSettings,
    PatchesSettings,
    ScatteringSettings,
    SentencesSettings,
    WordsSettings,
)

if TYPE_CHECKING:  # torch is loaded where something is encoded
    from fl_dp.tasks.features import Encoder

_VERSION = 1  # of the code that encodes: another version is another encoder


def require_public_files(settings: Settings, node_config: Mapping[str, Any]) -> None:
    """Check that a node may use the files that the server names, before any is read.

    By a file's digest the server shows that it knows the content: the file reveals nothing of the
    node's own.

    Raises:
        PermissionError: The node's owner does not allow the encoder. The text holds no data.
        ValueError: A digest is missing or part of the data would be public, for a node with its
            own data or whose owner names encoders.
    """
    owner, chosen, model = NodeConfig.of(node_config), settings.features, settings.model
    refused = owner.refused_encoder(chosen.digest, runs_code=chosen.name == "checkpoint")
    if refused is not None:
        raise PermissionError(refused)
    if owner.data_path is None and owner.encoder_digests is None:
        return
    if chosen.public:
        raise ValueError(
            "no record of a node's own data is public: write features.statistics in place of "
            f"features.public={chosen.public}"
        )
    for key, needed, digest in (
        ("features.digest", chosen.name != "none", chosen.digest),
        ("model.initial_digest", model.initial is not None, model.initial_digest),
    ):
        if needed and digest is None:
            raise ValueError(f"the server does not say which file it means: {key} is null")


def digest_named(key: str, file: str) -> str:
    """SHA-256 of the file that a settings key names.

    Raises:
        OSError: It can't be read; the text names the key.
    """
    try:
        return sha256_of(Path(file))
    except OSError as error:
        raise type(error)(
            f"{key}={file} can't be read here ({error.strerror}): write the whole path of a file "
            "that is there, on each machine that reads it"
        ) from error


def encoded_data(settings: Settings, dataset: Dataset, only_for: str | None = None) -> Dataset:
    """The data that the run trains on; without an encoder, the same object.

    `only_for` is the folder of one owner's data; None for everybody's.

    Raises:
        OSError: A file of the encoder can't be read.
        ImportError: Its module can't be imported.
        ValueError: It does not fit the records, or its digest is not `features.digest`.
    """
    chosen = settings.features
    if not isinstance(chosen, EncoderSettings):
        return dataset
    return _encoded(chosen, dataset, only_for)


def encoded_form(settings: Settings, form: Form) -> Form:
    """Form of encoded records; the same form without an encoder. Raises as `encoded_data`."""
    chosen = settings.features
    if not isinstance(chosen, EncoderSettings):
        return form
    taken = "texts" if chosen.takes_text else "numbers"
    if form.kind != taken:
        raise ValueError(
            f"features={chosen.name} takes {taken}, and the records are {form.kind}: write "
            f"features={'words' if form.kind == 'texts' else 'none'}"
        )
    if chosen.project is not None:
        return Form((chosen.project,), form.num_classes)
    encoder = _unfitted(chosen, form.input_shape)
    return Form((encoder.width(form.input_shape),), form.num_classes)


def what_was_public(
    settings: Settings, *, goes_on_from: str | None = None
) -> tuple[str, ...] | None:
    """Inputs and test rows that no promise covers, and what each means for whom.

    `goes_on_from` is the training of the same account whose model the first weights are.

    Returns:
        Sentences for the statement; None without any.
    """
    chosen = settings.features
    inputs: list[str] = []
    if isinstance(chosen, EncoderSettings):
        inputs.extend(_public_encoder(chosen, settings.task.name))
    if settings.model.initial is not None and goes_on_from is None:
        name, digest = Path(settings.model.initial).name, settings.model.initial_digest
        inputs.append(
            f"the first weights, {name}, SHA-256 {digest}: nothing is promised to the data that "
            "they were trained on"
        )
    inputs.extend(
        f"rows of the own data, held out by {key}, by which the model was measured after each "
        "round: nothing is promised to these rows, and all to those that it was trained on"
        for key in settings.task.held_out_by
    )
    if settings.counts_own_records:
        inputs.append(
            "the exact number of training records, counted by privacy.num_records=null: it is "
            "written here as it is, and all else about each record keeps the promise"
        )
    return tuple(inputs) or None


def _public_encoder(chosen: EncoderSettings, task: str) -> Iterator[str]:
    """Yield an encoder's public inputs, in words."""
    weights = chosen.weights
    of_weights = f" of {Path(weights).name}" if weights else ""
    trained_on = ": nothing is promised to the data that it was trained on" if weights else ""
    yield f"the encoder features={chosen.name}{of_weights}, SHA-256 {chosen.digest}{trained_on}"
    if chosen.public:
        uses = "the features' mean"
        if isinstance(chosen, PatchesSettings):
            uses = f"the windows that are compared with, {uses}"
        if chosen.project:
            uses += f" and {chosen.project} directions"
        records = f"public records that come with task={task}"
        if task not in BRING_PUBLIC:
            records = f"training records of task={task} without their labels, which no client has"
        yield f"{chosen.public} {records}, for {uses}: nothing is promised to the people in them"
    if chosen.statistics is not None:
        yield (
            "the features' statistics, of records that lie elsewhere: nothing is promised to those "
            "records here"
        )


@lru_cache(maxsize=4)
def _encoded(chosen: EncoderSettings, dataset: Dataset, only_for: str | None) -> Dataset:
    from fl_dp.tasks.features.encoded import encoded

    digest = encoder_digest(chosen, dataset)
    return encoded(dataset, lambda: fitted_encoder(chosen, dataset), digest, only_for=only_for)


@lru_cache(maxsize=4)
def encoder_digest(chosen: EncoderSettings, dataset: Dataset | None) -> str:
    """SHA-256 of an encoder: of its files, options and public records.

    Raises:
        OSError: A file can't be read.
        ValueError: It differs from `features.digest`.
    """
    from fl_dp.tasks.features.encoded import digest_of_records
    from fl_dp.tasks.features.sentence_encoder import encoder_files

    made_of: dict[str, Any] = asdict(chosen) | {"version": _VERSION}
    del made_of["digest"]
    if isinstance(chosen, CheckpointSettings):
        made_of["source"] = _source_digest(chosen.module or "")
    if isinstance(chosen, SentencesSettings):
        made_of["folder"] = [sha256_of(file) for file in encoder_files(chosen.folder)]
    for key in ("file", "statistics"):
        if (file := made_of.get(key)) is not None:
            made_of[key] = digest_named(f"features.{key}", file)
    if chosen.public and dataset is not None:
        made_of["records"] = digest_of_records(dataset, "public")
    digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
    if chosen.digest not in (None, digest):
        raise ValueError(
            f"features.digest is {chosen.digest}, and the files and options here make {digest}: "
            "have the same files on every machine"
        )
    return digest


def _source_digest(factory: str) -> str | None:
    """SHA-256 of the file that defines a network; None without a file.

    Nothing is imported, not even its package: a node compares digests before it runs what a server
    named.

    Raises:
        ModuleNotFoundError: The module does not exist.
        OSError: Its file can't be read.
    """
    module, _, _ = factory.partition(":")
    first, *inner = module.split(".")
    try:
        spec = find_spec(first)
    except ValueError:  # a module made in memory, as in a notebook: it has no file to name
        return None
    for depth in range(1, len(inner) + 1):
        if spec is not None:  # not `find_spec`, which imports the package
            name = ".".join((first, *inner[:depth]))
            spec = PathFinder.find_spec(name, spec.submodule_search_locations or [])
    if spec is None:
        raise ModuleNotFoundError(
            f"features.module={factory}: there is no module '{module}' here; PYTHONPATH has to "
            "name its folder",
            name=module,
        )
    if spec.origin is None:
        return None
    return digest_named("features.module", spec.origin)


@lru_cache(maxsize=2)
def _unfitted(chosen: EncoderSettings, input_shape: tuple[int, ...]) -> Encoder:
    from fl_dp.tasks.features import (
        Encoder,
        HashedWords,
        Patches,
        PublicStatistics,
        Scattering,
        Sentences,
        encoder_module,
    )
    from fl_dp.tasks.features.sentence_encoder import encoder_files

    if not chosen.public:
        encoder_digest(chosen, None)  # before anything of another one is imported
    body: Any
    if isinstance(chosen, CheckpointSettings):
        assert chosen.file is not None and chosen.module is not None  # as `check` has seen
        body = encoder_module(chosen.module, Path(chosen.file), input_shape)
    elif isinstance(chosen, PatchesSettings):
        body = Patches(
            input_shape, side=chosen.side, count=chosen.count, scattering=chosen.scattering
        )
    elif isinstance(chosen, SentencesSettings):
        body = Sentences(*encoder_files(chosen.folder))
    elif isinstance(chosen, WordsSettings):
        body = HashedWords(chosen.width)
    else:
        body = Scattering(input_shape)
    group_norm = chosen.group_norm if isinstance(chosen, ScatteringSettings) else None
    file = chosen.statistics
    statistics = None if file is None else PublicStatistics.read(Path(file))
    return Encoder(body, group_norm=group_norm, statistics=statistics, device=training_device())


@lru_cache(maxsize=2)
def fitted_encoder(chosen: EncoderSettings, dataset: Dataset) -> Encoder:
    """An encoder with the statistics of its file, or of the data set's public part.

    Raises as `encoded_data`.
    """
    from fl_dp.tasks.features.encoded import fitted

    encoder = _unfitted(chosen, dataset.input_shape)
    if not chosen.public:
        return encoder
    digest = encoder_digest(chosen, dataset)
    return fitted(encoder, dataset, digest, project=chosen.project, shrink=chosen.shrink)

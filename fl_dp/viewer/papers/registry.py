"""Entry for the OpenDP deployments registry, at its third tier.

Read point by point against the registry's own schema, `schemas/deployments-schema.yaml` of
opendp/deployments-registry-data as of 15 July 2026: names, kinds, enumerations and required fields
of all tiers. It takes no other fields. Where the schema has a choice that only a person can make,
the value is no member of it, so that its check fails until somebody has chosen.
"""

from __future__ import annotations

from typing import Any

import yaml

from fl_dp import __version__
from fl_dp.statement import PrivacyStatement, describe_event
from fl_dp.statement.words import rounded_up

from .fields import TO_FILL
from .subject import Promised, Subject, guarantee, neighbours

_NO_WRAP = 1 << 20  # what is left to a person stays in one piece, to be searched for


def registry_entry(subject: Subject) -> str:
    """Return the entry as YAML; what a person must write says so in its value.

    Raises:
        ValueError: If the run promises nothing.
    """
    statement = subject.promise
    entry = {
        "url_slug": TO_FILL,
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": _basic(),
            "dp_variant": _variant(subject, statement),
            "privacy_loss": _loss(statement),
            "deployment_model": _model(subject, statement),
            "accounting": _accounting(statement),
            "implementation": _implementation(statement),
            "administrative": {
                "sources": f"fl-dp {__version__}; the run's privacy statement. {TO_FILL}: links",
                "notes": f"Draft by fl-dp {__version__}; `fl-dp ledger RUN` verifies its numbers.",
                "registry_authors": [TO_FILL],
            },
        },
    }
    text = yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=_NO_WRAP)
    return (
        f"# Draft by fl-dp {__version__}. {text.count(TO_FILL)} places are left to a person: "
        f"search for '{TO_FILL}'.\n{text}"
    )


def _basic() -> dict[str, Any]:
    return {
        "name": TO_FILL,
        "data_curators": [TO_FILL],
        "intended_use": TO_FILL,
        "data_product_type": "Machine learning model",
        "data_product_region": TO_FILL,
        "description": TO_FILL,
        "publication_date": TO_FILL,
        "data_product_sector": TO_FILL,
    }


def _variant(subject: Subject, statement: Promised) -> dict[str, Any]:
    return {
        "variant_name": "Approximate DP",
        "data_domain": f"{TO_FILL}. Task '{subject.setting('task.name')}' of "
        f"{statement.num_clients} clients",
        "unprotected_quantities": "; ".join(statement.not_covered),
    }


def _loss(statement: Promised) -> dict[str, Any]:
    parameters: dict[str, Any] = {"delta": statement.delta}
    if statement.quoted in statement.epsilon:
        parameters = {"epsilon": float(rounded_up(statement.best_epsilon))} | parameters
    return {
        "privacy_unit": statement.unit,
        "privacy_unit_details": f"{neighbours(statement)}. Adjacent datasets are at distance 1",
        "privacy_parameters": parameters,
        "privacy_parameters_details": f"Upper bounds, {guarantee(statement)}",
    }


# An enumeration of the schema; its Federated is defined nowhere and no entry has it.
_MODELS = {"central": "Central", "distributed": "Federated", "local": "Local"}


def _model(subject: Subject, statement: Promised) -> dict[str, Any]:
    return {
        "model_name": _MODELS.get(subject.setting("privacy.mode"), TO_FILL),
        "model_name_details": f"Federated learning. {statement.mechanism}. "
        f"Trusted: {statement.trusted}",
        "actors": f"Trusted: {statement.trusted}. The adversary {statement.adversary}. {TO_FILL}: "
        "who the server, the nodes and the users of the model are, and why each is trusted",
        "release_type": "Many releases",
        "release_type_details": f"One model a round, all charged together to a budget of epsilon "
        f"{statement.budget.epsilon:g} that does not reset. {TO_FILL}: whether the people's data "
        "is used again, and when",
        "data_source_type": TO_FILL,
        "data_source_type_details": TO_FILL,
        "access_type": "Non-interactive",
        "access_type_details": TO_FILL,
    }


def _accounting(statement: Promised) -> dict[str, Any]:
    released = ""
    if isinstance(statement, PrivacyStatement):
        each = (f"{count} x {describe_event(event)}" for event, count in statement.releases)
        released = f" Released: {'; '.join(each) or 'nothing'}."
    return {
        "post_processing": "The server's optimizer sees the private mean alone; what it computes "
        "is post-processing",
        "composition": f"{statement.rule}.{released}",
    }


def _implementation(statement: Promised) -> dict[str, Any]:
    randomness = "drawn by each client"
    if isinstance(statement, PrivacyStatement):
        randomness = "; ".join(statement.randomness)
    return {
        "preprocessing_and_hyperparameter_tuning": f"{TO_FILL}: pre-processing, exploration and "
        "how settings were chosen, and on which data; the statement does not cover a choice that "
        "was made on the clients' data",
        "mechanisms": f"{statement.mechanism}. Clipping norm {statement.clipping_norm:g}. "
        f"Implemented by fl-dp {__version__}. Randomness: {randomness}. Timing and network traffic "
        f"are not covered. {TO_FILL}: access controls on the data under protection; link to the "
        "code",
        "justification": f"{TO_FILL}: why this unit, this epsilon and this delta, and how that was "
        "validated",
    }

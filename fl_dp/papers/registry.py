"""Entry for the OpenDP deployments registry, at its third tier.

The fields are those of the tier-3 entries in the registry's public data, read in November 2026.
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
            "product": _product(),
            "dp_flavor": _flavor(subject, statement),
            "privacy_loss": _loss(statement),
            "model": _model(subject, statement),
            "accounting": _accounting(statement),
            "implementation": _implementation(subject, statement),
            "resources": {
                "sources": f"fl-dp {__version__}; the run's privacy statement. {TO_FILL}: links",
                "registry_authors": [TO_FILL],
            },
        },
    }
    text = yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=_NO_WRAP)
    return (
        f"# Draft by fl-dp {__version__}. {text.count(TO_FILL)} places are left to a person: "
        f"search for '{TO_FILL}'.\n{text}"
    )


def _product() -> dict[str, Any]:
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


def _flavor(subject: Subject, statement: Promised) -> dict[str, Any]:
    return {
        "name": "Approximate DP",
        "input_metric": neighbours(statement),
        "bound_on_input_distance": "1",
        "output_measure": "epsilon at delta (hockey-stick divergence)",
        "bound_on_output_distance": guarantee(statement),
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
        "privacy_unit_description": neighbours(statement),
        "privacy_parameters": parameters,
        "privacy_parameters_description": f"Upper bounds, {guarantee(statement)}",
    }


def _model(subject: Subject, statement: Promised) -> dict[str, Any]:
    names = {"central": "Central", "local": "Local", "distributed": "Distributed"}
    name = names.get(subject.setting("privacy.mode"), "Local")
    return {
        "model_name": name,
        "model_name_description": statement.mechanism,
        "actors": f"Trusted: {statement.trusted}. The adversary {statement.adversary}. {TO_FILL}: "
        "who the server, the nodes and the users of the model are",
        "release_type": "Many releases",
        "release_type_description": "One model a round, all of them charged together. "
        f"{TO_FILL}: whether the people's data is used again, and when",
        "data_source_type": TO_FILL,
        "data_source_type_description": TO_FILL,
        "access_type": "Non-interactive",
        "access_type_description": TO_FILL,
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


def _implementation(subject: Subject, statement: Promised) -> dict[str, Any]:
    randomness = "drawn by each client"
    if isinstance(statement, PrivacyStatement):
        randomness = "; ".join(statement.randomness)
    return {
        "pre_processing_eda_hyperparameter_tuning": f"{TO_FILL}: how settings were chosen, and on "
        "which data; the statement does not cover a choice that was made on the clients' data",
        "mechanisms": f"{statement.mechanism}. Clipping norm {statement.clipping_norm:g}. "
        f"Randomness: {randomness}. Timing and network traffic are not covered",
        "justification": f"{TO_FILL}: why this unit, this epsilon and this delta",
    }

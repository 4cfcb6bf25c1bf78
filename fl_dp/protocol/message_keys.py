"""Names in messages. Server and clients import them from here alone."""

from __future__ import annotations

WIRE = 7  # since 6: nodes answer no question for a noisy utility
"""Version of the messages between server and nodes; one more when the other end must follow."""

WIRE_KEY = "fl-dp-wire"
"""Config key of the identity query and of its answer: the sender's `WIRE`."""

INSTRUCTION_KEY = "fl-dp-round"
"""Config key of a train message: the JSON text of the `RoundInstruction`."""

RECORD_PLAN_KEY = "fl-dp-record-plan"
"""Config key: the JSON text of the `RecordPlan` that clients train by."""

COINS_SEED_KEY = "fl-dp-coins-seed"
"""Config key: a whole number from which clients' coins follow; without it from nothing."""

ENCODER_KEY = "fl-dp-encoder"
"""Config key of a train message: SHA-256 of the encoder whose vectors are trained on, if any."""

ROUNDS_KEY = "fl-dp-rounds"
"""Config key of the identity query: the most rounds that a node may be charged."""

MODEL_KEY = "fl-dp-model"
"""Config key of the identity query: the model's array forms, as `forms_to_json` writes them."""

SIMULATED_LEDGERS_KEY = "fl-dp-ledgers"
"""Config key: the folder of nodes' ledgers in a simulation; real nodes do not look at it."""

STATISTIC_QUERY_KEY = "fl-dp-query"
"""Config key: the JSON text of the `Query`."""

STATISTIC_VALUES_KEY = "fl-dp-values"
"""Config key: the name of the values that a statistic is about."""

NOISED_KEY = "fl-dp-noised"
"""Name of a reply's record of its noise (`applied_noise`)."""

GATE_KEY = "fl-dp-gate-says"
"""Name of the record in a gate's reply that states the enforcement of its policy."""

METRICS_KEY = "metrics"
"""Name of a reply's one MetricRecord."""

UTILITY_METRIC = "fl-dp-utility"
"""A unit's utility for the selection, in the reply's MetricRecord; as private as the update."""

SCALARS_METRIC = "fl-dp-scalars"
"""A node's sums of its units' encoded scalars, in grid steps, in the reply's MetricRecord."""

CONTRIBUTION_METRIC = "fl-dp-contribution"
"""Reply metric: `query.contribution` of each hosted unit, one after the other."""

STATISTIC_ACTION = "fl_dp_statistic"
IDENTITY_ACTION = "fl_dp_identity"
"""Actions of QUERY messages (`query.<action>`)."""

"""A wrong input has one sentence and one option, wherever it is written."""

from __future__ import annotations

import pytest
from command_line import call

from fl_dp.app.compose import ConfigError, compose_settings
from fl_dp.viewer.dashboard.start_form import WrongForm, read_form

# Overrides, the last of which is wrong. Its key is the option, unless another stands behind `->`.
WRONG = """
rounds=0
rounds=many
rounds=1.5
rounds=true
seed=-1
round_timeout=0
roster_timeout=-1
weight_cap=0
weight_cap=inf
total_weight=3
report=pdf
task=digit
task.num_clients=0
task.num_clients=few
task.partition=fair
task.alpha=0
task.validation=maybe
task.records_per_client=0
task.shards_per_client=0
model=cnm
model.hidden=0
model.lora_rank=0
model.lora_train=[fc]
model.shared=[]
features=scatter
features.public=5
features=scattering features.project=0
privacy=centrall
privacy.epsilon=0
privacy.epsilon=inf
privacy.epsilon=much
privacy.delta=2
privacy.delta=0
privacy.noise_multiplier=-1
privacy.unit=person
privacy.neighboring_relation=replace
privacy.contribution_check=perhaps
privacy.max_records=3
privacy=correlated privacy.groups=1
dp_sgd=yes_please
dp_sgd.epsilon=2
dp_sgd=on dp_sgd.epsilon=0
dp_sgd=on dp_sgd.clipping_norm=0
dp_sgd=on dp_sgd.steps=0
clipping=adaptiv
clipping.norm=-1
clipping.norm=null
clipping=adaptive clipping.learning_rate=9
clipping=adaptive clipping.target_quantile=2
clipping=per_layer clipping.norms=[1,-1]
selection=coins
selection.sampling_rate=2
selection.sampling_rate=0
selection=public selection.participation_cap=0
schedule=cosinus
schedule=linear schedule.floor=2
schedule=linear schedule.spend=never
schedule=custom -> schedule.weights
metrics.accuracy=[0,2]
metrics.loss=[3,1]
metrics.public=[speed]
metrics.private_epsilon=-1
dp_sgd=on metrics.private_epsilon=1
server_optimizer=adam
server_optimizer.learning_rate=0
server_optimizer.momentum=1
server_optimizer=fedadam server_optimizer.tau=0
client.learning_rate=-1
client.epochs=0
client.batch_size=0
compression.up=zip
compression.bits=99
compression.fraction=0
privacy=correlated privacy.separation=0
privacy=distributed privacy.secure_sum.bits=3
privacy=distributed privacy.secure_sum.degree=0
privacy=distributed selection=fixed
dp_sgd=on dp_sgd.delta=1
dp_sgd=on dp_sgd.physical_batch_size=0
privacy=buffered selection=buffered selection.staleness_power=-1
selection=exponential selection.utility=speed
selection=truncated_poisson selection.max_cohort=0
schedule=linear schedule.levels=0
server_optimizer=fedyogi server_optimizer.beta_2=-0.5
server_optimizer=fedadagrad server_optimizer.tau=-1
task.records_per_client=5 task.partition=shards -> task.records_per_client
"""


@pytest.mark.parametrize("line", WRONG.strip().splitlines())
def test_command_line_form_and_python_say_one_sentence_at_one_option(line: str) -> None:
    written, _, named = line.partition(" -> ")
    overrides = written.split()
    key = named or overrides[-1].partition("=")[0]
    with pytest.raises(ConfigError) as python:
        compose_settings(overrides)
    sentence = str(python.value)
    assert len(sentence.splitlines()) == 1
    assert any(f".{key}".endswith(f".{option}") for option in python.value.options)
    with pytest.raises(WrongForm) as form:
        read_form(dict(override.split("=", 1) for override in overrides))
    assert [(wrong.field, wrong.text) for wrong in form.value.fields] == [(key, sentence)]
    command = call("plan", *overrides)
    assert command.exit_code == 2
    assert " ".join(command.stderr.split()).endswith(f"error: {' '.join(sentence.split())}")

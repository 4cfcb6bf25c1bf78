"""What strategies try before the first charge: the model, the server optimizer, and the nodes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, RecordDict

from fl_dp.codec import encode_text
from fl_dp.plan import Plan
from fl_dp.plan.noise_left import noise_left
from fl_dp.promise import Enforcement
from fl_dp.protocol.introduction import Ability, forms_of, forms_to_json
from fl_dp.protocol.message_keys import INSTRUCTION_KEY, MODEL_KEY, ROUNDS_KEY
from fl_dp.updates import VectorLayout

from .companions import Beginning, Preparation
from .log import Log
from .modes.by_plan import mode_class_of
from .node_answers import Answers
from .rehearsal import rehearse, require_gates_at_all_or_none
from .round_evaluation import ChargedEvaluation
from .round_loop import LoopOptions
from .server_optimizer import ServerOptimizer
from .unfit_model import (
    float64_error_of,
    require_finite,
    require_memory,
    require_no_running_statistics,
    require_no_tied_rest,
)

logger = logging.getLogger("flwr.fl_dp")


@dataclass(frozen=True, kw_only=True)
class TrainingRehearsal(Preparation):
    """A rehearsal of any training.

    Attributes:
        evaluation: Clients' evaluation of each released model; None: nobody is asked.
    """

    optimizer: ServerOptimizer
    options: LoopOptions
    log: Log
    evaluation: ChargedEvaluation | None = None

    def of_model(self, model: ArrayRecord, layout: VectorLayout, *, is_first: bool) -> None:
        """Refuse a model that can't be trained. See `Preparation.of_model`."""
        trained = layout.only_released(model)
        require_finite(trained)
        if is_first:
            require_no_tied_rest(model, trained)

    def of_nodes(self, beginning: Beginning) -> Answers:
        """Try the server optimizer, then ask nodes. See `Preparation.of_nodes`."""
        evaluation, done = self.evaluation, beginning.rounds_done
        if beginning.evaluate_config and evaluation is None:
            self.log.warn_once("evaluate_config is not used: clients are not asked to evaluate")
        config = self.options.with_record_plan(beginning.train_config)
        if done < beginning.num_rounds:
            self.optimizer.rehearse(
                done + 1,
                beginning.layout.only_released(beginning.model),
                config,
                beginning.nodes,
                metrics=self.metrics,
                evaluated=[] if evaluation is None else evaluation.names,
                saved=self.options.after_round is not None,
            )
        answers = rehearse(
            beginning.federation,
            beginning.nodes,
            config=config | {MODEL_KEY: forms_to_json(forms_of(beginning.model)), **self.config},
            needs=self.needs,
            layout=beginning.layout,
            everyone=beginning.needs_everyone,
            round_timeout=beginning.lifetime,
        )
        named = answers.enforcements(beginning.nodes) == {Enforcement.NAMED_APP}
        if self.options.record_plan is not None and named:
            logger.info(
                "All %d nodes run the one app that their owners name, as they say: its DP-SGD "
                "keeps the promise to records",
                len(beginning.nodes),
            )
        return answers

    @property
    def needs(self) -> set[Ability]:
        """Abilities that every client's app needs."""
        needs = set(self.options.selection.needs)
        if self.options.weight_cap is not None:
            needs.add(Ability.WEIGHTS)
        return needs

    @property
    def metrics(self) -> Sequence[str]:
        """Names of clients' metrics that each round releases."""
        return ()

    @property
    def config(self) -> dict[str, Any]:
        """What a node needs, besides the model, to say whether it takes part."""
        return {}


@dataclass(frozen=True, kw_only=True)
class PrivateRehearsal(TrainingRehearsal):
    """A rehearsal of a plan's training."""

    plan: Plan

    def of_model(self, model: ArrayRecord, layout: VectorLayout, *, is_first: bool) -> None:
        """Refuse what noise ruins, too. See `Preparation.of_model`."""
        trained = layout.only_released(model)
        require_no_running_statistics(trained)
        require_memory(trained)
        super().of_model(model, layout, is_first=is_first)

    def of_nodes(self, beginning: Beginning) -> Answers:
        """Tell how much noise is left, and ask nodes. See `Preparation.of_nodes`."""
        if warning := float64_error_of(self.plan, beginning.layout):
            self.log.warn_once(warning)
        noise = noise_left(self.plan, beginning.layout.size)
        logger.info(noise.in_words)
        if noise.warning is not None:
            self.log.warn_once(noise.warning)
        answers = super().of_nodes(beginning)
        if self.plan.noise is not None:
            require_gates_at_all_or_none(answers)
        enforcement = answers.enforcement(beginning.nodes)
        if not self.plan.trusts_server and enforcement is not Enforcement.APP:
            logger.info(
                "All %d nodes are behind gates, as they say: the promise is %s",
                len(beginning.nodes),
                enforcement,
            )
        if self.evaluation is not None and not answers.untried:  # else nobody can tell more
            content = RecordDict({"arrays": beginning.model})
            question = self.evaluation.question(content, beginning.model)
            question.rehearse(
                beginning.federation, beginning.nodes, trusts_server=self.plan.trusts_server
            )
        return answers

    @property
    def needs(self) -> set[Ability]:
        """Abilities that every client's app needs."""
        return super().needs | mode_class_of(self.plan).needs(self.plan)

    @property
    def metrics(self) -> Sequence[str]:
        """Names of the metrics that the plan releases."""
        return [metric.name for metric in self.plan.release.metrics]

    @property
    def config(self) -> dict[str, Any]:
        """Instructions that an owner may not allow."""
        config = {ROUNDS_KEY: str(self.plan.charged_rounds)}
        asked = self.options.instruction(1)
        instruction = mode_class_of(self.plan).rehearsal_instruction(self.plan, asked)
        if instruction is not None:
            config[INSTRUCTION_KEY] = encode_text(instruction)
        return config

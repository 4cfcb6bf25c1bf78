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
from fl_dp.promise import Enforcement, weakest
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
    """A rehearsal of all that a training needs.

    Attributes:
        plan: None: the training promises nothing to clients.
        evaluation: Clients' evaluation of each released model; None: nobody is asked.
    """

    plan: Plan | None
    optimizer: ServerOptimizer
    options: LoopOptions
    log: Log
    evaluation: ChargedEvaluation | None = None

    def of_model(self, model: ArrayRecord, layout: VectorLayout, *, is_first: bool) -> None:
        """Refuse a model that can't be trained, or that noise ruins. See `Preparation.of_model`."""
        trained = layout.only_released(model)
        if self.plan is not None:
            require_no_running_statistics(trained)
            require_memory(trained)
        require_finite(trained)
        if is_first:
            require_no_tied_rest(model, trained)

    def of_nodes(self, beginning: Beginning) -> Answers:
        """Try the server optimizer, then ask nodes. See `Preparation.of_nodes`."""
        plan, evaluation, layout = self.plan, self.evaluation, beginning.layout
        federation, nodes, done = beginning.federation, beginning.nodes, beginning.rounds_done
        if beginning.start.evaluate_config and evaluation is None:
            self.log.warn_once("evaluate_config is not used: clients are not asked to evaluate")
        if plan is not None:
            self._tell_noise(plan, layout)
        config = self.options.with_record_plan(beginning.start.train_config)
        if done < beginning.start.num_rounds:
            self.optimizer.rehearse(
                done + 1,
                layout.only_released(beginning.model),
                config,
                nodes,
                metrics=[] if plan is None else [metric.name for metric in plan.release.metrics],
                evaluated=[] if evaluation is None else evaluation.names,
                saved=self.options.after_round is not None,
            )
        answers = rehearse(
            federation,
            nodes,
            config=config | {MODEL_KEY: forms_to_json(forms_of(beginning.model)), **self._asked()},
            needs=self._needs(),
            layout=layout,
            everyone=beginning.needs_everyone,
            round_timeout=beginning.lifetime,
        )
        if plan is not None and plan.noise is not None:
            require_gates_at_all_or_none(answers)
        self._tell_enforcement(answers, nodes)
        # Else nobody can tell more.
        if plan is not None and evaluation is not None and not answers.untried:
            content = RecordDict({"arrays": beginning.model})
            question = evaluation.question(content, beginning.model)
            question.rehearse(federation, nodes, trusts_server=plan.trusts_server)
        return answers

    def _tell_noise(self, plan: Plan, layout: VectorLayout) -> None:
        noise = noise_left(plan, layout.size)
        logger.info(noise.in_words)
        for warning in (float64_error_of(plan, layout), noise.warning):
            if warning is not None:
                self.log.warn_once(warning)

    def _tell_enforcement(self, answers: Answers, nodes: Sequence[int]) -> None:
        if self.options.dp_sgd and answers.enforcements(nodes) == {Enforcement.NAMED_APP}:
            logger.info(
                "All %d nodes run the one app that their owners name, as they say: its DP-SGD "
                "keeps the promise to records",
                len(nodes),
            )
        if self.plan is None or self.plan.trusts_server:
            return
        if (level := weakest(answers.enforcements(nodes))) is not Enforcement.APP:
            logger.info(
                "All %d nodes are behind gates, as they say: the promise is %s", len(nodes), level
            )

    def _needs(self) -> set[Ability]:
        """Abilities that every client's app needs."""
        needs = set(self.options.selection.needs)
        if self.options.weight_cap is not None:
            needs.add(Ability.WEIGHTS)
        return needs if self.plan is None else needs | mode_class_of(self.plan).needs(self.plan)

    def _asked(self) -> dict[str, Any]:
        """Instructions that an owner may not allow."""
        if self.plan is None:
            return {}
        config = {ROUNDS_KEY: str(self.plan.charged_rounds)}
        asked = self.options.instruction(1)
        instruction = mode_class_of(self.plan).rehearsal_instruction(self.plan, asked)
        if instruction is not None:
            config[INSTRUCTION_KEY] = encode_text(instruction)
        return config

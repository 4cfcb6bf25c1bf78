"""LoRA on a sentence encoder under DP-SGD, beside a linear head on the same encoder, frozen.

    python benchmarks/lora.py                                # the whole grid, hours on two cores
    python benchmarks/lora.py --epsilons 8 --silos 1 --seeds 0 --records 2000 --steps 10

Each record of `movies` is protected, at delta 1e-5. Both arms read the same first tokens, and take
the same steps: a Poisson sample, clipped gradients of single records, noise, Adam. Adapters of
rank 8 are on queries and values of all layers; the head is trained with them.

One silo trains by DP-SGD as `OpacusClient` does. Ten silos of which nobody is trusted take the same
steps; their shares of noise are enough without those of two, so all together are 1.118 times it.
Without secure sums and messages, which change no number.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fl_dp.accounting import PrivacyBudget
from fl_dp.clients import DPSGD, WithFullMask
from fl_dp.clients.per_record.dp_sgd import train_with_dp_sgd
from fl_dp.plan import RecordPlan
from fl_dp.tasks.datasets import DataSource, load_dataset
from fl_dp.tasks.datasets.text_bytes import texts_of
from fl_dp.tasks.features.sentence_encoder import Sentences, encoder_files
from fl_dp.tasks.training import evaluate

DELTA, NORM, RANK = 1e-5, 1.0, 8
STEP_SIZE = {"lora": 1e-2, "head": 1e-1}  # Adam's
MORE_NOISE = {1: 1.0, 10: math.sqrt(10 / 8)}  # by the number of silos


class Classifier(nn.Module):
    """A transformer and a linear head on the mean of its last states."""

    def __init__(self, body: nn.Module, width: int, num_classes: int) -> None:
        """Put them together."""
        super().__init__()
        self.body = WithFullMask(body, causal=False)
        self.head = nn.Linear(width, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits `(n, num_classes)` for tokens `(n, length)`, -1 where there is none."""
        mask = tokens >= 0
        states = self.body(input_ids=tokens.clamp(min=0), attention_mask=mask).last_hidden_state
        means = (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        logits: Tensor = self.head(means)
        return logits


@dataclass(kw_only=True)
class Part:
    """Tokens `(n, length)` and labels `(n,)`, and the encoder's files."""

    files: list[Path]
    tokens: Tensor
    labels: Tensor

    def inputs(self, arm: str) -> Tensor:
        """What an arm's model reads."""
        return self.tokens if arm == "lora" else self._vectors

    @cached_property
    def _vectors(self) -> Tensor:
        """Vectors `(n, width)` of the frozen encoder."""
        network = Sentences(*self.files).eval().requires_grad_(False)
        return functional.normalize(torch.cat([*map(network.means, torch.split(self.tokens, 64))]))


def parts_of(
    files: list[Path], source: DataSource, *, records: int | None, length: int
) -> dict[str, Part]:
    """The training and the test part of a task."""
    tokenizer = Tokenizer.from_file(str(files[2]))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    data = load_dataset(source)
    parts = {}
    for name, rows in (("train", slice(0, records)), ("test", slice(None))):
        encoded = tokenizer.encode_batch(texts_of(data.features(rows, name)))
        tokens = torch.tensor([text.ids for text in encoded])
        tokens[torch.tensor([text.attention_mask for text in encoded]) == 0] = -1
        labels = torch.from_numpy(data.labels(rows, name))
        parts[name] = Part(files=files, tokens=tokens, labels=labels)
    return parts


def model_of(arm: str, files: list[Path], *, num_classes: int, seed: int) -> nn.Module:
    """An arm's first model."""
    body = Sentences(*files).body
    width = body.config.hidden_size
    torch.manual_seed(seed)
    if arm == "head":
        return nn.Linear(width, num_classes)
    adapters = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=["query", "value"])
    return Classifier(get_peft_model(body, adapters), width, num_classes)


def trained(model: nn.Module, part: Part, arm: str, plan: RecordPlan, step_size: float) -> None:
    """Train a model in place, each record protected by the plan."""
    data = TensorDataset(part.inputs(arm), part.labels)
    how = DPSGD(
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=step_size),
        expected_batch_size=plan.sampling_rate * len(data),
        example=(torch.ones_like(part.inputs(arm)[:2]), torch.zeros_like(part.labels[:2])),
    )
    train_with_dp_sgd(model, DataLoader(data), plan=plan, how=how)


def plan_of(epsilon: float, silos: int, *, rate: float, steps: int) -> RecordPlan:
    """The steps and their noise; of an infinite epsilon the same steps without noise."""
    plan = RecordPlan.calibrate(
        PrivacyBudget(epsilon=min(epsilon, 8.0), delta=DELTA),
        sampling_rate=rate,
        steps=steps,
        participations=1,
        clipping_norm=NORM,
    )
    noise = MORE_NOISE[silos] * plan.noise_multiplier if math.isfinite(epsilon) else 1e-6
    return replace(plan, noise_multiplier=noise)


def main() -> None:
    """Print a line of JSON per training."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="movies")
    parser.add_argument("--data-dir", help="of the task; by default the user's cache")
    parser.add_argument("--folder", help="of the encoder; by default its package's")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 3.0, 8.0, math.inf])
    parser.add_argument("--silos", type=int, nargs="+", choices=[*MORE_NOISE], default=[1, 10])
    parser.add_argument("--arms", nargs="+", choices=[*STEP_SIZE], default=[*STEP_SIZE])
    parser.add_argument("--step-size", type=float, help="by default the arm's")
    parser.add_argument("--rate", type=float, default=0.2, help="of the records, in a step")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--records", type=int, help="the first so many; by default all")
    parser.add_argument("--length", type=int, default=32, help="tokens of a text")
    asked = parser.parse_args()
    files = encoder_files(asked.folder)
    source = DataSource(asked.task, data_dir=asked.data_dir)
    parts = parts_of(files, source, records=asked.records, length=asked.length)
    train, test = parts["train"], parts["test"]
    grid = [*itertools.product(asked.seeds, asked.epsilons, asked.silos, asked.arms)]
    for number, (seed, epsilon, silos, arm) in enumerate(grid, start=1):
        print(f"{number} of {len(grid)}", file=sys.stderr)
        model = model_of(arm, files, num_classes=2, seed=seed)
        began, load = time.perf_counter(), os.getloadavg()[0]
        step_size = asked.step_size or STEP_SIZE[arm]
        plan = plan_of(epsilon, silos, rate=asked.rate, steps=asked.steps)
        trained(model, train, arm, plan, step_size)
        minutes = (time.perf_counter() - began) / 60
        _, accuracy = evaluate(model, test.inputs(arm), test.labels)
        line = {
            "arm": arm,
            "silos": silos,
            "epsilon": epsilon,
            "seed": seed,
            "records": len(train.labels),
            "rate": asked.rate,
            "steps": asked.steps,
            "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "step_size": step_size,
            "accuracy": round(accuracy, 4),
            "minutes": round(minutes, 1),
            "load_before_and_after": [load, os.getloadavg()[0]],
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

"""Trains the first weights of `experiment=private_fine_tuning` on two plays that are public.

python examples/private_fine_tuning/pretrain.py first.safetensors

Nothing is private here: AdamW, some minutes of one processor.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional

from fl_dp.app.compose import compose_settings
from fl_dp.tasks.datasets import DataSource, load_dataset
from fl_dp.tasks.models import build_model
from fl_dp.tasks.training import evaluate

PLAYS = ("hamlet: *", "twelfth_night: *")
STEPS, RECORDS, RATE = 2200, 32, 0.005


def main(file: Path) -> None:
    """Train, and write the weights."""
    settings = compose_settings(["experiment=private_fine_tuning"])
    public = load_dataset(DataSource("shakespeare", data_dir=settings.task.data_dir, clients=PLAYS))
    name, hidden = settings.model.name, settings.model.hidden
    model = build_model(name, hidden=hidden, **public.form._asdict(), seed=0)
    x = torch.tensor(public.features(slice(None)))
    y = torch.tensor(public.labels(slice(None)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 50) * (1 - step / STEPS) ** 0.5
    )
    generator = torch.Generator().manual_seed(0)
    for step in range(1, STEPS + 1):
        rows = torch.randint(0, len(y), (RECORDS,), generator=generator)
        # The model brings the sum over a window's characters; the mean is what the rate is for.
        loss = functional.cross_entropy(model(x[rows]), y[rows]) / x.shape[1]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            print(f"step {step} of {STEPS}: {loss.item():.3f} nats a character", flush=True)
    test = public.features(slice(None), "test"), public.labels(slice(None), "test")
    print(f"{evaluate(model, *test)[1]:.1%} of the public test part")
    save_file(model.state_dict(), file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

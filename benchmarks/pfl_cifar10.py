"""CIFAR-10 as pfl-research benchmarks it: both frameworks' accuracy at equal noise.

    python benchmarks/pfl_cifar10.py [--rounds 100] [--seeds 0] [--json]

Their published configuration (`benchmarks/image_classification/configs/baseline.yaml`, with DP):
50,000 images dealt to 1,000 clients of 50, cohorts of 50, their CNN of 1.6 M parameters, one local
epoch in batches of 10 at rate 0.1, central rate 1, every client weighs 1, clipping norm 0.4. Their
noise is that of epsilon 2 and delta 1e-6 over 1,500 rounds for cohorts of 1,000 out of a million
clients, scaled down to a cohort of 50. Ours adds the same on a sum of as many, and says what it is
worth to the actual 1,000 clients. Both sides run fewer rounds than theirs.

Both train from the same weights on the same clients, one process after the other; pfl-research in
an environment of its own. Theirs draws 50 clients with replacement, ours flips coins.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

NAMES = ("train_x", "train_y", "test_x", "test_y")
PFL = "pfl[pytorch]==0.6.0"
CLIENTS, COHORT, BATCH_SIZE = 1000, 50, 10
LOCAL_RATE, CLIPPING_NORM = 0.1, 0.4
EPSILON, DELTA, PUBLISHED_ROUNDS = 2.0, 1e-6, 1500
NOISE_COHORT, POPULATION = 1000, 1_000_000


def their_cnn(seed: int) -> nn.Sequential:
    """pfl-research's `simple_cnn` for CIFAR-10, channels first: 1,626,442 parameters."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(14 * 14 * 64, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return model


class Images:
    """The images, in memory once for all processes, and whose they are."""

    def __init__(self, folder: Path, *, clients: int, seed: int) -> None:
        """Deal the training part to so many clients."""
        read = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in NAMES]
        self._x, self._y, self._test_x, self._test_y = read
        order = np.random.default_rng(seed).permutation(len(self._y))
        self._rows = np.sort(order.reshape(clients, -1), axis=1)

    def of(self, client: int) -> tuple[Tensor, Tensor]:
        """The images and labels of one client."""
        rows = self._rows[client]
        return torch.from_numpy(self._x[rows]), torch.from_numpy(self._y[rows])

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """Accuracy on the test part."""
        model.eval()
        device = next(model.parameters()).device
        right = 0
        for at in range(0, len(self._test_y), 500):
            some = torch.from_numpy(np.array(self._test_x[at : at + 500])).to(device)
            labels = torch.from_numpy(np.array(self._test_y[at : at + 500])).to(device)
            right += int((model(some).argmax(1) == labels).sum())
        return right / len(self._test_y)


class Pace:
    """Rounds and clients of a training by the clock, from the end of the first round on.

    Attributes:
        clients: Number trained so far; the trainer counts them.
    """

    def __init__(self, seconds: float) -> None:
        """Measure for as long, or until the training ends."""
        self.clients = 0
        self._seconds = seconds
        self._ends: list[float] = []
        self._clients: list[int] = []

    def round_ended(self) -> bool:
        """Note the end of a round; return whether it was measured for long enough."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._ends.append(time.perf_counter())
        self._clients.append(self.clients)
        return len(self._ends) > 1 and self._ends[-1] - self._ends[0] >= self._seconds

    def measured(self) -> dict[str, float]:
        """Rounds and clients a second; nothing if a single round ended."""
        rounds = len(self._ends) - 1
        if rounds < 1:
            return {}
        seconds = self._ends[-1] - self._ends[0]
        return {
            "rounds": rounds,
            "seconds_per_round": seconds / rounds,
            "clients_per_s": (self._clients[-1] - self._clients[0]) / seconds,
        }


class _LongEnough(Exception):
    """The pace is measured."""


def train_with_pfl(images: Images, task: dict[str, Any], pace: Pace) -> float:
    """Train with pfl-research, on the GPU where PyTorch sees one; return the accuracy."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
    from pfl_units import with_loss

    class Paced(TrainingProcessCallback):  # type: ignore[misc]  # pfl has no types
        def after_central_iteration(self, *args: Any, **kwargs: Any) -> tuple[bool, Metrics]:
            pace.clients += task["cohort"]
            return pace.round_ended(), Metrics()

    np.random.seed(task["seed"])
    network = with_loss(their_cnn(task["seed"]))
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    sampler = get_user_sampler("random", range(task["clients"]))
    dataset = FederatedDataset(lambda user: PyTorchTensorDataset(images.of(user)), sampler)
    postprocessors: list[Any] = [WeightByUser()]
    if task["private"]:
        gaussian = GaussianMechanism(CLIPPING_NORM, task["noise_multiplier"])
        postprocessors.append(CentrallyAppliedPrivacyMechanism(gaussian))
    FederatedAveraging().run(
        backend=SimulatedBackend(
            training_data=dataset, val_data=dataset, postprocessors=postprocessors
        ),
        model=model,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=task["rounds"],
            evaluation_frequency=task["rounds"] + 1,
            train_cohort_size=task["cohort"],
            val_cohort_size=0,
        ),
        model_train_params=NNTrainHyperParams(
            local_batch_size=BATCH_SIZE, local_num_epochs=1, local_learning_rate=LOCAL_RATE
        ),
        callbacks=[Paced()],
    )
    return images.accuracy(network)


def train_with_ours(images: Images, task: dict[str, Any], pace: Pace) -> float:
    """Train with fl-dp in one process, on the GPU where PyTorch sees one; return the accuracy.

    With privacy all clients are on one simulated node, which sums their clipped updates. Without
    it nobody sums before the server, so each client is a node of its own.
    """
    from flwr.app import Array, ArrayRecord, Context
    from flwr.client import NumPyClient
    from flwr.serverapp import Grid, ServerApp

    from fl_dp import PrivacyBudget, PrivacyLedger
    from fl_dp.accounting import PoissonSampling
    from fl_dp.app import simulate
    from fl_dp.clients import NodeUnits, numpy_client_app
    from fl_dp.clients.node_config import PARTITION_ID_KEY
    from fl_dp.mechanisms import FixedClipping
    from fl_dp.model_arrays import get_arrays, set_arrays
    from fl_dp.plan import CentralPlan
    from fl_dp.strategies import DPFedAvg, LawSelection, UnprotectedFedAvg
    from fl_dp.tasks.device import training_device

    clients, rate = task["clients"], task["cohort"] / task["clients"]
    device = training_device()
    model = their_cnn(task["seed"]).to(device)
    reached = 0.0

    class OfOneClient(NumPyClient):
        def __init__(self, client: int) -> None:
            self._client = client

        def fit(self, parameters: Any, config: Any) -> tuple[Any, int, dict[str, Any]]:
            pace.clients += 1
            set_arrays(model, parameters)
            model.train()
            x, y = (tensor.to(device) for tensor in images.of(self._client))
            optimizer = torch.optim.SGD(model.parameters(), lr=LOCAL_RATE)
            for batch in torch.split(torch.randperm(len(y), device=device), BATCH_SIZE):
                optimizer.zero_grad()
                torch.autograd.backward(functional.cross_entropy(model(x[batch]), y[batch]))
                optimizer.step()
            return list(get_arrays(model).values()), len(y), {}

    def paced(server_round: int, arrays: ArrayRecord) -> None:
        if server_round > 0 and pace.round_ended():
            raise _LongEnough

    def train(strategy: DPFedAvg | UnprotectedFedAvg, grid: Grid) -> None:
        start = ArrayRecord({name: Array(values) for name, values in get_arrays(model).items()})
        with contextlib.suppress(_LongEnough):
            arrays = strategy.start(
                grid, start, num_rounds=task["rounds"], evaluate_fn=paced
            ).arrays
            set_arrays(model, arrays.to_numpy_ndarrays())

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        nonlocal reached
        if task["private"]:
            plan = CentralPlan(
                budget=PrivacyBudget(epsilon=1.0, delta=DELTA),
                rounds=task["rounds"],
                num_clients=clients,
                sampling=PoissonSampling(sampling_rate=rate),
                clipping=FixedClipping(norm=CLIPPING_NORM),
                units_per_node=clients,
                contribution_check=False,  # which would add to the noise
                noise_multiplier=task["noise_multiplier"],
            ).with_spent_budget()
            print(f"epsilon of clients that are there: {plan.budget.epsilon:.4g}", file=sys.stderr)
            with (
                tempfile.TemporaryDirectory() as folder,
                PrivacyLedger.open(Path(folder) / "ledger.db", plan) as ledger,
            ):
                train(DPFedAvg(plan=plan, ledger=ledger), grid)
        else:
            train(
                UnprotectedFedAvg(selection=LawSelection(PoissonSampling(sampling_rate=rate))), grid
            )
        reached = images.accuracy(model)

    def alone(context: Context) -> OfOneClient:
        return OfOneClient(int(context.node_config[PARTITION_ID_KEY]))

    if task["private"]:
        units = NodeUnits(client_fn=lambda _, unit: OfOneClient(unit), count=lambda *_: clients)
        simulate(server, numpy_client_app(alone, units=units), num_nodes=1)
    else:
        simulate(server, numpy_client_app(alone), num_nodes=clients)
    return reached


FRAMEWORKS = {"fl-dp": train_with_ours, "pfl-research": train_with_pfl}


def prepare(folder: Path) -> None:
    """Write the images where both find them."""
    from fl_dp.tasks.datasets import load_dataset

    if (folder / "test_y.npy").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    cifar10 = load_dataset("cifar10")
    for part in ("train", "test"):
        np.save(folder / f"{part}_x.npy", cifar10.features(slice(None), part))
        np.save(folder / f"{part}_y.npy", cifar10.labels(slice(None), part))


def published_noise() -> float:
    """The noise multiplier on a sum of `COHORT`."""
    from fl_dp.accounting import calibrate_noise_multiplier

    of_a_million = calibrate_noise_multiplier(
        EPSILON, DELTA, sampling_rate=NOISE_COHORT / POPULATION, rounds=PUBLISHED_ROUNDS
    )
    return of_a_million * COHORT / NOISE_COHORT


def done(task: dict[str, Any]) -> dict[str, float]:
    """Do what a process of its own is asked for; return accuracy, seconds and pace."""
    torch.set_num_threads(1)
    images = Images(Path(task["folder"]), clients=task["clients"], seed=task["seed"])
    pace = Pace(task["seconds"])
    begun = time.perf_counter()
    accuracy = FRAMEWORKS[task["framework"]](images, task, pace)
    return {"accuracy": accuracy, "seconds": time.perf_counter() - begun, **pace.measured()}


def run(framework: str, task: dict[str, Any]) -> dict[str, float]:
    """Train in a process of its own; return accuracy, seconds and pace."""
    from peers import CACHE, environment

    python = Path(sys.executable)
    if framework == "pfl-research":
        torch_here = version("torch").partition("+")[0]
        python = environment(framework, [PFL, f"torch=={torch_here}"], CACHE)
    process = subprocess.run(
        [str(python), __file__, "--task", json.dumps({"framework": framework, **task})],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
        check=True,
    )
    results: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return results


def main() -> None:
    """Print a table of Markdown, or JSON with `--json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100, help="of both (published: 1500)")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0], help="of weights and split")
    parser.add_argument("--frameworks", nargs="*", choices=FRAMEWORKS, default=list(FRAMEWORKS))
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task is not None:
        print(json.dumps(done(json.loads(options.task))))
        return
    from peers import CACHE

    folder = CACHE / "cifar10"
    prepare(folder)
    shared = {
        "folder": str(folder),
        "private": True,
        "clients": CLIENTS,
        "cohort": COHORT,
        "seconds": math.inf,  # all rounds
        "rounds": options.rounds,
        "noise_multiplier": published_noise(),
    }
    results = {
        name: [run(name, {**shared, "seed": seed}) for seed in options.seeds]
        for name in options.frameworks
    }
    if options.json:
        print(json.dumps({**shared, "results": results}, indent=2))
        return
    print(f"noise multiplier {shared['noise_multiplier']:.4g} on sums of {COHORT}")
    print("| framework | rounds | accuracy of each seed | mean | seconds |\n|---|---|---|---|---|")
    for name, runs in results.items():
        accuracies = [run["accuracy"] for run in runs]
        listed = ", ".join(f"{accuracy:.4f}" for accuracy in accuracies)
        seconds = ", ".join(f"{run['seconds']:.0f}" for run in runs)
        mean = statistics.mean(accuracies)
        print(f"| {name} | {options.rounds} | {listed} | {mean:.4f} | {seconds} |")


if __name__ == "__main__":
    main()

"""CIFAR-10 as pfl-research benchmarks it: both frameworks' accuracy and minutes at equal noise.

    python benchmarks/pfl_cifar10.py --rounds 1500 [--seeds 0] [--made-up] [--json]

Their published configuration (`benchmarks/image_classification/configs/baseline.yaml`, with DP):
50,000 images dealt to 1,000 clients of 50, cohorts of 50, their CNN of 1.6 M parameters, one local
epoch in batches of 10 at rate 0.1, central rate 1, every client weighs 1, clipping norm 0.4. Their
noise is that of epsilon 2 and delta 1e-6 over 1,500 rounds for cohorts of 1,000 out of a million
clients, scaled down to a cohort of 50. Ours adds the same on a sum of as many, and the table says
what it is worth to the actual 1,000 clients.

Both train from the same weights on the same clients, one process after the other, on the GPU where
PyTorch sees one; pfl-research in an environment of its own unless it is installed here. Theirs
draws 50 clients with replacement, ours flips coins. `--made-up` needs no images of CIFAR-10.
"""

from __future__ import annotations

import argparse
import contextlib
import copyreg
import importlib.util
import json
import logging
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

    from fl_dp.plan import CentralPlan

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
    """The images, on the device that trains, and whose they are."""

    def __init__(self, folder: Path, *, clients: int, seed: int) -> None:
        """Deal the training part: to 1,000 clients once, to more again and again."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._x, self._y, self._test_x, self._test_y = (
            torch.from_numpy(np.load(folder / f"{name}.npy")).to(device) for name in NAMES
        )
        order = np.random.default_rng(seed).permutation(len(self._y))
        records = max(1, len(order) // min(clients, CLIENTS))
        rows = np.sort(np.resize(order, (clients, records)), axis=1)
        self._rows = torch.from_numpy(rows).to(device)

    def of(self, client: int) -> tuple[Tensor, Tensor]:
        """The images and labels of one client."""
        rows = self._rows[client]
        return self._x[rows], self._y[rows]

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """Accuracy on the test part."""
        model.eval()
        parts = zip(torch.split(self._test_x, 500), torch.split(self._test_y, 500), strict=True)
        right = sum(int((model(x).argmax(1) == labels).sum()) for x, labels in parts)
        return right / len(self._test_y)


@lru_cache(maxsize=1)
def images_of(folder: str, clients: int, seed: int) -> Images:
    """The images, read once a process."""
    return Images(Path(folder), clients=clients, seed=seed)


class Pace:
    """Seconds of a training's rounds, from the end of the first one on."""

    def __init__(self, seconds: float) -> None:
        """Measure for as long, or until the training ends."""
        self._seconds = seconds
        self._ends: list[float] = []

    def round_ended(self) -> bool:
        """Note the end of a round; return whether it was measured for long enough."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._ends.append(time.perf_counter())
        return len(self._ends) > 1 and self._ends[-1] - self._ends[0] >= self._seconds

    def measured(self, cohort: int) -> dict[str, float]:
        """Rounds, and clients a second by the expected cohort; nothing if a single round ended."""
        rounds = len(self._ends) - 1
        if rounds < 1:
            return {}
        seconds = self._ends[-1] - self._ends[0]
        return {
            "rounds": rounds,
            "seconds_per_round": seconds / rounds,
            "clients_per_s": rounds * cohort / seconds,
        }


class _LongEnough(Exception):
    """The pace is measured."""


def train_with_pfl(task: dict[str, Any], pace: Pace) -> float:
    """Train with pfl-research; return the accuracy.

    With `PFL_WORKER_ADDRESSES` it is one of several processes, which talk by Gloo: NCCL takes one
    process a GPU alone.
    """
    begin: Any = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend, **options: begin("gloo", **options)
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
            return pace.round_ended(), Metrics()

    np.random.seed(task["seed"])
    images = images_of(task["folder"], task["clients"], task["seed"])
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


def plan_of(task: dict[str, Any]) -> CentralPlan:
    """Our plan, whose budget is what the noise is worth to the clients that are there."""
    from fl_dp import PrivacyBudget
    from fl_dp.accounting import PoissonSampling
    from fl_dp.mechanisms import FixedClipping
    from fl_dp.plan import CentralPlan

    return CentralPlan(
        budget=PrivacyBudget(epsilon=1.0, delta=DELTA),
        rounds=task["rounds"],
        num_clients=task["clients"],
        sampling=PoissonSampling(sampling_rate=task["cohort"] / task["clients"]),
        clipping=FixedClipping(norm=CLIPPING_NORM),
        units_per_node=units_per_node(task),
        contribution_check=False,  # which would add to the noise
        noise_multiplier=task["noise_multiplier"],
    ).with_spent_budget()


def units_per_node(task: dict[str, Any]) -> int:
    """All clients on one node, which sums their clipped updates; without privacy nobody sums."""
    in_one_call = task.get("engine") == "train_private"
    return task["clients"] if task["private"] and not in_one_call else 1


@lru_cache(maxsize=1)
def app_of(text: str) -> ClientApp:
    """The nodes' app for a task in JSON."""
    from fl_dp.clients import TorchUnits, numpy_client_app
    from fl_dp.clients.owner.node_config import PARTITION_ID_KEY
    from fl_dp.tasks.device import training_device

    task = json.loads(text)
    images = images_of(task["folder"], task["clients"], task["seed"])
    hosted = units_per_node(task)
    units = TorchUnits(
        model=their_cnn(task["seed"]).to(training_device()),
        loss=nn.CrossEntropyLoss(reduction="none"),
        optimizer=partial(torch.optim.SGD, lr=LOCAL_RATE),
        batch_size=BATCH_SIZE,
        data=lambda context, unit: images.of(
            int(context.node_config[PARTITION_ID_KEY]) * hosted + unit
        ),
        count=lambda context, config: hosted,
    )
    return numpy_client_app(units=units)


def train_in_one_call(task: dict[str, Any], pace: Pace) -> float:
    """Train with `train_private`; return the accuracy, NaN if the pace ended it."""
    from flwr.app import ArrayRecord, Message, MetricRecord
    from flwr.serverapp.strategy import FedAvg

    from fl_dp.app import train_private
    from fl_dp.tasks.device import training_device

    class Paced(FedAvg):
        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            arrays, metrics = super().aggregate_train(server_round, replies)
            if pace.round_ended():
                raise _LongEnough
            return arrays, metrics

    images = images_of(task["folder"], task["clients"], task["seed"])
    with contextlib.suppress(_LongEnough):
        trained = train_private(
            their_cnn(task["seed"]).to(training_device()),
            [tuple(part.cpu() for part in images.of(client)) for client in range(task["clients"])],
            plan=plan_of(task),
            learning_rate=LOCAL_RATE,
            batch_size=BATCH_SIZE,
            strategy=Paced(),
            progress=False,
        )
        return images.accuracy(trained.model)
    return math.nan


def train_with_ours(task: dict[str, Any], pace: Pace) -> float:
    """Train with fl-dp; return the accuracy.

    `engine` is "one process" or "flower", in which one worker on the GPU trains, in a process that
    Ray starts; or "train_private", whose clients are trained together before each answers.
    """
    if task.get("engine") == "train_private":
        return train_in_one_call(task, pace)
    from flwr.app import Array, ArrayRecord, Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from fl_dp import PrivacyLedger
    from fl_dp.accounting import PoissonSampling
    from fl_dp.app import simulate
    from fl_dp.model_arrays import get_arrays, set_arrays
    from fl_dp.strategies import DPFedAvg, LawSelection, UnprotectedFedAvg
    from fl_dp.tasks.device import training_device

    model = their_cnn(task["seed"]).to(training_device())
    reached = math.nan

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
            plan = plan_of(task)
            with (
                tempfile.TemporaryDirectory() as folder,
                PrivacyLedger.open(Path(folder) / "ledger.db", plan) as ledger,
            ):
                train(DPFedAvg(plan=plan, ledger=ledger), grid)
        else:
            rate = task["cohort"] / task["clients"]
            train(
                UnprotectedFedAvg(selection=LawSelection(PoissonSampling(sampling_rate=rate))), grid
            )
        reached = images_of(task["folder"], task["clients"], task["seed"]).accuracy(model)

    logging.getLogger("flwr").setLevel(logging.ERROR)
    text, nodes = json.dumps(task), task["clients"] // units_per_node(task)
    if task.get("engine") == "flower":
        from flwr.simulation import run_simulation

        # A worker makes the app itself: pickled, it would come with each message.
        copyreg.pickle(ClientApp, lambda _: (app_of, (text,)))
        gpus = 1.0 if torch.cuda.is_available() else 0.0
        config: Any = {
            "client_resources": {"num_cpus": 1, "num_gpus": gpus},
            "init_args": {"num_cpus": 1},
        }
        run_simulation(server, app_of(text), nodes, backend_config=config)
    else:
        simulate(server, app_of(text), num_nodes=nodes)
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


def make_up(folder: Path, *, train: int, test: int) -> None:
    """Write noise of the images' shape around a picture of each class."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    pictures = rng.standard_normal((10, 3, 32, 32), dtype=np.float32)
    for part, count in (("train", train), ("test", test)):
        labels = rng.integers(10, size=count)
        noise = rng.standard_normal((count, 3, 32, 32), dtype=np.float32)
        np.save(folder / f"{part}_x.npy", noise + pictures[labels])
        np.save(folder / f"{part}_y.npy", labels)


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
    pace = Pace(task["seconds"])
    begun = time.perf_counter()
    accuracy = FRAMEWORKS[task["framework"]](task, pace)
    seconds = time.perf_counter() - begun
    memory = {}
    if torch.cuda.is_available():
        memory = {"bytes": torch.cuda.max_memory_allocated()}  # of this process
    return {"accuracy": accuracy, "seconds": seconds, **memory, **pace.measured(task["cohort"])}


def run(framework: str, task: dict[str, Any]) -> dict[str, float]:
    """Train in a process of its own; return accuracy, seconds and pace."""
    from peers import CACHE, environment

    python = Path(sys.executable)
    if framework == "pfl-research" and importlib.util.find_spec("pfl") is None:
        torch_here = version("torch").partition("+")[0]
        python = environment(framework, [PFL, f"torch=={torch_here}"], CACHE)
    process = subprocess.run(
        command_of({"framework": framework, **task}, python),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return result_in(process.stdout)


def command_of(task: dict[str, Any], python: Path) -> list[str]:
    """The command that does a task in a process of its own."""
    return [str(python), __file__, "--task", json.dumps(task)]


def result_in(output: str) -> dict[str, float]:
    """What that command has printed last."""
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of Markdown, or JSON with `--json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100, help="of both (published: 1500)")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0], help="of weights and split")
    parser.add_argument("--frameworks", nargs="*", choices=FRAMEWORKS, default=list(FRAMEWORKS))
    parser.add_argument("--made-up", action="store_true", help="images that are made up")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.task is not None:
        print(json.dumps(done(json.loads(options.task))))
        return
    from peers import CACHE

    with tempfile.TemporaryDirectory() as made_up:
        folder = Path(made_up) if options.made_up else CACHE / "cifar10"
        if options.made_up:
            make_up(folder, train=50 * CLIENTS, test=10 * CLIENTS)
        else:
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
        epsilon = plan_of(shared).budget.epsilon
        results = {
            name: [run(name, {**shared, "seed": seed}) for seed in options.seeds]
            for name in options.frameworks
        }
    if options.json:
        print(json.dumps({**shared, "epsilon": epsilon, "results": results}, indent=2))
        return
    print(
        f"noise multiplier {shared['noise_multiplier']:.4g} on sums of {COHORT}: epsilon "
        f"{epsilon:.4g} at delta {DELTA:g} for the {CLIENTS} clients that are there; the "
        f"{EPSILON:g} published for {PUBLISHED_ROUNDS} rounds is that of {POPULATION} clients"
    )
    print("| framework | rounds | accuracy of each seed | mean | minutes |\n|---|---|---|---|---|")
    for name, runs in results.items():
        accuracies = [run["accuracy"] for run in runs]
        listed = ", ".join(f"{accuracy:.4f}" for accuracy in accuracies)
        minutes = ", ".join(f"{run['seconds'] / 60:.1f}" for run in runs)
        mean = statistics.mean(accuracies)
        print(f"| {name} | {options.rounds} | {listed} | {mean:.4f} | {minutes} |")


if __name__ == "__main__":
    main()

"""From settings to the Flower strategy that steps with a private mean update."""

from __future__ import annotations

from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi, Strategy

from .settings import ServerOptimizerSettings


def make_server_optimizer(settings: ServerOptimizerSettings) -> Strategy:
    """Return the chosen strategy, given those settings that it uses."""
    rate, tau = settings.learning_rate, settings.tau
    beta_1, beta_2 = settings.beta_1, settings.beta_2
    match settings.name:
        case "fedavg":
            return FedAvg()
        case "fedavgm":
            return FedAvgM(server_learning_rate=rate, server_momentum=settings.momentum)
        case "fedadam":
            return FedAdam(eta=rate, beta_1=beta_1, beta_2=beta_2, tau=tau)
        case "fedyogi":
            return FedYogi(eta=rate, beta_1=beta_1, beta_2=beta_2, tau=tau)
        case "fedadagrad":
            return FedAdagrad(eta=rate, tau=tau)
    raise ValueError(f"there is no server optimizer '{settings.name}'")

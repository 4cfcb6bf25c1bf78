"""Settings of this machine, for runs in Flower's simulation engine."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from fl_dp.option_errors import OptionError

from .checks import at_least, choices, tracked

_HOST_AND_PORT = re.compile(r"[\w.-]+:[0-9]+")
_LARGEST_SPREAD = 10.0  # of a logarithm: beyond it times are no numbers any more


@dataclass(kw_only=True)
class SimulationSettings:
    """Simulated nodes; not used on real ones.

    Attributes:
        engine: `flower` (Flower's engine, with Ray), `in_process` (all nodes in one process),
            `cluster` (all machines of a Ray cluster) or `auto` (by the task).
        ray_address: `HOST:PORT` of a running Ray cluster of which this machine is part, or `auto`
            for the one started here.
        num_cpus: CPUs that Ray may use, one worker each; null suits this machine. With
            `engine=in_process`: threads of PyTorch, null is 1.
        num_gpus: Share of a GPU for each worker, or a whole number of GPUs; 0 trains on the CPU.
        workers: Processes that train clients. Null: one per CPU of `num_cpus`, or two more than
            there are CPUs, as memory allows.
        units_per_node: Clients of one virtual node, which adds up their clipped updates. `auto`:
            as few nodes as keep the processors busy.
        delay_spread: Standard deviation of the logarithm of the nodes' answer times, in simulated
            time; `engine=in_process` only. 0: answers come at once.
    """

    engine: str = tracked("auto")
    ray_address: str | None = None
    num_cpus: int | None = None
    num_gpus: float = 0.0
    workers: int | None = None
    units_per_node: int | str = tracked("auto")
    delay_spread: float = tracked(0.0)

    def __post_init__(self) -> None:
        """Check the values."""
        choices("simulation", self)
        self._check_ray_address()
        if self.engine == "in_process" and self.workers is not None:
            raise OptionError(
                f"simulation.workers={self.workers} are for simulation.engine=flower: leave it out",
                option="simulation.workers",
            )
        if not 0.0 <= self.delay_spread <= _LARGEST_SPREAD:
            raise OptionError(
                f"simulation.delay_spread must lie in [0, {_LARGEST_SPREAD:g}], got "
                f"{self.delay_spread}",
                option="simulation.delay_spread",
            )
        if self.delay_spread and self.engine != "in_process":
            raise OptionError(
                f"simulation.delay_spread={self.delay_spread:g} needs a clock that does not "
                "wait: write simulation.engine=in_process",
                option="simulation.delay_spread",
            )
        at_least("simulation.num_cpus", self.num_cpus, 1)
        at_least("simulation.workers", self.workers, 1)
        if isinstance(self.units_per_node, int):
            at_least("simulation.units_per_node", self.units_per_node, 1)
        elif self.units_per_node != "auto":
            raise OptionError(
                "simulation.units_per_node must be a whole number or auto, got "
                f"'{self.units_per_node}'",
                option="simulation.units_per_node",
            )
        if not (math.isfinite(self.num_gpus) and self.num_gpus >= 0):
            raise OptionError(
                f"simulation.num_gpus must not be negative, got {self.num_gpus}",
                option="simulation.num_gpus",
            )
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise OptionError(
                "simulation.num_gpus must be a share up to 1 or a whole number, "
                f"got {self.num_gpus}",
                option="simulation.num_gpus",
            )

    def _check_ray_address(self) -> None:
        address = self.ray_address
        if address is None and self.engine != "cluster":
            return
        is_valid = address == "auto" or _HOST_AND_PORT.fullmatch(address or "") is not None
        if not is_valid or self.engine not in ("auto", "cluster"):
            raise OptionError(
                "simulation.ray_address is auto or HOST:PORT, and goes together with "
                f"simulation.engine=cluster alone, got {address} and '{self.engine}'",
                option="simulation.ray_address",
            )

    @property
    def units_at_node(self) -> int:
        """Most clients of one node; 1 until `auto` is decided, as on real nodes."""
        return self.units_per_node if isinstance(self.units_per_node, int) else 1

    def num_nodes(self, num_clients: int) -> int:
        """Return the number of virtual nodes for these clients; the last may host fewer."""
        return math.ceil(num_clients / self.units_at_node)

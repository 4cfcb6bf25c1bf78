"""Time and memory of a case, in turns with its peer."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import torch
from side_by_side import Case

from .bench import Bench, Row


def timed(bench: Bench, case: Case) -> Row:
    """Time both sides, which take turns; return medians, and peaks of memory of a first run.

    Returns:
        `ours_s`, `peer_s`, `ratio`, `turns`, and on a GPU `ours_bytes` and `peer_bytes`: the most
        that PyTorch had allocated at a time, with data and models of both sides. A rehearsal on a
        CPU has no first run.
    """
    sides = {"ours": case.ours, "peer": case.theirs}
    row: Row = {}
    if bench.device.type == "cuda":
        row = {f"{side}_bytes": peak_bytes(run, bench.device) for side, run in sides.items()}
        if case.peer == "CPU":
            del row["peer_bytes"]
    times: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(bench.sizes.repeats):
        if turn > 0 and time.monotonic() > bench.until:
            break
        for side in sorted(sides, reverse=turn % 2 == 1):
            times[side].append(seconds(sides[side], bench.device))
    ours, peer = (statistics.median(times[side]) for side in sides)
    return {"ours_s": ours, "peer_s": peer, "ratio": ours / peer, "turns": turn + 1, **row}


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Time a run until the device has done its work, which kernels only queue."""
    begun = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Run, and return the most that PyTorch had allocated on the GPU at a time."""
    torch.cuda.reset_peak_memory_stats(device)
    run()
    return torch.cuda.max_memory_allocated(device)


def if_possible(bench: Bench, name: str, measure: Callable[[], Row]) -> None:
    """Measure a case if there is time and memory, and leave nothing on the GPU."""
    if time.monotonic() > bench.until:
        bench.write({"case": name, "skipped": "no time was left in its section"})
        return
    try:
        bench.write({"case": name, **measure()})
    except torch.OutOfMemoryError:
        bench.write({"case": name, "skipped": "out of memory"})
    except (NotImplementedError, ValueError) as refused:
        bench.write({"case": name, "skipped": f"refused: {refused}"})
    finally:
        gc.collect()
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()  # what units may take is judged by what the driver calls free

"""Free memory of a GPU."""

from __future__ import annotations

import torch


def free_bytes(device: torch.device) -> int | None:
    """Free bytes of a GPU; None on a CPU."""
    if device.type != "cuda":
        return None
    # Memory that PyTorch caches counts as taken, and is free for this process.
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + cached)

"""Commands of an environment of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any


def call(command: list[Any], *, cwd: Path, **environment: Any) -> str:
    """Run a command to its end, with Flower kept off the network."""
    quiet = {
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=inherited | quiet | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

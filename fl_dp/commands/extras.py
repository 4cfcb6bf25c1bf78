"""Extra that brings a missing package; it imports nothing, as `entry.py` asks it when imports fail.

A real node, its ledger and a strategy of one's own need none of them.
"""

from __future__ import annotations

EXTRA_OF = {
    "hydra": "app",
    "omegaconf": "app",
    "prometheus_client": "app",
    "scikit-learn": "app",
    "sklearn": "app",
    "tomli_w": "app",
    "opacus": "torch",
    "torch": "torch",
    "fastapi": "viewer",
    "jinja2": "viewer",
    "markupsafe": "viewer",
    "matplotlib": "viewer",
    "starlette": "viewer",
    "uvicorn": "viewer",
    "PIL": "images",
    "pyarrow": "tables",
    "ray": "simulation",
    "transformers": "transformers",
    "mlflow": "mlflow",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}
"""The extra that brings a package, by the name under which Python misses it."""


def with_its_extra(error: Exception) -> str:
    """Return what an error says, or which extra to install if it is about a package of one."""
    missing = ""
    if isinstance(error, ModuleNotFoundError):
        missing = (error.name or "").partition(".")[0]
    if missing not in EXTRA_OF:
        return str(error)
    return f"this needs {missing}: pip install 'fl-dp[{EXTRA_OF[missing]}]' brings it"

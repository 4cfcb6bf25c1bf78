"""What is installed: wings, and the extra that brings a missing package.

It imports nothing, as `entry.py` needs it after failures.

A real node, its ledger and a user's own strategy need none of these packages.
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
"""The extra that brings a package, by the name that Python reports as missing."""


def has_wing(name: str) -> bool:
    """Whether a wing is installed; without it all other commands work."""
    from importlib.util import find_spec

    spec = find_spec(f"fl_dp.{name}")
    return spec is not None and spec.origin is not None  # a deleted one leaves an empty folder


def with_its_extra(error: Exception) -> str:
    """Return an error's text, or which extra to install if it is about a package of one."""
    missing = ""
    if isinstance(error, ModuleNotFoundError):
        missing = (error.name or "").partition(".")[0]
    if missing not in EXTRA_OF:
        return str(error)
    return f"this needs {missing}: pip install 'fl-dp[{EXTRA_OF[missing]}]' brings it"

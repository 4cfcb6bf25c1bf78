"""Flower apps written into a folder: two modules, and one project file for all."""

from __future__ import annotations

from pathlib import Path

PUBLISHER = "stranger"
"""Of every app that is written here."""

_PROJECT = """\
[project]
name = "{name}"
version = "1.0.0"
description = "An app of a test"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "{publisher}"

[tool.flwr.app.components]
serverapp = "{name}.server:app"
clientapp = "{name}.client:app"

[tool.flwr.app.config]
hydra-overrides = ""
"""


def write_app(folder: Path, *, client: str, server: str, **values: object) -> Path:
    """Write an app that has the name of its folder, and return the folder.

    Args:
        folder: Where it is to lie.
        client: Text of its module `client`, whose `app` is a `ClientApp`.
        server: Text of its module `server`, whose `app` is a `ServerApp`.
        values: What replaces a word in both texts, as Python writes it.
    """
    package = folder / folder.name
    package.mkdir(parents=True)
    project = _PROJECT.format(name=folder.name, publisher=PUBLISHER)
    (folder / "pyproject.toml").write_text(project)
    (package / "__init__.py").touch()
    for name, text in {"client": client, "server": server}.items():
        for word, value in values.items():
            text = text.replace(word, repr(value))
        (package / f"{name}.py").write_text(text)
    return folder

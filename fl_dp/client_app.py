"""Flower `ClientApp` of the task in the server's settings."""

from fl_dp.app.task_client import app

__all__ = ["app"]

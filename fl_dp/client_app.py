"""The Flower `ClientApp` of the task that the server's settings name."""

from fl_dp.app.task_client import app

__all__ = ["app"]

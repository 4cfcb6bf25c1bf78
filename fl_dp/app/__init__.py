"""The app: settings, the server's and the clients' part of a task, and a run's folder."""

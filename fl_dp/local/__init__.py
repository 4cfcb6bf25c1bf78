"""This machine: its devices, and Flower started on it for one run."""

"""Devices of this machine, and engines that are started on it for one run."""

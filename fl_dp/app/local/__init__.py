"""Devices of this machine, and engines that are started on it for one run.

`auto_hosting.py` chooses an engine, `engines.py` makes it: `launch.py` starts Flower's own,
`one_process.py` needs none. `script_simulation.py` runs a user's own apps.
"""

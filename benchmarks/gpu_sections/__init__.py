"""Sections of `gpu.py`, each in a process of its own: an error of CUDA ends no other.

Each row is appended to the file as soon as it is measured: a section that is cut off leaves what
it had.
"""

"""Attacks on what training shows: they measure what a protection stops, on data of one's own.

An attack that fails proves no privacy. Another one may succeed; epsilon bounds all of them.
"""

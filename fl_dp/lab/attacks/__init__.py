"""Attacks on what training shows: they measure what a protection stops, on data of one's own.

A failed attack proves no privacy. Another one may succeed; epsilon bounds all of them.
"""

"""Papers of a run, from its statement; each says what a person must fill in."""

from .paper_files import PAPERS, write_paper

__all__ = ["PAPERS", "write_paper"]

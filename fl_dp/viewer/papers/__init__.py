"""Papers of a run, generated from its statement; each says what a person must still fill in."""

from .paper_files import PAPERS, write_paper

__all__ = ["PAPERS", "write_paper"]

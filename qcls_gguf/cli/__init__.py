"""The command line: parsing and printing only."""

from .app import main

__all__ = ["main"]

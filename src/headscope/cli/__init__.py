"""The command line: parse, call, print. What is printed is made in view/, what is known is made above it."""

from __future__ import annotations

from headscope.cli import look, run, explain, compare  # isort: skip  # the commands are what these register, in this order
from headscope.cli.app import app, main

__all__ = ["app", "compare", "explain", "look", "main", "run"]

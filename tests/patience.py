"""How long a test waits before it says that a thing hangs: no measure of how much a machine gets done in that time."""

PATIENCE = 300
"""Seconds."""

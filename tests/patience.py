"""How long a test waits before it says that a thing hangs: no measure of how much a machine gets done in that time."""

PATIENCE = 600
"""Seconds. A process that has to import PyTorch may take minutes on a busy machine."""

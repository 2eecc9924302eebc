"""Screens of the terminal, and figures: what a result looks like, as sheets of `terminal.py`."""

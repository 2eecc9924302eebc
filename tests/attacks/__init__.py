"""Makers of the files that tried to break headscope, and the tests that they did not."""

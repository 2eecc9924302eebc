"""Tests of headscope.explain, and what they share; a package, because benchmarks/explain.py has the same name."""

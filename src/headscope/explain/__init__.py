"""Explanations of a trace beyond its weights: what moves between tokens, what a head writes, what is worth reading."""

"""Explaining a model: what a head or a token does to what the model says, beyond the attention weights."""

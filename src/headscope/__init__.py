"""See inside every attention head of BERT and its kin."""

__version__ = "0.1.0"

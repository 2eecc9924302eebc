"""How two checkpoints of one shape differ, head by head: `hs.compare(a, b)`, `headscope compare A B [CORPUS]`.

products.py has the mathematics, weights.py reads checkpoints, texts.py runs both on the same texts. The guide is
docs/compare.md.
"""

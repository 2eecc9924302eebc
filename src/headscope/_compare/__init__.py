"""How two checkpoints of one shape differ, head by head: `hs.compare(a, b)`, `headscope compare A B [CORPUS]`.

products.py has the mathematics, weights.py reads checkpoints, texts.py runs both on the same texts, surveys.py joins
two surveys. The guide is docs/compare.md.
"""

"""Differences between two checkpoints of one shape, head by head: `hs.compare(a, b)`, `headscope compare A B [CORPUS]`.

Read `comparison.py`, the answer, then `weight_changes.py`, which reads two checkpoints layer by layer, and
`gram_products.py`, which has the mathematics. Texts and surveys need a corpus: `headscope.atlas.comparing` reads those
and calls this. The guide is docs/compare.md.

    weight_changes(hs.open("a"), hs.open("b")).heads["qk"]   # (layers, heads)
"""

"""Voita et al. 2019, “Analyzing Multi-Head Self-Attention”: python voita2019.py [MODEL]

They found that the heads with the greatest weights (“confident” ones) are those that matter, that these look at a
neighbour, along a syntactic relation or at the rarest word, and that the others can be pruned at almost no cost.
"""

import sys
from pathlib import Path

import numpy as np

import headscope as hs

model = hs.open(sys.argv[1] if len(sys.argv) > 1 else "-")
texts = (Path(__file__).parents[2] / "docs" / "walkthroughs" / "emma.txt").read_text(encoding="utf-8").splitlines()[:12]

tables = [
    model.trace(text).statistics(["confidence", "previous", "next", "rarest", "cls", "sep"], special=False)
    for text in texts
]
mean = {name: np.mean([table[name] for table in tables], 0) for name in tables[0]}
moved = np.asarray(model.effects(texts, metric="vector"))
ranks = [np.argsort(np.argsort(values.ravel())) for values in (mean["confidence"], moved)]
print(f"{model.name}: confidence and what silencing changes, rank correlation {np.corrcoef(*ranks)[0, 1]:+.2f}")

order = np.argsort(-mean["confidence"], axis=None)[:5]
for layer, head in zip(*np.unravel_index(order, moved.shape), strict=True):
    where = max(("previous", "next", "rarest", "cls", "sep"), key=lambda name: mean[name][layer, head])
    share, confidence = mean[where][layer, head], mean["confidence"][layer, head]
    print(f"head {layer}.{head}: confidence {confidence:.2f}; {share:.0%} on {where};", end=" ")
    print(f"without it vectors move {moved[layer, head]:.3f}")

curve = model.removal(texts, metric="vector", order="greedy", random=3, steps=moved.size // 2)
print(f"half of the heads gone: vectors move {curve.score[-1]:.3f} in the greedy order", end="")
print(f", {curve.random[:, -1].mean():.3f} at random")

"""Kobayashi et al. 2020, “Attention is Not Only a Weight”: python kobayashi2020.py [MODEL]

They found that weights on [CLS], [SEP] and punctuation are large and the vectors behind them short: what a head adds is
the length of weight times value, and by that BERT looks past them.
"""

import sys
from pathlib import Path

import numpy as np

import headscope as hs

model = hs.open(sys.argv[1] if len(sys.argv) > 1 else "-")
texts = (Path(__file__).parents[2] / "docs" / "walkthroughs" / "emma.txt").read_text(encoding="utf-8").splitlines()[:20]

weights, lengths, values = [], [], []
for text in texts:
    trace = model.trace(text)
    special = np.array(trace.special)
    for layer in trace.numbers:
        for head in trace.head_numbers(layer):
            A, v = np.asarray(trace[layer, head].weights), trace[layer, head].v
            f = np.linalg.norm(v @ model.layers[layer].heads[head].W_O, axis=-1)
            weights.append(A[:, special].sum(-1).mean())
            lengths.append((A * f)[:, special].sum() / (A * f).sum())
            values.append(np.corrcoef(A.mean(0), f)[0, 1])
count = len(weights) // len(texts)
weights, lengths = (np.reshape(one, (len(texts), count)).mean(0) for one in (weights, lengths))
print(
    f"{model.name}, {len(texts)} sentences, {count} heads: special tokens get {weights.mean():.0%} of the weight",
    end="",
)
print(f" and give {lengths.mean():.0%} of the length")
print(f"weight and |v W_O| go against each other in {np.mean(np.array(values) < 0):.0%} of heads and sentences", end="")
print(f" (mean correlation {np.mean(values):+.2f})")

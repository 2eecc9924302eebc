"""Jain and Wallace 2019, “Attention is not Explanation”: python jain2019.py [MODEL]

They shuffled the attention weights of classifiers: often the output hardly changed, also where the weights were peaked,
so that the weights can't have been the reason for it.
"""

import sys
from pathlib import Path

import numpy as np

import headscope as hs

model = hs.open(sys.argv[1] if len(sys.argv) > 1 else "-")
texts = (Path(__file__).parents[2] / "docs" / "walkthroughs" / "emma.txt").read_text(encoding="utf-8").splitlines()[:5]


def vector(trace: hs.Trace) -> np.ndarray:
    return np.asarray(trace.outputs["last_hidden_state"], dtype=float).mean(0)


plain = [model.trace(text) for text in texts]
before = [vector(trace) for trace in plain]
peaked = np.mean([trace.statistics(["strongest"])["strongest"] for trace in plain], 0)
moved = {way: np.zeros(peaked.shape) for way in ("shuffle", "uniform", "zero")}
for way, values in moved.items():
    for head in np.ndindex(*peaked.shape):
        after = [vector(model.trace(text, ablate={head: way})) for text in texts]
        values[head] = np.mean([np.linalg.norm(b - a) / np.linalg.norm(a) for a, b in zip(before, after, strict=True)])

print(f"{model.name}, {len(texts)} sentences; how far the text's vector moves, as a share of its length:")
for way, values in moved.items():
    print(f"{way}: {values.mean():.3f} a head; less than .02 for {np.mean(values < 0.02):.0%} of the heads")
ranks = [np.argsort(np.argsort(values.ravel())) for values in (peaked, moved["shuffle"])]
print(f"the more peaked a head, the further a shuffle moves: rank correlation {np.corrcoef(*ranks)[0, 1]:+.2f}")

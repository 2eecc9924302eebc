"""Michel, Levy and Neubig 2019, “Are Sixteen Heads Really Better than One?”: python michel2019.py [MODEL]

They silenced the heads of BERT, tuned for MNLI, one by one: hardly any changed the accuracy by a point. By rank, 40 %
of the heads could go at almost no cost; after that it fell fast.
"""

import sys
from pathlib import Path

import numpy as np

import headscope as hs

model = hs.open(sys.argv[1] if len(sys.argv) > 1 else "-")
lines = (
    (Path(__file__).parents[2] / "docs" / "walkthroughs" / "emma.txt").read_text(encoding="utf-8").splitlines()[:100]
)
texts, labels, metric = [], [], "accuracy"
if "masked_lm" in model.anatomy.tasks:  # the fourth word of each sentence is to be found
    for words in (line.split() for line in lines):
        word = words[3].lower() if len(words) > 8 else ""
        if word.isalpha() and model.tokenizer.id(word) is not None:
            texts.append(" ".join([*words[:3], model.tokenizer.mask_token, *words[4:30]]))
            labels.append(word)
else:  # how far the text's vector moves
    texts, labels, metric = lines[:12], None, "vector"
texts, labels = texts[:40], labels and labels[:40]

alone = model.effects(texts, labels=labels, metric=metric)
large = int((np.abs(alone) > 0.02).sum())
print(f"{model.name}, {len(texts)} sentences: {large} of {alone.size} heads change the {metric} by over .02;", end=" ")
print("the most: layer {}, head {}, {:+.3f}".format(*alone.strongest(1)[0], alone[alone.strongest(1)[0]]))

curve = model.removal(texts, labels, metric=metric, random=3)
whole, limit = (curve.base.mean(), 0.1 * curve.base.mean()) if labels else (0, 0.05)
seen = np.flatnonzero(~np.isnan(curve.random[0]))
drawn = np.interp(range(len(curve)), seen, curve.random[:, seen].mean(0))
for name, scores in (("by rank", curve.score), ("at random", drawn)):
    gone = next((step for step, score in enumerate(scores) if abs(score - whole) > limit), len(curve))
    print(f"{name}, {gone / len(curve):.0%} of the heads go before the {metric} has moved by {limit:.2f}")

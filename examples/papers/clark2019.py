"""Clark et al. 2019, “What Does BERT Look At?”: python clark2019.py [MODEL]

They found heads that look at the previous token (4 of 144 with more than half of their weight) or the next (5), heads
in the middle layers that rest on [SEP], and single heads for single relations: 7-10 finds determiners (94 %; a fixed
offset 52 %), 7-9 direct objects (87 %; 40 %).
"""

import sys
from pathlib import Path

import numpy as np

import headscope as hs

model = hs.open(sys.argv[1] if len(sys.argv) > 1 else "-")
treebank = Path(__file__).parents[2] / "docs" / "walkthroughs" / "pud" / "en_pud-first500.conllu"
survey = hs.survey(model, treebank, statistics=["previous", "next", "cls", "sep"])

for name in ("previous", "next"):
    found = [f"{layer}.{head}" for layer, head in np.argwhere(np.asarray(survey[name]) > 0.5)]
    print(f"{model.name}: heads with more than half of their weight on the {name} token: {', '.join(found) or 'none'}")
special = np.asarray(survey["cls"]) + np.asarray(survey["sep"])
print("weight on [CLS] and [SEP], layer by layer:", ", ".join(f"{share:.0%}" for share in special.mean(1)))

for row in survey.syntax.to_pylist():
    if row["relation"] in ("det", "obj", "nsubj", "amod", "case") and row["accuracy_held_out"] is not None:
        print("{relation:6} {direction}: head {layer}.{head}".format(**row), end=" ")
        print("{accuracy_held_out:.0%} on the half that didn't choose it;".format(**row), end=" ")
        print("{offset_accuracy:.0%} at the fixed offset {offset:+d}".format(**row))

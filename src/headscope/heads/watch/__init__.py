"""Heads while a model trains: `hs.watch` for any loop, `hs.HeadscopeCallback` for transformers' Trainer.

At regular steps the model reads a few fixed texts, and the statistics of every head are kept. Training itself is
unchanged. Read `watching.py`, the recorder, then `steps.py`, what it records as a table and a file; `trainer.py` is for
transformers' Trainer. Users call it, and nothing else does. The guide is docs/training.md.

    with hs.watch(model, texts, tokenizer=tokenizer) as watch: ...; watch.step(step)
"""

import importlib.util

from headscope.errors import MissingExtraError, install

for package in ("torch", "transformers"):
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(
            f"watching a model while it trains needs {package}, which is not installed",
            where="hs.watch",
            advice=f"{install('survey')}, which brings pyarrow for the table too",
        )

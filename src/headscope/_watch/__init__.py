"""Heads while a model trains: `hs.watch` for any loop, `hs.HeadscopeCallback` for transformers' Trainer.

At regular steps the model reads a few fixed texts, and the statistics of every head are kept. Training itself is
unchanged. The guide is docs/training.md.
"""

import importlib.util

from headscope.errors import MissingExtraError

for package in ("torch", "transformers"):
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(
            f"watching a model while it trains needs {package}, which is not installed",
            where="hs.watch",
            advice="pip install 'headscope[survey]', which brings pyarrow for the table too",
        )

"""What heads become while a model trains: `hs.watch` for any loop, `hs.HeadscopeCallback` for transformers' Trainer.

Every so many steps the model reads a few fixed texts, and the statistics of every head are kept. Training goes on as if
nobody had looked. The guide is docs/training.md.
"""

"""A forward pass of every family, compared with transformers' eager one, with the same number of threads.

The time is processor time, all threads together.

    python benchmarks/families.py [--rounds 9] [--threads 1] [--layers 4] [--only ModernBert DebertaV2] [--json FILE]

It makes checkpoints of each family with BERT-base's widths, random weights and a few layers, in a temporary folder.
Threads of BLAS and of torch are set before either is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measure import WARM, Pair, limit_threads, pair_calls

os.environ["HF_HUB_OFFLINE"] = "1"

TOKENS = (128, 512)
SPECIAL_IDS = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "cls_token_id": 1,
    "eos_token_id": 2,
    "sep_token_id": 2,
    "mask_token_id": 4,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Bert": {},
    "Albert": {"embedding_size": 128},
    "Ernie": {},
    "MegatronBert": {},
    "RoFormer": {},
    "ModernBert": {**SPECIAL_IDS, "intermediate_size": 1152},
    "Esm": {"position_embedding_type": "rotary", "token_dropout": True, "pad_token_id": 1, "mask_token_id": 4},
    "NomicBert": {},
    "Gte": {"pad_token_id": 1},
    "EuroBert": SPECIAL_IDS,
    "MPNet": {},
    "DebertaV2": {
        "relative_attention": True,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
        "max_relative_positions": 512,
    },
}
BASE = {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "vocab_size": 5000,
    "max_position_embeddings": 1024,
}


def forward(stem: str, layers: int, folder: Path, rounds: int) -> dict[int, Pair]:
    """The forward pass with its trace's record, against transformers' eager one, by number of tokens."""
    import torch
    import transformers

    import headscope as hs

    config = getattr(transformers, f"{stem}Config")(**{**BASE, "num_hidden_layers": layers, **FAMILIES[stem]})
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{stem}Model")(config).eval()
    theirs.save_pretrained(folder)
    ours = hs.open(folder)
    pairs = {}
    for tokens in TOKENS:
        ids = [5 + at % 4000 for at in range(tokens)]
        batch = torch.tensor([ids])
        mask = torch.ones_like(batch)

        def run_theirs(batch: torch.Tensor = batch, mask: torch.Tensor = mask) -> object:
            with torch.inference_mode():
                return theirs(batch, attention_mask=mask)

        pairs[tokens] = pair_calls(
            lambda ids=ids: ours.trace(ids=ids),  # type: ignore[misc]
            run_theirs,
            rounds=rounds,
            clock=time.process_time,
            warm_ups=WARM,
        )
    return pairs


def main() -> None:
    """Measure, and print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--only", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    limit_threads(options.threads)
    print("| family | " + " | ".join(f"{tokens} tokens: ours / theirs" for tokens in TOKENS) + " |")
    print("|---|" + "---|" * len(TOKENS))
    figures = {}
    for stem in options.only:
        with tempfile.TemporaryDirectory() as made:
            pairs = forward(stem, options.layers, Path(made), options.rounds)
        cells = [f"{1 / pair.ratio:.2f} ({1 / pair.high:.2f} to {1 / pair.low:.2f})" for pair in pairs.values()]
        print(f"| {stem} | " + " | ".join(cells) + " |", flush=True)
        figures[stem] = {tokens: asdict(pair) for tokens, pair in pairs.items()}
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()

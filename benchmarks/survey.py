"""Tokens per second of a survey, compared with the model's forward pass alone and with the usual way.

    python benchmarks/survey.py --json results.json
    python benchmarks/survey.py --layers 2 --hidden 128 --vocab 4096 --windows 4 --rounds 1     # a smoke test

A BERT of random weights, BERT-base's size unless told, over windows of 512 tokens; all default statistics. Three ways
in turn (A B A B …) within one process, on the same windows in the same batches:

    survey    headscope's replica: windows, the model's own SDPA forward, statistics as each layer runs, Parquet bytes
    atlas     the windows with their words, observed for labels and examples: what a survey does with its sample
    forward   the model's own SDPA forward and nothing else
    usual     eager attention, output_attentions=True, the same statistics from the weights, in torch

Ratios are medians over rounds, of the rounds' own ratios. Aims: survey and atlas at least 0.7 of forward's tokens a
second, and survey at least 2.5 times usual's. The usual way's numbers are held against the survey's before anything is
timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from headscope.atlas.corpus import open_corpus
from headscope.atlas.documents import CorpusPart, parts
from headscope.atlas.job import Batch
from headscope.atlas.loading import ModelSource
from headscope.atlas.replica import Replica
from headscope.atlas.survey_data import Owner
from headscope.atlas.survey_settings import DTYPES, SurveySettings
from headscope.heads import CATALOG
from headscope.heads.windows import Window, batches
from measure import now

LEFT_OUT = ("other_sentence",)
"""Statistics left out: `other_sentence` is undefined for a single text."""


def tokenizer_of(vocab: int) -> Any:
    """Words w0, w1, … and a full stop, one token each, framed as BERT does."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", ".", *(f"w{at}" for at in range(vocab - 5))]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", pad_token="[PAD]"
    )


def documents(windows: int, length: int, vocab: int) -> list[str]:
    """Texts of one full window each, a full stop after every ninth word."""
    random = np.random.default_rng(0)
    return [
        " ".join(
            "." if at % 10 == 9 else f"w{word}" for at, word in enumerate(random.integers(0, vocab - 5, length - 2))
        )
        for _ in range(windows)
    ]


def usual(
    model: torch.nn.Module, windows: list[Window], plan: list[list[int]], W_O: list[torch.Tensor], device: str
) -> torch.Tensor:
    """(windows, layers, heads, statistics) from the weights, written literally, with every map in memory."""
    found = []
    values: list[torch.Tensor] = []

    def keep(_module: torch.nn.Module, _args: object, output: torch.Tensor) -> None:
        values.append(output)

    hooks = [layer.attention.self.value.register_forward_hook(keep) for layer in model.encoder.layer]
    try:
        for batch in plan:
            values.clear()
            chosen = [windows[at] for at in batch]
            with torch.inference_mode():
                ids = torch.from_numpy(np.stack([window.ids for window in chosen])).to(device)
                maps = model(input_ids=ids, output_attentions=True).attentions
                flags = {
                    name: torch.tensor(
                        np.stack([getattr(window.roles, name) for window in chosen]), device=device
                    ).float()
                    for name in ("cls", "sep", "punctuation", "special")
                }
                layers = zip(maps, values, W_O, strict=True)
                of_layers = [from_weights(weights.float(), value, of, flags) for weights, value, of in layers]
                found.append(torch.stack(of_layers, 1).cpu())
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat(found)


def from_weights(
    p: torch.Tensor, value: torch.Tensor, W_O: torch.Tensor, flags: dict[str, torch.Tensor]
) -> torch.Tensor:
    """(batch, heads, statistics): means over queries, from the weights (batch, heads, tokens, tokens)."""
    tokens, heads = p.shape[-1], p.shape[1]
    at = torch.arange(tokens, device=p.device)
    gaps = (at[None, :] - at[:, None]).to(p.dtype)
    entropy = torch.special.entr(p).sum(-1)
    v = value.float().reshape(len(p), tokens, heads, -1).transpose(1, 2)
    lengths = torch.linalg.vector_norm(v @ W_O, dim=-1)
    norms = p @ torch.stack([lengths, lengths * flags["special"][:, None]], -1)
    special = norms[..., 1] / norms[..., 0]
    mass = {name: (p * flag[:, None, None]).sum(-1) for name, flag in flags.items()}
    values = {
        "entropy": entropy,
        "normalised_entropy": entropy / np.log(tokens),
        "effective_tokens": 1 / p.square().sum(-1),
        "strongest": p.amax(-1),
        "previous": p.diagonal(-1, -2, -1),
        "next": p.diagonal(1, -2, -1),
        "same": p.diagonal(0, -2, -1),
        "first": p[..., 0],
        "cls": mass["cls"],
        "sep": mass["sep"],
        "punctuation": mass["punctuation"],
        "offset": (p * gaps).sum(-1),
        "distance": (p * gaps.abs()).sum(-1),
        "norm": norms[..., 0],
        "norm_special": special,
    }
    return torch.stack([values[name].mean(-1) for name in CATALOG if name not in LEFT_OUT], -1)


def check(data: bytes, expected: torch.Tensor, dtype: str) -> float:
    """The largest difference between the survey's rows and the usual way's, relative for numbers above 1.

    Raises:
        RuntimeError: it is more than the precision explains.
    """
    table = parquet.read_table(pyarrow.BufferReader(data))
    names = [name for name in CATALOG if name not in LEFT_OUT]
    ours = np.stack([table.column(name).to_numpy() for name in names], -1).reshape(expected.shape)
    theirs = expected.numpy()
    worst = float((np.abs(ours - theirs) / np.maximum(1, np.abs(theirs))).max())
    if not worst < (1e-3 if dtype == "fp32" else 0.2):
        raise RuntimeError(f"the two ways differ by {worst}, so their times can't be compared")
    return worst


def timed(call: Callable[[], object], device: str) -> float:
    """Seconds."""
    started = now()
    call()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return now() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768, help="heads are of 64")
    parser.add_argument("--vocab", type=int, default=30522)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="fp32")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=options.vocab,
        hidden_size=options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 64,
        intermediate_size=4 * options.hidden,
        max_position_embeddings=options.length,
    )
    model = BertModel(config).to(options.device, getattr(torch, DTYPES[options.dtype])).eval()
    tokenizer = tokenizer_of(options.vocab)
    common: dict[str, Any] = {
        "length": options.length,
        "device": str(next(model.parameters()).device),
        "dtype": options.dtype,
        "batch_tokens": options.batch_tokens,
        "part_size": 1 << 40,
    }
    chosen = SurveySettings(**common).resolved()
    source = ModelSource("random BERT", None, (model, tokenizer))
    replica = Replica(source, chosen)
    sampling = {"labels": True, "examples": 10, "sample": options.windows * options.length}
    labelling = Replica(source, SurveySettings(**common, **sampling).resolved())
    corpus = open_corpus(documents(options.windows, options.length, options.vocab))
    (part,) = parts(corpus.documents("text", 1 << 40), chosen.part_size)
    windows = replica.cutter.cut([one.text for one in part.documents])
    plan = list(batches(windows, chosen.batch_tokens))
    tokens = sum(len(window) for window in windows)
    W_O = [
        layer.attention.output.dense.weight.detach().float().T.reshape(config.num_attention_heads, 64, -1)
        for layer in model.encoder.layer
    ]

    def survey() -> bytes:
        return run_part(replica, part)

    sample = [window for _, window in labelling.cut(part)]

    def atlas() -> None:
        for at, places in enumerate(batches(sample, chosen.batch_tokens)):
            labelling.observe(Batch(at, tuple(sample[place] for place in places), ((),) * len(places)))

    def forward() -> None:
        with torch.inference_mode():
            for batch in plan:
                model(input_ids=torch.from_numpy(np.stack([windows[at].ids for at in batch])).to(options.device))

    def by_maps() -> torch.Tensor:
        model.set_attn_implementation("eager")
        try:
            return usual(model, windows, plan, W_O, options.device)
        finally:
            model.set_attn_implementation("sdpa")

    worst = check(survey(), by_maps(), options.dtype)
    forward()
    ways = {"survey": survey, "atlas": atlas, "forward": forward, "usual": by_maps}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, call in ways.items():
            seconds[name].append(timed(call, options.device))
    result = {
        "model": {"layers": options.layers, "hidden": options.hidden, "dtype": options.dtype, "device": options.device},
        "tokens": tokens,
        "threads": torch.get_num_threads(),
        "worst_difference": worst,
        **{f"{name}_tokens_per_second": tokens / statistics.median(of) for name, of in seconds.items()},
        "of_forward": ratio(seconds["forward"], seconds["survey"]),
        "atlas_of_forward": ratio(seconds["forward"], seconds["atlas"]),
        "times_usual": ratio(seconds["usual"], seconds["survey"]),
        "seconds": seconds,
    }
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(
        f"survey at {result['of_forward']['median']:.2f} of the forward's speed (aim: 0.7), "
        f"the sample at {result['atlas_of_forward']['median']:.2f} (aim: 0.7), "
        f"{result['times_usual']['median']:.2f} times the usual way's (aim: 2.5)",
        file=sys.stderr,
    )


def run_part(replica: Replica, part: CorpusPart) -> bytes:
    """A part's Parquet bytes."""
    return replica.run(part, Owner("benchmark", "benchmark"))[0]


def ratio(theirs: list[float], ours: list[float]) -> dict[str, float]:
    """Round by round, theirs / ours: median, lowest and highest."""
    ratios = [other / own for other, own in zip(theirs, ours, strict=True)]
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


if __name__ == "__main__":
    main()

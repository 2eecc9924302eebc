"""The basics: shapes and one forward pass, compared with transformers as ratios within one run.

    python benchmarks/ground.py [--rounds 5] [--json FILE]

It makes BERT-base and BERT-large checkpoints with random weights of the true shapes in a temporary folder (1.8 GB).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

from measure import Pair, pair_calls, pair_processes

os.environ["HF_HUB_OFFLINE"] = "1"

NOTEBOOK = """
from transformers import BertModel
model = BertModel.from_pretrained({folder!r})
for name, parameter in model.named_parameters():
    print(name, tuple(parameter.shape))
print(sum(parameter.numel() for parameter in model.parameters()))
"""

ATTENTIONS = """
import torch
from transformers import AutoTokenizer, BertModel
tokenizer = AutoTokenizer.from_pretrained({folder!r}, trust_remote_code=False)
model = BertModel.from_pretrained({folder!r}, attn_implementation="eager").eval()
with torch.inference_mode():
    outputs = model(**tokenizer({text!r}, return_tensors="pt"), output_attentions=True)
print(outputs.attentions[3][0, 5])
"""

SIZES = {
    "base": {},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}
WORDS = [f"w{letter}" for letter in "abcdefghij"]


def make(folder: Path, **config: int) -> Path:
    """A BertModel with random weights and a small vocabulary file, in transformers' own format."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    BertModel(BertConfig(**config)).save_pretrained(folder)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    rest = [f"[unused{i}]" for i in range(30522 - len(special) - len(WORDS))]
    (folder / "vocab.txt").write_text("\n".join([*special, *WORDS, *rest]) + "\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    )
    return folder


def headscope(*arguments: str) -> list[str]:
    """The command line, as a user runs it."""
    return [str(Path(sys.executable).with_name("headscope")), *arguments]


def trace_memory(folder: Path, tokens: int) -> dict[str, float]:
    """Megabytes of a trace, and the additional peak while it is made, by NumPy's allocations."""
    import headscope as hs

    model = hs.open(folder)
    ids = [5 + i % 1000 for i in range(tokens)]
    model.trace(ids=ids[:8])
    tracemalloc.start()
    trace = model.trace(ids=ids)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"trace": trace.nbytes / 1e6, "beyond": (peak - trace.nbytes) / 1e6, "maps": 12 * 12 * tokens**2 * 4 / 1e6}


def encoder(folder: Path, tokens: int, rounds: int) -> Pair:
    """A warm forward pass with its trace, against transformers' eager forward with attentions; two threads each."""
    import torch
    from transformers import BertModel

    import headscope as hs

    torch.set_num_threads(2)
    theirs = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    ours = hs.open(folder)
    ids = [5 + i % 1000 for i in range(tokens)]
    batch = torch.tensor([ids])

    def run_theirs() -> object:
        with torch.inference_mode():
            return theirs(batch, output_attentions=True)

    return pair_calls(lambda: ours.trace(ids=ids), run_theirs, rounds=rounds)


def main() -> None:
    """Measure, and print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--make", type=Path, help="only make that checkpoint, by the folder's name: base or large")
    options = parser.parse_args()
    if options.make:
        make(options.make, **SIZES[options.make.name])
        return
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "2")
    with tempfile.TemporaryDirectory() as made:
        base, large = Path(made) / "base", Path(made) / "large"
        for folder in (base, large):  # in processes of their own: a child's peak memory counts what its parent held
            subprocess.run([sys.executable, "-W", "ignore", __file__, "--make", str(folder)], check=True)
        text = " ".join(WORDS)  # 12 tokens with [CLS] and [SEP]
        shapes = pair_processes(
            headscope("shapes", str(large)),
            [sys.executable, "-c", NOTEBOOK.format(folder=str(large))],
            rounds=options.rounds,
        )
        attend = pair_processes(
            headscope("attend", str(base), text, "--heads", "3.5"),
            [sys.executable, "-c", ATTENTIONS.format(folder=str(base), text=text)],
            rounds=options.rounds,
        )
        forward = {tokens: encoder(base, tokens, options.rounds) for tokens in (128, 512)}
        memory = {tokens: trace_memory(base, tokens) for tokens in (256, 512)}
    assert shapes.megabytes is not None
    print("| what | headscope | transformers | ratio (lowest to highest) | aim |")
    print("|---|---|---|---|---|")
    for name, pair, aim in (
        ("`shapes` of BERT-large, whole process", shapes, "30 times faster"),
        ("`attend`, BERT-base, 12 tokens, whole process", attend, "6 times faster"),
    ):
        print(
            f"| {name} | {pair.ours:.2f} s | {pair.theirs:.2f} s | {pair.ratio:.0f} times faster "
            f"({pair.low:.0f} to {pair.high:.0f}) | {aim} |"
        )
    print(f"| peak memory of `shapes` | {shapes.megabytes[0]:.0f} MB | {shapes.megabytes[1]:.0f} MB | | under 80 MB |")
    for tokens, pair in forward.items():
        print(
            f"| forward with a trace, {tokens} tokens, warm | {pair.ours:.3f} s | {pair.theirs:.3f} s (eager) | "
            f"{1 / pair.ratio:.2f} of its time ({1 / pair.high:.2f} to {1 / pair.low:.2f}) | at most 2 |"
        )
    for tokens, found in memory.items():
        print(
            f"| memory of a trace, {tokens} tokens | {found['trace']:.1f} MB + {found['beyond']:.1f} MB while made | "
            f"{found['maps']:.1f} MB of maps alone | | linear |"
        )
    if options.json:
        figures = {
            "shapes": vars(shapes),
            "attend": vars(attend),
            "encoder": {str(tokens): vars(pair) for tokens, pair in forward.items()},
            "memory_mb": {str(tokens): found for tokens, found in memory.items()},
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

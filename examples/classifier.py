"""Your own text classifier, from raw text to a picture of its heads, in seconds on a laptop.

    python examples/classifier.py
    python examples/classifier.py --html heads.html            # all heads, in a browser
    python examples/classifier.py --save heads.safetensors     # then: hs.load("heads.safetensors")

It tells Jane Austen's sentences (*Pride and Prejudice*, 1813, austen.txt) from Herman Melville's (*Moby-Dick*, 1851,
melville.txt), both in the public domain. The model is nn.TransformerEncoder with a linear layer; nothing in
it depends on headscope.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch
from torch import nn

from headscope.live import capture
from headscope.traces import Trace

AUTHORS = ("Austen", "Melville")
FOLDER = Path(__file__).parent
PADDING, START, UNKNOWN = "[PAD]", "[START]", "[UNKNOWN]"


def pieces(text: str) -> list[str]:
    """Words and punctuation, in lower case."""
    return re.findall(r"[a-z]+|[^\sa-z]", text.lower())


class Classifier(nn.Module):
    """Embeddings, three layers of nn.TransformerEncoder with four heads, and a classifier on the start token."""

    def __init__(self, vocabulary: list[str], width: int = 32) -> None:
        super().__init__()
        self.ids = {piece: index for index, piece in enumerate(vocabulary)}
        self.words = nn.Embedding(len(vocabulary), width, padding_idx=0)
        self.places = nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)
        self.says = nn.Linear(width, len(AUTHORS))

    def encode(self, texts: list[str]) -> torch.Tensor:
        """(texts, tokens) ids, padded with 0."""
        rows = [[self.ids.get(piece, self.ids[UNKNOWN]) for piece in [START, *pieces(text)]] for text in texts]
        longest = max(len(row) for row in rows)
        return torch.tensor([row + [0] * (longest - len(row)) for row in rows])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        return self.says(self.encoder(x, src_key_padding_mask=ids == 0)[:, 0])


def train(seed: int = 0, steps: int = 60) -> tuple[Classifier, list[str]]:
    """A classifier of the two authors' sentences, and its vocabulary."""
    torch.manual_seed(seed)
    lines = [(FOLDER / f"{author.lower()}.txt").read_text(encoding="utf-8").splitlines() for author in AUTHORS]
    texts = [*lines[0], *lines[1]]
    labels = torch.tensor([0] * len(lines[0]) + [1] * len(lines[1]))
    known = sorted({piece for text in texts for piece in pieces(text)})
    vocabulary = [PADDING, START, UNKNOWN, *known]
    model = Classifier(vocabulary)
    ids = model.encode(texts)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(ids), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval(), vocabulary


def look(model: Classifier, vocabulary: list[str], text: str) -> tuple[Trace, str]:
    """A trace of one text, and the model's prediction."""
    with torch.inference_mode(), capture(model, tokenizer=vocabulary) as captured:
        logits = model(model.encode([text]))
    return captured.trace, AUTHORS[int(logits.argmax())]


def picture(trace: Trace, layer: int, head: int) -> str:
    """One head as shades: queries down, keys across."""
    weights = trace[layer, head].weights[:]
    shades = " ░▒▓█"
    width = max(map(len, trace.tokens))
    rows = []
    for token, row in zip(trace.tokens, weights, strict=True):
        cells = "".join(2 * shades[min(4, int(5 * weight / max(weights.max(), 1e-9)))] for weight in row)
        rows.append(f"{token:>{width}} {cells}")
    return "\n".join([f"layer {layer}, head {head}", *rows])


def main() -> None:
    """Train, read one sentence, show what the start token looks at in the last layer, and one whole head."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="?", default="The whale is a man of good fortune.")
    parser.add_argument("--html", help="also write the page of all heads there")
    parser.add_argument("--save", help="also write the trace there")
    options = parser.parse_args()
    model, vocabulary = train()
    trace, author = look(model, vocabulary, options.text)
    print(f"{options.text!r} sounds like {author}.\n")
    last = trace.numbers[-1]
    for head in trace.head_numbers(last):
        row = trace[last, head].weights[0]
        strongest = row.argsort()[::-1][:3]
        keys = ", ".join(f"{trace.tokens[key]} {row[key]:.2f}" for key in strongest)
        print(f"layer {last}, head {head}: {START} looks at {keys}")
    print("\n" + picture(trace, last, 0))
    print("\n" + str(trace.verify()))
    if options.html:
        print(f"\nwritten: {trace.to_html(options.html)}")
    if options.save:
        print(f"\nwritten: {trace.save(options.save)}")


if __name__ == "__main__":
    main()

"""Evaluate a model: predictions of masked tokens in a held-out text, and where its heads look, by headscope."""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from model import choose_masked, masked_score
from tokenizer import MAX_LENGTH
from tokenizers import Tokenizer
from transformers import BertForMaskedLM

import headscope as hs
from data import HELD_OUT, Example, batches, encode, frame, read_document

WINDOW = 128  # pieces of context, [CLS] and [SEP] included
MASKED = 0.15


@dataclass(frozen=True)
class Held:
    """Quality of predictions of masked tokens: `loss` in nats, `accuracy` of the best one, over `count` positions."""

    loss: float
    accuracy: float
    count: int


def windows(documents: list[list[list[int]]]) -> list[Example]:
    """Consecutive whole sentences, as many as fit in `WINDOW` pieces, each sentence once."""
    examples = []
    for document in documents:
        at = 0
        while at < len(document):
            end, size = at + 1, len(document[at])
            while end < len(document) and size + len(document[end]) <= WINDOW - 2:
                size += len(document[end])
                end += 1
            examples.append(frame(document[at:end], split=0))
            at = end
    return examples


@torch.no_grad()
def masked_accuracy(model: BertForMaskedLM, documents: list[list[list[int]]], rounds: int = 1) -> Held:
    """Mask 15% of the pieces, all of them by [MASK], and guess; `rounds` draws, always the same ones."""
    training = model.training
    model.train(False)
    generator = torch.Generator().manual_seed(0)
    loss, correct, count = 0.0, 0, 0
    for _ in range(rounds):
        for batch in batches(windows(documents), tokens=4096):
            masked = choose_masked(torch.from_numpy(batch.ids), MASKED, generator)
            if masked.any():
                score = masked_score(model, batch, masked)
                loss += score.loss.item() * score.count
                correct += score.correct
                count += score.count
    model.train(training)
    return Held(loss / count, correct / count, count)


@dataclass(frozen=True)
class Structure:
    """Means of each head's statistics, as nested lists (layers, heads).

    Attributes:
        previous, next: mean weight on the token before or after, over the queries that have one.
        entropy: mean entropy of a query's weights, in nats.
        length: mean number of tokens of the texts measured on.
    """

    previous: list[list[float]]
    next: list[list[float]]
    entropy: list[list[float]]
    length: float


def structure(folder: Path, texts: list[str]) -> Structure:
    """Trace every text with headscope and average the statistics of its heads."""
    bert = hs.open(folder)
    traces = [bert.trace(text, max_length=MAX_LENGTH) for text in texts]
    measured = [trace.statistics(["previous", "next", "entropy"]) for trace in traces]

    def mean(name: str) -> list[list[float]]:
        return np.mean([one[name] for one in measured], axis=0, dtype=float).round(4).tolist()

    length = float(np.mean([len(trace.tokens) for trace in traces]))
    return Structure(mean("previous"), mean("next"), mean("entropy"), length)


def guesses(model: BertForMaskedLM, tokenizer: Tokenizer, text: str, best: int = 5) -> list[str]:
    """The most probable tokens for the one [MASK] of `text`."""
    encoding = tokenizer.encode(text)
    model.train(False)
    with torch.no_grad():
        logits = model(torch.tensor([encoding.ids])).logits[0, encoding.tokens.index("[MASK]")]  # (pieces,)
    return [str(tokenizer.id_to_token(piece)) for piece in logits.topk(best).indices.tolist()]


SENTENCES = (
    "he took off his [MASK].",
    "The cat sat on the [MASK].",
    "She was a very young [MASK].",
    "I do not [MASK] what you mean.",
    "He opened the [MASK] and went into the house.",
    "The king and the [MASK] lived in a great castle.",
)


@dataclass(frozen=True)
class Evaluation:
    """Everything the model card reports."""

    held_out: Held
    perplexity: float
    structure: Structure
    guesses: dict[str, list[str]]


def evaluate(folder: Path, corpus: Path) -> Evaluation:
    """Evaluate the model in `folder` on the held-out book."""
    model = BertForMaskedLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    sentences = read_document(corpus / HELD_OUT)
    accuracy = masked_accuracy(model, encode([sentences], tokenizer), rounds=5)
    texts = [" ".join(sentences[at : at + 4]) for at in range(0, len(sentences) - 4, len(sentences) // 50)]
    filled = {text: guesses(model, tokenizer, text) for text in SENTENCES}
    return Evaluation(accuracy, float(np.exp(accuracy.loss)), structure(folder, texts), filled)


def main() -> None:
    """Print an evaluation as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of the texts: see training/README.md")
    options = parser.parse_args()
    print(json.dumps(asdict(evaluate(options.model, options.corpus)), indent=1))


if __name__ == "__main__":
    main()

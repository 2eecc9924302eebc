"""Evaluate a model: predictions of masked tokens in a held-out text, and where its heads look, by headscope."""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from model import choose_masked, masked_score
from tokenizers import Tokenizer
from transformers import BertForMaskedLM

import headscope as hs
from data import HELD_OUT, Example, batches, encode, frame, read_document

WINDOW = 128  # pieces of context, [CLS] and [SEP] included
MASKED = 0.15
RESTING = 0.7
"""A head rests on a special token if that gets more of its weight than this."""
EVEN = 0.9
"""A head looks evenly if its entropy is more than this share of the largest possible one."""
PAIRS = 150
"""A relation that occurs less often is left out."""


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
class Relation:
    """How often a head finds the word at the other end of a syntactic relation.

    Attributes:
        relation, direction, layer, head, count: as in `survey.syntax`.
        accuracy: on the sentences that did not choose the head, 0 to 1.
        offset_accuracy: that of the best fixed offset.
    """

    relation: str
    direction: str
    layer: int
    head: int
    accuracy: float
    offset_accuracy: float
    count: int


@dataclass(frozen=True)
class Atlas:
    """What the heads do in a treebank.

    Attributes:
        sentences: number of sentences.
        labels: each head's label, (layers, heads).
        means: statistic -> its mean over sentences, (layers, heads).
        relations: relations with at least `PAIRS` pairs of words, the largest gain over the fixed offset first.
    """

    sentences: int
    labels: list[list[str]]
    means: dict[str, list[list[float]]]
    relations: list[Relation]

    def labelled(self) -> int:
        """Number of heads with a label."""
        return sum(label != "none" for row in self.labels for label in row)

    def idle(self) -> int:
        """Number of heads that rest on [CLS] or [SEP], or look evenly."""
        cls, sep, entropy = (np.array(self.means[name]) for name in ("cls", "sep", "normalised_entropy"))
        return int(((cls > RESTING) | (sep > RESTING) | (entropy > EVEN)).sum())


def atlas(folder: Path, treebank: Path) -> Atlas:
    """Survey a treebank with headscope and keep what the model card says of it."""
    survey = hs.survey(folder, treebank, labels=True, report=False)
    means = {name: survey[name].array for name in ("previous", "next", "cls", "sep", "normalised_entropy")}
    labels = np.full(means["previous"].shape, "none", dtype=object)
    for row in survey.labels.to_pylist():
        labels[row["layer"], row["head"]] = row["label"]
    relations = [
        Relation(
            row["relation"],
            row["direction"],
            row["layer"],
            row["head"],
            round(row["accuracy_held_out"], 4),
            round(row["offset_accuracy"], 4),
            row["count"],
        )
        for row in survey.syntax.to_pylist()
        if row["count"] >= PAIRS
    ]
    relations.sort(key=lambda it: it.offset_accuracy - it.accuracy)
    rounded = {name: values.astype(float).round(4).tolist() for name, values in means.items()}
    return Atlas(survey.manifest["counts"]["windows"], labels.tolist(), rounded, relations)


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
    atlas: Atlas
    guesses: dict[str, list[str]]

    def demands(self) -> dict[str, bool]:
        """What the model has to reach to be bundled, and whether it does. The thresholds were fixed before training."""
        relation = self.atlas.relations[0]
        return {
            "at least 12 of 16 heads have a label": self.atlas.labelled() >= 12,
            "at most 3 heads rest on one token or look evenly": self.atlas.idle() <= 3,
            "a head gives the token before at least 0.9 of its weight": np.max(self.atlas.means["previous"]) >= 0.9,
            "a head gives the token after at least 0.6 of its weight": np.max(self.atlas.means["next"]) >= 0.6,
            "a head finds a relation 12 points better than an offset": relation.accuracy
            >= relation.offset_accuracy + 0.12,
            "at least 38% of the masked pieces of the held-out book are guessed": self.held_out.accuracy >= 0.38,
        }


def evaluate(folder: Path, corpus: Path, treebank: Path) -> Evaluation:
    """Evaluate the model in `folder` on the held-out book and on a treebank."""
    model = BertForMaskedLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    sentences = read_document(corpus / HELD_OUT)
    accuracy = masked_accuracy(model, encode([sentences], tokenizer), rounds=5)
    filled = {text: guesses(model, tokenizer, text) for text in SENTENCES}
    return Evaluation(accuracy, float(np.exp(accuracy.loss)), atlas(folder, treebank), filled)


def main() -> None:
    """Print an evaluation as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of the texts: see training/README.md")
    parser.add_argument("--treebank", type=Path, required=True, help="a .conllu file, or a folder of them")
    options = parser.parse_args()
    evaluation = evaluate(options.model, options.corpus, options.treebank)
    print(json.dumps(asdict(evaluation), indent=1))
    for demand, reached in evaluation.demands().items():
        print("yes" if reached else "NO ", demand)


if __name__ == "__main__":
    main()

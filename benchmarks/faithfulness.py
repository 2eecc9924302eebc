"""Faithfulness of attributions: the change of the prediction if the tokens they name are removed, or kept alone.

    python benchmarks/faithfulness.py --model FOLDER --corpus FOLDER --treebank FILE.conllu --json results.json
    python benchmarks/faithfulness.py --corpus FOLDER --treebank FILE.conllu --quick      # a smoke test

A classifier is trained on each of two real tasks from a pretrained encoder:

    author    who wrote a passage: authors with two books or more, AUTHOR-TITLE.txt; one book of each is held out, and
              names are masked: capitalised words that don't begin a sentence
    speech    the part of speech of a marked word of a treebank; the last sentences are held out

With p(x) the probability of the predicted class, and tokens removed by putting [MASK] in their place (special tokens
stay), strongest first by their score:

    AOPC                 mean over K = 10, 20, … 90 % of p(text) - p(text without the first K %)        higher is better
    comprehensiveness    the same over K = 1, 5, 10, 20, 50 % (DeYoung et al. 2020)                     higher is better
    sufficiency          mean over the same K of p(text) - p(the first K % alone)                       lower is better

    randomised           Spearman's correlation of a method's scores with those on the same model with random weights:
                         near 0 for a method that explains what the model has learnt (Adebayo et al. 2018)

Each task is trained with several seeds. Means over held-out texts of all seeds, 95 % intervals (Student's t). How
methods rank depends on the model, the task and the way of removing: no number here is a property of a method.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import headscope as hs
from headscope.heads.intervals import mean_interval
from headscope.runs.texts import last_states

REMOVED = tuple(range(10, 100, 10))
ERASER = (1, 5, 10, 20, 50)
WORDS = 40
MARKS = ("*", "|", "_", '"')
BOOKS = 2
FEWEST = 30
"""Words of a part of speech that a class is made of."""


@dataclass(frozen=True)
class Example:
    """A text and the number of its class."""

    text: str
    label: int


@dataclass(frozen=True)
class Task:
    """A classification.

    Attributes:
        name: author or speech.
        labels: what the classes are called.
        train, test: texts, from different books or sentences.
    """

    name: str
    labels: tuple[str, ...]
    train: tuple[Example, ...]
    test: tuple[Example, ...]


def without_names(words: list[str], mask: str) -> list[str]:
    """Words that are capitalised within a sentence, but for I, replaced by the mask token."""
    kept = []
    for before, word in zip([".", *words], words, strict=False):
        begins = before.rstrip("\"'”’)_*")[-1:] in ".!?:" or (not before[-1:].isalnum() and before[-1:] not in ",;-")
        name = word[:1].isupper() and not begins and word.strip(".,;:!?'\"") != "I" and not word.startswith("I'")
        kept.append(mask if name else word)
    return kept


def author_task(folder: Path, count: int, seed: int, mask: str) -> Task:
    """Passages of WORDS words by authors of two books or more; the last book of each, by name, is held out."""
    books: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*-*.txt")):
        if not path.stem.split("-")[1][:4].isdecimal():  # a year: speeches by many
            books.setdefault(path.stem.split("-")[0], []).append(path)
    authors = sorted(name for name, paths in books.items() if len(paths) >= BOOKS)
    generator = random.Random(seed)

    def passages(paths: Iterable[Path], label: int) -> list[Example]:
        words = [without_names(path.read_text(encoding="utf-8", errors="replace").split(), mask) for path in paths]
        starts = [(item, at) for item in words for at in range(0, len(item) - WORDS, WORDS)]
        return [
            Example(" ".join(item[at : at + WORDS]), label)
            for item, at in generator.sample(starts, min(count, len(starts)))
        ]

    train = [item for label, name in enumerate(authors) for item in passages(books[name][:-1], label)]
    test = [item for label, name in enumerate(authors) for item in passages(books[name][-1:], label)]
    return Task("author", tuple(authors), _mixed(train, generator), _mixed(test, generator))


def speech_task(path: Path, mark: str, count: int, seed: int) -> Task:
    """Sentences with one word between marks; its class is the word's part of speech (column UPOS)."""
    sentences: list[list[tuple[str, str]]] = [[]]
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = line.split("\t")
        if not line:
            sentences.append([])
        elif len(fields) == 10 and fields[0].isdecimal():
            sentences[-1].append((fields[1], fields[3]))
    sentences = [item for item in sentences if item]
    tags = Counter(tag for item in sentences for _, tag in item)
    labels = sorted(tag for tag, times in tags.items() if times >= FEWEST and tag not in ("PUNCT", "SYM", "X"))
    generator = random.Random(seed)

    def marked(several: Sequence[list[tuple[str, str]]]) -> tuple[Example, ...]:
        result: dict[str, list[Example]] = {tag: [] for tag in labels}
        for item in several:
            for at, (_, tag) in enumerate(item):
                if tag in result:
                    words = [f"{mark} {word} {mark}" if at == place else word for place, (word, _) in enumerate(item)]
                    result[tag].append(Example(" ".join(words), labels.index(tag)))
        return _mixed(
            [item for rows in result.values() for item in generator.sample(rows, min(count, len(rows)))], generator
        )

    cut = len(sentences) * 7 // 10
    return Task("speech", tuple(labels), marked(sentences[:cut]), marked(sentences[cut:]))


def _mixed(examples: list[Example], generator: random.Random) -> tuple[Example, ...]:
    return tuple(generator.sample(examples, len(examples)))


def train(base: Path, task: Task, folder: Path, *, epochs: int, rate: float, batch: int, seed: int) -> float:
    """Train a classifier, save it with its tokenizer, and return its accuracy on the held-out texts."""
    torch.manual_seed(seed)
    names = dict(enumerate(task.labels))
    module = transformers.AutoModelForSequenceClassification.from_pretrained(
        base, trust_remote_code=False, id2label=names, num_labels=len(names)
    )
    model = hs.open(base)
    padding = model.tokenizer.pad_id or 0
    most = min(128, model.anatomy.longest_text)

    def tensors(examples: Sequence[Example]) -> dict[str, torch.Tensor]:
        rows = [list(model.tokenizer.encode(item.text, max_length=most).ids) for item in examples]
        longest = max(map(len, rows))
        return {
            "input_ids": torch.tensor([row + [padding] * (longest - len(row)) for row in rows]),
            "attention_mask": torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows]),
            "labels": torch.tensor([item.label for item in examples]),
        }

    optimizer = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=0.01)
    steps = epochs * math.ceil(len(task.train) / batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, 10 * (step + 1) / steps) * (1 - step / steps)
    )
    module.train()
    for epoch in range(epochs):
        order = random.Random(seed + epoch).sample(task.train, len(task.train))
        for start in range(0, len(order), batch):
            loss = module(**tensors(order[start : start + batch])).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    module.eval()
    right = 0
    with torch.inference_mode():
        for start in range(0, len(task.test), batch):
            inputs = tensors(task.test[start : start + batch])
            right += int((module(**inputs).logits.argmax(-1) == inputs["labels"]).sum())
    module.save_pretrained(folder)
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "vocab.txt",
        "merges.txt",
        "vocab.json",
    ):
        if (base / name).is_file():
            shutil.copy(base / name, folder / name)
    return right / len(task.test)


Scorer = Callable[[str], np.ndarray]


def scorers(model: hs.Model, seed: int) -> dict[str, Scorer]:
    """Each method as a function from a text to a score per token, greater for tokens that support the prediction."""
    generator = np.random.default_rng(seed)

    def weights(text: str) -> np.ndarray:
        """The last layer's weights of the first token, mean over heads."""
        trace = model.trace(text)
        return np.mean([head.weights[0] for head in trace[len(trace.layers) - 1]], axis=0)

    def rollout(text: str) -> np.ndarray:
        """Abnar and Zuidema 2020: the first token's row of the product of (A + I) / 2 over layers."""
        trace = model.trace(text)
        row = np.eye(len(trace))[0]
        for layer in reversed(range(len(trace.layers))):
            row = row / 2 + sum(row @ np.asarray(head.weights) for head in trace[layer]) / trace.heads / 2
        return row

    def norms(text: str) -> np.ndarray:
        """Kobayashi et al. 2020: |sum_h p_0j v_j W_O| in the last layer."""
        trace = model.trace(text)
        last = len(trace.layers) - 1
        sent = sum(head.weights[0][:, None] * (head.v @ model.W_O(last, head.head)) for head in trace[last])
        return np.linalg.norm(sent, axis=-1)

    return {
        "decompx": lambda text: model.attribute(text).scores,
        "weights": weights,
        "rollout": rollout,
        "norms": norms,
        "random": lambda text: generator.random(len(model.tokenizer.encode(text))),
    }


def measured(model: hs.Model, text: str, scores: np.ndarray) -> dict[str, float]:
    """AOPC, comprehensiveness and sufficiency of one text's scores."""
    encoded = model.tokenizer.encode(text)
    mask = model.tokenizer.mask_id
    assert mask is not None
    content = [at for at, special in enumerate(encoded.special) if not special]
    order = sorted(content, key=lambda at: -scores[at])

    def without(gone: Iterable[int]) -> tuple[int, ...]:
        left = set(gone)
        return tuple(mask if at in left else index for at, index in enumerate(encoded.ids))

    def first(share: int) -> int:
        return max(1, math.ceil(len(order) * share / 100))

    runs = [encoded.ids]
    runs += [without(order[: first(share)]) for share in (*REMOVED, *ERASER)]
    runs += [without(order[first(share) :]) for share in ERASER]
    states = last_states(model, [(ids, encoded.segments) for ids in runs])
    logits = np.stack([model.tops.sequence(state) for state in states]).astype(np.float64)
    chances = np.exp(logits - logits.max(1, keepdims=True))
    chances = chances / chances.sum(1, keepdims=True)
    lost = chances[0, logits[0].argmax()] - chances[1:, logits[0].argmax()]
    parts = np.split(lost, [len(REMOVED), len(REMOVED) + len(ERASER)])
    return {
        name: float(part.mean()) for name, part in zip(("AOPC", "comprehensiveness", "sufficiency"), parts, strict=True)
    }


def ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each value, ties in order."""
    return np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)


def agreement(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's correlation; 0 where all values of one are equal."""
    a, b = ranks(first), ranks(second)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / size if size else 0.0


def randomised(folder: Path, task: Task, seed: int) -> None:
    """Write the same classifier with random weights beside its tokenizer."""
    torch.manual_seed(1000 + seed)
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(folder / "random")
    for path in folder.iterdir():
        if path.is_file() and path.name not in ("config.json", "model.safetensors"):
            shutil.copy(path, folder / "random" / path.name)


def evaluate(folder: Path, task: Task, texts: int, seed: int) -> dict[str, list[dict[str, float]]]:
    """Every method on the first held-out texts: a row of measures for each text."""
    model = hs.open(folder)
    randomised(folder, task, seed)
    other = hs.open(folder / "random")
    noise = scorers(other, seed + 1)
    chosen = [item.text for item in task.test if len(model.tokenizer.encode(item.text)) <= model.anatomy.longest_text][
        :texts
    ]
    table: dict[str, list[dict[str, float]]] = {}
    for name, scorer in scorers(model, seed).items():
        started = time.perf_counter()
        table[name] = []
        for text in chosen:
            scores = scorer(text)
            content = ~np.array(model.tokenizer.encode(text).special)
            alike = agreement(scores[content], noise[name](text)[content])
            table[name].append({**measured(model, text, scores), "randomised": alike})
        print(f"  {name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return table


def summary(tables: Sequence[dict[str, list[dict[str, float]]]]) -> dict[str, dict[str, list[float]]]:
    """Means and intervals over the texts of all seeds: method -> measure -> mean, low, high."""
    methods: dict[str, dict[str, list[float]]] = {}
    for name in tables[0]:
        rows = [row for table in tables for row in table[name]]
        methods[name] = {
            measure: [float(value) for value in mean_interval(np.array([row[measure] for row in rows]))]
            for measure in rows[0]
        }
    return methods


def markdown(results: dict[str, Any]) -> str:
    """A table for each task."""
    lines = []
    for name, result in results.items():
        classes = len(result["labels"])
        accuracies = ", ".join(f"{value:.3f}" for value in result["accuracies"])
        lines += [f"{name}: {result['texts']} texts, {classes} classes, accuracies {accuracies}", ""]
        lines += ["| method | AOPC | comprehensiveness | sufficiency | randomised |", "|---|---:|---:|---:|---:|"]
        for method, row in sorted(result["methods"].items(), key=lambda item: -item[1]["AOPC"][0]):
            cells = (f"{mean:.3f} ({low:.3f} to {high:.3f})" for mean, low, high in row.values())
            lines.append(f"| {method} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Train, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="-", help="a pretrained encoder's folder; the bundled model by default")
    parser.add_argument("--corpus", type=Path, required=True, help="a folder of AUTHOR-TITLE.txt")
    parser.add_argument("--treebank", type=Path, required=True, help="a .conllu file")
    parser.add_argument("--passages", type=int, default=600, help="training texts of each class, at most")
    parser.add_argument("--texts", type=int, default=200, help="held-out texts that attributions are measured on")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    given = parser.parse_args()
    if given.quick:
        given.passages, given.texts, given.epochs, given.seeds = 8, 3, 1, 2
    model = hs.open(given.model)
    base = Path(model.checkpoint.where)
    mark = next(sign for sign in MARKS if model.tokenizer.id(sign) is not None)
    results: dict[str, Any] = {}
    tables: dict[str, list[dict[str, list[dict[str, float]]]]] = {}
    for seed in range(given.seeds):
        for task in (
            author_task(given.corpus, given.passages, seed, model.tokenizer.mask_token or ""),
            speech_task(given.treebank, mark, given.passages, seed),
        ):
            with tempfile.TemporaryDirectory() as folder:
                options = {"epochs": given.epochs, "rate": given.rate, "batch": given.batch, "seed": seed}
                accuracy = train(base, task, Path(folder), **options)
                print(f"{task.name}, seed {seed}: accuracy {accuracy:.3f}", file=sys.stderr, flush=True)
                tables.setdefault(task.name, []).append(evaluate(Path(folder), task, given.texts, seed))
            result = results.setdefault(
                task.name, {"labels": task.labels, "trained_on": len(task.train), "accuracies": []}
            )
            result["accuracies"].append(accuracy)
            result["methods"] = summary(tables[task.name])
            result["texts"] = sum(len(table["random"]) for table in tables[task.name])
    if given.json is not None:
        given.json.write_text(
            json.dumps({"settings": {**vars(given), "json": None}, "results": results}, default=str, indent=1)
        )
    print(markdown(results))


if __name__ == "__main__":
    main()

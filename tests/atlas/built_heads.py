"""Heads as arrays: weights between the words of sentences, and what a survey would observe of them.

Choices are taken with loops, not with the code that surveys use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from headscope.atlas.documents import Sentence
from headscope.atlas.labels.evidence import COLUMNS
from headscope.atlas.observe import Observed
from headscope.atlas.shapes import SUMS
from headscope.atlas.words import Words
from headscope.heads.windows import Window

Weights = Callable[["Made", np.random.Generator], np.ndarray]
"""(words, words) of scores, query by key, of one sentence; or (words, tokens)."""

TREEBANK = Path(__file__).parents[2] / "docs" / "walkthroughs" / "pud" / "en_pud-first500.conllu"


@dataclass(frozen=True)
class Made:
    """A sentence: forms, sizes in tokens, tags, heads and relations."""

    forms: tuple[str, ...]
    sizes: tuple[int, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]

    def are(self, *tags: str) -> np.ndarray:
        """(words,), True for words with one of these tags."""
        return np.array([tag in tags for tag in self.tags])


def sentences(count: int) -> list[Made]:
    """The first sentences of the treebank of the guide; long words have up to three tokens."""
    made = []
    for block in TREEBANK.read_text(encoding="utf-8").split("\n\n")[:count]:
        rows = [line.split("\t") for line in block.splitlines() if line[:1].isdigit()]
        words = [row for row in rows if row[0].isdigit()]
        forms = tuple(row[1] for row in words)
        sizes = tuple(1 if len(form) < 7 else 1 + hash_of(form) % 3 for form in forms)
        heads = tuple(int(row[6]) - 1 for row in words)
        of = Made(forms, sizes, tuple(row[3] for row in words), heads, tuple(row[7] for row in words))
        made.append(_bracketed(of, len(made) * 7 % (len(forms) - 1)) if len(made) % 4 < 2 else of)
    return made


def _bracketed(of: Made, at: int) -> Made:
    """A sentence with brackets around one of its words."""
    places = [place + (place >= at) + (place > at) for place in range(len(of.forms))]
    count = len(of.forms) + 2
    forms, tags, relations = (["("] * count, ["PUNCT"] * count, ["punct"] * count)
    sizes, heads = [1] * count, [at + 1] * count
    forms[at + 2] = ")"
    for old, place in enumerate(places):
        forms[place], tags[place], relations[place] = of.forms[old], of.tags[old], of.relations[old]
        sizes[place], heads[place] = of.sizes[old], places[of.heads[old]] if of.heads[old] >= 0 else -1
    return Made(tuple(forms), tuple(sizes), tuple(tags), tuple(heads), tuple(relations))


def choices(weights: np.ndarray, sizes: Sequence[int]) -> list[tuple[int, float, float]]:
    """Of each word its choice, its strength and its weight: w - W b, row by row."""
    rows = []
    for i, row in enumerate(weights):
        others = [j for j in range(len(row)) if j != i]
        if not others:
            return [(-1, 0.0, 0.0)]
        even = row[others].sum() * np.array(sizes)[others] / np.array(sizes)[others].sum()
        excess = row[others] - even
        best = int(np.argmax(excess))
        sure = row[others[best]] >= 2 * even[best]
        rows.append((others[best], max(float(excess[best]), 0.0) if sure else 0.0, float(row[others[best]])))
    return rows


def spread(scores: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Weights between words from scores: every token of a word has the word's, or each its own; sums over tokens."""
    of = np.repeat(np.arange(len(sizes)), sizes)
    tokens = scores if scores.shape[1] == len(of) else scores[:, of]
    weights = np.exp(tokens - tokens.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    return np.stack([weights[:, of == word].sum(1) for word in range(len(sizes))], 1)


def hash_of(form: str) -> int:
    """A number of a vocabulary for a form."""
    return sum(ord(sign) * 31**at for at, sign in enumerate(form.casefold())) % 7919


def observed(made: Sequence[Made], heads: Sequence[Weights], *, trees: bool = True) -> tuple[Observed, pyarrow.Table]:
    """What is observed of heads, each sentence a document of one window; and the table of their strongest pairs."""
    generator = np.random.default_rng(11)
    rows: list[tuple[Any, ...]] = []
    taken: list[list[list[tuple[int, float, float]]]] = []
    strong = np.zeros((2, len(heads)), dtype=np.int64)
    for number, sentence in enumerate(made):
        taken.append([])
        for cell, score in enumerate(heads):
            scores = score(sentence, generator)
            scores = scores + generator.normal(size=scores.shape)  # of equals, now one is chosen, now another
            taken[-1].append(choices(spread(scores, sentence.sizes), sentence.sizes))
            strong[number % 2, cell] += sum(strength > 0 for _, strength, _ in taken[-1][-1])
            for query, (key, strength, weight) in enumerate(taken[-1][-1]):
                if strength > 0:
                    forms = sentence.forms[query], sentence.forms[key]
                    rows.append((number % 2, cell, number, query, key, strength, weight, *forms))
    rows.sort(key=lambda row: (row[0], row[1], -row[5], row[2], row[3]))
    counts: Counter[tuple[object, ...]] = Counter()
    sizes: Counter[tuple[object, ...]] = Counter()
    kept = []
    for row in rows:
        place, forms = row[:2], (*row[:2], row[7].casefold(), row[8].casefold())
        counts[forms] += 1
        if counts[forms] <= 2 and sizes[place] < 300:
            sizes[place] += 1
            kept.append(row)
    pairs = pyarrow.table({name: [row[at] for row in kept] for at, name in enumerate(COLUMNS)})
    ones, far = np.ones(len(heads)), np.full(len(heads), 1 << 20)
    sums = dict.fromkeys((*SUMS, "even", "odd", "behind", "ahead"), ones)
    sums |= {"even": strong[0], "odd": strong[1], "behind": far, "ahead": far}
    windows = [_window(number, of, trees=trees) for number, of in enumerate(made)]
    columns = [[np.array([[row[at] for row in of] for of in cells]) for cells in taken] for at in range(3)]
    return Observed([str(number) for number in range(len(made))], windows, *columns, sums), pairs


def _window(number: int, of: Made, *, trees: bool) -> Window:
    of_token = np.repeat(np.arange(len(of.sizes)), of.sizes)
    ids = np.array([hash_of(of.forms[word]) for word in of_token])
    tree = Sentence(1, of.forms, of.tags, of.heads, of.relations) if trees else None
    nothing: Any = None  # no label asks for roles of tokens
    return Window(number, 0, ids, np.zeros_like(ids), nothing, Words(of_token, of.forms, tree))


def no_vectors(ids: Sequence[int]) -> np.ndarray:
    """A model without input embeddings."""
    return np.zeros((len(ids), 0))


def random_vectors(ids: Sequence[int]) -> np.ndarray:
    """Embeddings in which no word is like another."""
    return np.array([np.random.default_rng(number).normal(size=24) for number in ids])

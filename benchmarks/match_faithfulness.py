"""Faithfulness of a match's words: do the words with the greatest shares of a cosine move it most when masked?

    python benchmarks/match_faithfulness.py --model FOLDER --corpus FOLDER --pairs 60

Pairs of sentences from a folder of texts that are each other's nearest among a sample. Every word of both sentences is
masked for real, alone, and each method's share of the word is compared with what the cosine loses: Spearman's
correlation over the words of a pair. Means over pairs with 95 % intervals (Student's t).

    input, ratio        the default: linear propagation to input words, activations held by ratios f(x) / x (DecompX)
    input, tangent      the same with their tangents
    output              the parts of the pooled vectors
    occlusion           each word left out of the text instead of masked: the ceiling, for no share can agree with
                        masking better than another way to remove the word does
    random              chance
    kappa               median over pairs of what cancels in the shares
    lead                of the default over each other method, the mean over pairs of the difference
"""

from __future__ import annotations

import argparse
import random
import re
from pathlib import Path

import numpy as np
import torch

import headscope as hs
from headscope.encoder.task_heads import cosines_with, pooled
from headscope.explain import matching
from headscope.heads.intervals import mean_interval
from headscope.results.match_record import Match
from headscope.runs.texts import encoded_text, last_states

SENTENCE = re.compile(r"[A-Z][^.!?]{30,110}[.!?]")


def nearest_pairs(model: hs.Model, folder: Path, count: int, sample: int, seed: int) -> list[tuple[str, str]]:
    """Pairs of sentences of different texts with the highest cosines, each sentence once."""
    generator = random.Random(seed)
    sentences: list[tuple[int, str]] = []
    for number, path in enumerate(sorted(folder.glob("*.txt"))):
        found = SENTENCE.findall(" ".join(path.read_text(encoding="utf-8", errors="replace").split()))
        sentences += [(number, text) for text in generator.sample(found, min(len(found), sample))]
    states = last_states(model, [encoded_text(model, text, max_length=64) for _, text in sentences])
    vectors = np.stack([pooled(state, model.pooling) for state in states])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    source = np.array([number for number, _ in sentences])
    cosines[source[:, None] == source[None]] = -1
    pairs: list[tuple[str, str]] = []
    used: set[int] = set()
    for flat in np.argsort(-cosines, axis=None):
        a, b = (int(at) for at in np.unravel_index(flat, cosines.shape))
        if not {a, b} & used:
            pairs.append((sentences[a][1], sentences[b][1]))
            used |= {a, b}
        if len(pairs) == count:
            break
    return pairs


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's correlation, ties in order."""
    ranks = [np.argsort(np.argsort(values, kind="stable")).astype(float) for values in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def shares(match: Match) -> np.ndarray:
    """The shares of all words of both sides."""
    return np.array([part.share for side in ("query", "document") for part in match.parts(side) if not part.special])


def left_out(model: hs.Model, a: str, b: str, match: Match) -> np.ndarray:
    """What the cosine loses when a word is left out of its text."""
    found: list[float] = []
    vectors = [
        pooled(last_states(model, [encoded_text(model, text, max_length=None)])[0], model.pooling) for text in (a, b)
    ]
    for text, vector, other, side in ((a, *vectors, match.query), (b, *vectors[::-1], match.document)):
        encoded = encoded_text(model, text, max_length=None)
        shorter = []
        for part in side.parts():
            if not part.special:
                kept = [at for at in range(len(encoded)) if at not in part.tokens]
                shorter.append(tuple(tuple(of[at] for at in kept) for of in (encoded.ids, encoded.segments)))
        without = np.stack([pooled(state, model.pooling) for state in last_states(model, shorter)])
        found += list(cosines_with(other, vector[None]) - cosines_with(other, without))
    return np.array(found)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="a bi-encoder's folder")
    parser.add_argument("--corpus", type=Path, required=True, help="a folder of .txt")
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--sample", type=int, default=60, help="sentences of each text")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, generator = hs.open(given.model), np.random.default_rng(given.seed)
    table: dict[str, list[float]] = {}
    kappas: dict[str, list[float]] = {}
    for a, b in nearest_pairs(model, given.corpus, given.pairs, given.sample, given.seed):
        result = hs.match(model, a, b, check=False)
        parts = result.check(0, 10_000)
        order = {(part.side, part.tokens): part.change for part in parts}
        words = [part for side in ("query", "document") for part in result[0].parts(side) if not part.special]
        truth = np.array([order[part.side, part.tokens] for part in words])
        with_tangents = by_tangents(model, a, b)
        methods = {
            "input, ratio": shares(result[0]),
            "input, tangent": shares(with_tangents),
            "output": shares(hs.match(model, a, b, level="output", check=False)[0]),
            "occlusion": left_out(model, a, b, result[0]),
            "random": generator.random(len(words)),
        }
        for name, values in methods.items():
            table.setdefault(name, []).append(spearman(values, truth))
        for name, match in (("input, ratio", result[0]), ("input, tangent", with_tangents)):
            kappas.setdefault(name, []).append(match.kappa)
    for name, values in table.items():
        kappa = f", kappa {np.median(kappas[name]):.2f}" if name in kappas else ""
        lead = np.array(table["input, ratio"]) - np.array(values)
        print(f"| {name} | {_interval(np.array(values))}{kappa} | {_interval(lead)} |")


def _interval(values: np.ndarray) -> str:
    mean, low, high = (float(value) for value in mean_interval(values))
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"


def by_tangents(model: hs.Model, a: str, b: str) -> Match:
    """The match with activations held by their tangents."""
    before, matching.SLOPES = matching.SLOPES, "tangent"
    try:
        return hs.match(model, a, b, check=False)[0]
    finally:
        matching.SLOPES = before


if __name__ == "__main__":
    main()

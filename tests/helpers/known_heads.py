"""A BERT whose heads do known things, and noise; and a treebank of made-up sentences to find them out on.

Embeddings are one-hot: positions in the first numbers, words in the next. So W_Q and W_K say for each position and word
which position and word it looks for. Nothing is added to the hidden states, so both layers see the embeddings. Beyond
what heads read, a word has a number that it shares with its near synonym (CLUSTERS), so that their cosine is 0.5.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

NOUNS = ("horse", "mouse", "table", "sheep", "tiger", "queen")
VERBS = ("found", "heard", "liked", "chased")
ADJECTIVES = ("big", "red", "tired")
PIECES = ("tir", "##ed")
OTHERS = ("the", "often", "and", ",", ".")
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *NOUNS, *VERBS, "big", "red", *PIECES, *OTHERS)
CLUSTERS = (("horse", "sheep"), ("mouse", "tiger"), ("table", "queen"), ("found", "heard"), ("liked", "chased"))
"""Near synonyms, by their embeddings."""
LENGTH = 32
WIDTH = 64
"""Of a head: positions and words fit in."""
HEADS = 12
SHARP = 9.0


def wanted_scores() -> list[np.ndarray]:
    """For each head of layer 0 the scores, query by key, of (positions, words) with themselves."""
    size = LENGTH + len(VOCABULARY)
    at = {word: LENGTH + place for place, word in enumerate(VOCABULARY)}
    position = slice(0, LENGTH)
    found = [np.zeros((size, size)) for _ in range(HEADS)]
    for head, offset in ((0, -1), (1, 1), (2, 2)):
        found[head][position, position] = SHARP * np.eye(LENGTH, k=offset)
    for word in (*NOUNS, *VERBS, *ADJECTIVES[:2]):
        found[3][at[word], at[word]] = SHARP
    found[4][position, [at[","], at["."]]] = SHARP
    found[5][position, 0] = SHARP
    found[6][position, at["[SEP]"]] = SHARP
    found[8][at["tir"], at["##ed"]] = found[8][at["##ed"], at["tir"]] = SHARP
    for word, much in zip((*NOUNS, *VERBS), np.linspace(0, SHARP / 1.5, 10), strict=True):
        found[9][position, at[word]] = much
    nouns, verbs = [at[noun] for noun in NOUNS], [at[verb] for verb in VERBS]
    found[10][np.ix_(nouns, verbs)] = SHARP
    gaps = np.arange(LENGTH)[None] - np.arange(LENGTH)[:, None]
    found[10][position, position] = np.where(gaps < 0, 0.6 * gaps, -1.2 * gaps)
    return found


def noise_scores(seed: int, heads: int, scale: float = 1.5) -> list[np.ndarray]:
    """Heads that do nothing in particular."""
    generator, size = np.random.default_rng(seed), LENGTH + len(VOCABULARY)
    return [generator.normal(size=(size, size), scale=scale) for _ in range(heads)]


def known_heads(folder: Path, scores: list[list[np.ndarray]] | None = None) -> Path:
    """The checkpoint: heads that do what wanted_scores says and noise, or heads with these scores in two layers."""
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    sizes = {"vocab_size": len(VOCABULARY), "hidden_size": HEADS * WIDTH, "num_attention_heads": HEADS}
    sizes |= {"num_hidden_layers": 2, "intermediate_size": 8, "max_position_embeddings": LENGTH}
    model: Any = BertModel(BertConfig(**sizes)).eval()
    size = LENGTH + len(VOCABULARY)
    if scores is None:
        noise = noise_scores(1, 1 + HEADS)
        scores = [[*wanted_scores()[:-1], noise[0]], noise[1:]]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # LayerNorm brings a vector of three ones to sqrt(width / 3) there; its weight brings it back to 1.
            normed = "LayerNorm.weight" in name
            parameter.fill_((3 / (HEADS * WIDTH)) ** 0.5 if normed else 0)
        embeddings = model.embeddings
        embeddings.position_embeddings.weight[:, :LENGTH] = torch.eye(LENGTH)
        embeddings.word_embeddings.weight[:, LENGTH:size] = torch.eye(len(VOCABULARY))
        first = {other: word for word, other in CLUSTERS}
        for place, word in enumerate(VOCABULARY):
            embeddings.word_embeddings.weight[place, size + VOCABULARY.index(first.get(word, word))] = 1
        for layer, wanted in zip(model.encoder.layer, scores, strict=True):
            for head, table in enumerate(wanted):
                rows = slice(head * WIDTH, head * WIDTH + size)
                layer.attention.self.query.weight[rows, :size] = torch.from_numpy(table.T).float() * WIDTH**0.5
                layer.attention.self.key.weight[rows, :size] = torch.eye(size)
    model.save_pretrained(folder)
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=LENGTH).save_pretrained(folder)
    return folder


def clause(drawn: random.Random, start: int) -> list[tuple[str, str, int, str]]:
    """Form, tag, head (from 0) and relation of each word; the verb's head is left at -1."""
    words: list[tuple[str, str, int, str]] = []

    def noun(relation: str, verb: int | None) -> int:
        first = start + len(words)
        adjectives = [drawn.choice(ADJECTIVES)] if drawn.random() < 0.5 else []
        at = first + 1 + len(adjectives)
        words.append(("the", "DET", at, "det"))
        words.extend((adjective, "ADJ", at, "amod") for adjective in adjectives)
        words.append((drawn.choice(NOUNS), "NOUN", -1 if verb is None else verb, relation))
        return at

    subject, adverb = noun("nsubj", None), drawn.random() < 0.5
    verb = start + len(words) + adverb
    words += [("often", "ADV", verb, "advmod")] * adverb
    words[subject - start] = (*words[subject - start][:2], verb, "nsubj")
    words.append((drawn.choice(VERBS), "VERB", -1, "root"))
    noun("obj", verb)
    return words


def known_treebank(path: Path, *, documents: int = 40, seed: int = 5) -> Path:
    """A treebank: documents of six sentences of one or two clauses."""
    drawn = random.Random(seed)
    lines: list[str] = []
    for number in range(documents):
        lines.append(f"# newdoc id = {number}")
        for _ in range(6):
            words = clause(drawn, 0)
            verb = next(at for at, word in enumerate(words) if word[1] == "VERB")
            if drawn.random() < 0.7:
                start = len(words) + 2
                second = clause(drawn, start)
                other = start + next(at for at, word in enumerate(second) if word[1] == "VERB")
                words += [(",", "PUNCT", other, "punct"), ("and", "CCONJ", other, "cc")]
                words += [(*word[:2], verb, "conj") if word[1] == "VERB" else word for word in second]
            words.append((".", "PUNCT", verb, "punct"))
            for at, (form, tag, head, relation) in enumerate(words, 1):
                lines.append(f"{at}\t{form}\t{form}\t{tag}\t_\t_\t{head + 1}\t{relation}\t_\t_")
            lines.append("")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path

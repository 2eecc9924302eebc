"""Scores of two texts as products of features that are linear in the last hidden states, held at these texts.

score = sum F_q * F_d, where the features of each side are steps (headscope.explain.steps) from its last hidden state:

| kind | features | held |
|---|---|---|
| bi | the pooled vector, divided by its length for a cosine | the length |
| late | each query token's vector; on the other side, that of the token it found | lengths, who found whom |
| sparse | weights of the words that both have | log(1 + x) as its ratio to x, which token gives a word its weight |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headscope.checkpoint.open_checkpoint import open_checkpoint
from headscope.encoder.task_heads import length_before, pooled
from headscope.errors import CheckpointError, InputError, not_a_number
from headscope.explain.attribution import dense_steps
from headscope.explain.steps import Affine, Chain, Pooled, Scaled, Step
from headscope.results.match_record import Dimension, Found

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.model import Model
    from headscope.results.match_record import Scoring
    from headscope.results.tokens import TokenAxis

    Tokens = Float[np.ndarray, "tokens d_model"]
    Rows = Float[np.ndarray, "*shares rows width"]


@dataclass(frozen=True, eq=False)
class Features:
    """A score of two texts.

    Attributes:
        score: the number.
        query, document: the steps from each last hidden state to the features whose products add up to it.
        found: what each of the query's tokens found, in late interaction.
        dimensions: the words that both texts have, of a sparse model.
    """

    score: float
    query: Step
    document: Step
    found: tuple[Found, ...] = ()
    dimensions: tuple[Dimension, ...] = ()


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores two texts from their last hidden states, as sentence-transformers does.

    Attributes:
        model: the model.
        scoring: how it scores.
    """

    model: Model
    scoring: Scoring

    def features(self, query: Tokens, document: Tokens, texts: tuple[TokenAxis, TokenAxis]) -> Features:
        """The score of two texts, and its features.

        Raises:
            CheckpointError: a vector is 0 or not made of numbers.
        """
        given = {"bi": self._bi, "late": self._late, "sparse": self._sparse}[self.scoring.kind](query, document, texts)
        if not np.isfinite(given.score):
            where = self.model.checkpoint.where
            raise not_a_number("a text's vector is 0 or not made of numbers, so there is no score", where)
        return given

    def _bi(self, query: Tokens, document: Tokens, texts: tuple[TokenAxis, TokenAxis]) -> Features:
        pooling = self.scoring.pooling
        assert pooling is not None
        steps, vectors = [], []
        truncated = []  # the step that leaves a vector only its first numbers
        if pooling.width is not None:
            width = self.model.anatomy.known().d_model
            truncated = [Scaled((np.arange(width) < pooling.width)[None].astype(np.float32))]
        for last, text in zip((query, document), texts, strict=True):
            vector, length = pooled(last, pooling, text.prompt), 1.0
            if self.scoring.measure == "cosine":
                length = float(np.linalg.norm(vector))
            elif pooling.normalized:
                length = length_before(last, pooling, text.prompt)
            with np.errstate(divide="ignore", invalid="ignore"):
                factor = np.float64(1) / length
                steps.append(Chain((Pooled.mean(pooling.tokens(text.prompt), len(last), factor), *truncated)))
                vectors.append(vector * factor)
        return Features(float(vectors[0] @ vectors[1]), steps[0], steps[1])

    @cached_property
    def _dense(self) -> tuple[Step, ...]:
        """The Linears after the model."""
        steps: list[Affine] = []
        width = self.model.anatomy.known().d_model
        for folder in self.scoring.dense:
            path = self.model.checkpoint.file(f"{folder}/model.safetensors")
            if path is None:
                raise CheckpointError(
                    f"modules.json lists a Dense, but there is no {folder}/model.safetensors",
                    where=self.model.checkpoint.where,
                    advice="download or copy the folder again",
                )
            weights = open_checkpoint(Path(path))
            bias = np.asarray(weights.read("linear.bias"), np.float32) if "linear.bias" in weights.tensors else None
            steps.append(Affine(np.asarray(weights.read("linear.weight"), np.float32), bias))
            if steps[-1].stored.shape[1] != width:
                raise CheckpointError(
                    f"{folder} takes vectors of {steps[-1].stored.shape[1]} numbers, and gets {width}",
                    where=self.model.checkpoint.where,
                    advice="copy the folder of the model that this Dense was trained with",
                )
            width = len(steps[-1].stored)
        return tuple(steps)

    def counted(self, encoded: TokenAxis, side: str) -> Int[np.ndarray, " counted"]:
        """Positions of the tokens that late interaction compares: those that no skiplist names."""
        ids = {self.model.tokenizer.id(word) for word in self.scoring.skipped} - {None}
        skips = ids if side in self.scoring.skipped_in else set()
        return np.array([at for at, index in enumerate(encoded.ids) if index not in skips], dtype=np.int64)

    def _late(self, query: Tokens, document: Tokens, texts: tuple[TokenAxis, TokenAxis]) -> Features:
        dense = self._dense
        steps, vectors, places = [], [], []
        for last, encoded, side in zip((query, document), texts, ("query", "document"), strict=True):
            counted = self.counted(encoded, side)
            if not len(counted):
                raise InputError(
                    f"every token of the {side} is on the skiplist",
                    where=side,
                    advice="pass a text with words that the model compares",
                )
            y = Chain(dense).into(last, affine=True)
            with np.errstate(divide="ignore"):
                lengths = np.linalg.norm(y, axis=-1, keepdims=True) if self.scoring.normalized else np.ones((len(y), 1))
                factor = (1 / lengths).astype(np.float32)
            steps.append(Chain((*dense, Scaled(factor))))
            vectors.append((y * factor)[counted])
            places.append(counted)
        table = vectors[0].astype(np.float64) @ vectors[1].astype(np.float64).T
        best = table.argmax(axis=1)
        choose = Pooled(np.eye(len(query), dtype=np.float32)[places[0]])
        picked = Pooled(np.eye(len(document), dtype=np.float32)[places[1][best]])
        with_others = np.sort(table, axis=1)
        added = reversed(texts[0].ids if self.scoring.expansion else ())  # the query's mask tokens at the end
        expanded = len(query) - len(list(takewhile(lambda index: index == self.model.tokenizer.mask_id, added)))
        found = tuple(
            Found(
                int(places[0][row]),
                int(places[1][column]),
                float(table[row, column]),
                float(with_others[row, -1] - with_others[row, -2]) if table.shape[1] > 1 else None,
                int(places[0][row]) >= expanded,
            )
            for row, column in enumerate(best)
        )
        score = float(table.max(axis=1).sum())
        return Features(score, Chain((steps[0], choose)), Chain((steps[1], picked)), found=found)

    def _sparse(self, query: Tokens, document: Tokens, _: tuple[TokenAxis, TokenAxis]) -> Features:
        weights, ratios, heads = zip(*(self._words(last) for last in (query, document)), strict=True)
        products = weights[0] * weights[1]
        words = np.flatnonzero(products)
        steps = []
        for ratio, last, head in zip(ratios, (query, document), heads, strict=True):
            total = Pooled(np.ones((1, len(last)), dtype=np.float32))
            before = dense_steps(self.model, "masked_lm", last)
            steps.append(Chain((*before, head.rows(words), Scaled(ratio[:, words]), total)))
        order = words[np.argsort(-products[words], kind="stable")]
        tokens = [ratio * (ratio > 0) for ratio in ratios]
        dimensions = tuple(
            Dimension(
                self.model.tokenizer.token(int(word)),
                int(tokens[0][:, word].argmax()),
                int(tokens[1][:, word].argmax()),
                float(products[word]),
            )
            for word in order
        )
        return Features(float(products.sum()), steps[0], steps[1], dimensions=dimensions)

    def _words(
        self, last: Tokens
    ) -> tuple[Float[np.ndarray, " vocabulary"], Float[np.ndarray, "tokens vocabulary"], Affine]:
        """A text's weight for each word; each token's factor of its logit in it; and the decoder."""
        logits = self.model.tops.masked_lm(last).astype(np.float64)
        values = np.log1p(np.maximum(logits, 0))
        values = np.log1p(values) if self.scoring.twice else values
        counted = values > 0
        if self.scoring.strategy == "max":
            first = np.arange(len(last))[:, None] == values.argmax(axis=0)
            counted &= first
        weights = (values * counted).sum(axis=0)
        active = self.scoring.active
        if active is not None and active < len(weights):
            weights[np.argsort(-weights, kind="stable")[active:]] = 0
        ratio = np.divide(values, logits, out=np.zeros_like(values), where=counted)
        if self.scoring.measure == "cosine":
            length = np.linalg.norm(weights)
            with np.errstate(invalid="ignore", divide="ignore"):
                weights, ratio = weights / length, ratio / length
        return weights, ratio.astype(np.float32), Affine(*self.model.tops.decoder())

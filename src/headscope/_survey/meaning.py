"""How alike in meaning two words of a window are, by the model's own input embeddings: for “similar meaning”.

A word's vector is the mean of its tokens' input embeddings, less the mean of the whole vocabulary. Cosines of such
vectors differ from model to model and from class to class of words. So a word that another one looks at is given a rank
instead: how many of the words of its own class that could have been looked at are less alike, 0.5 on average for a head
that doesn't mind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from headscope._survey.words import Words

LEAST = 3
"""Words of a class, without which a rank says nothing."""


class Vectors:
    """Centred input embeddings of a model's vocabulary.

    Args:
        model: a model of transformers.

    Attributes:
        known: whether the model has a table of them.
    """

    def __init__(self, model: Any) -> None:
        try:
            weight = getattr(model.get_input_embeddings(), "weight", None)
        except (AttributeError, NotImplementedError):
            weight = None
        self._weight: torch.Tensor | None = weight if isinstance(weight, torch.Tensor) and weight.dim() == 2 else None
        self._mean = None if self._weight is None else self._weight.detach().float().mean(0)

    @property
    def known(self) -> bool:
        """True if the model has a table of input embeddings."""
        return self._weight is not None

    def of(self, ids: Int[np.ndarray, " tokens"], words: Words) -> Float[torch.Tensor, "words d_model"]:
        """(words, d_model) of length 1 on the CPU; 0 for words without tokens."""
        assert self._weight is not None
        assert self._mean is not None
        places = np.flatnonzero(words.of_token >= 0)
        rows = self._weight.detach()[torch.from_numpy(ids[places]).to(self._weight.device)].float() - self._mean
        sums = torch.zeros(len(words), rows.shape[1])
        sums.index_add_(0, torch.from_numpy(words.of_token[places]), rows.cpu())
        return torch.nn.functional.normalize(sums, dim=-1)


def ranks(
    vectors: Float[torch.Tensor, "words d_model"],
    classes: Int[np.ndarray, " words"],
    names: Int[np.ndarray, " words"],
    looks: Bool[np.ndarray, " words"],
) -> Float[np.ndarray, "words words"]:
    """For a word that looks and one that it may look at, the rank of the latter; NaN where the pair doesn't count.

    Args:
        vectors: of each word.
        classes: of each word; -1 for words that don't count.
        names: the same number for the same word. Pairs of a word with itself, and of neighbours, don't count.
        looks: True for the words that look.
    """
    count = len(classes)
    table = np.full((count, count), np.nan)
    at = np.arange(count)
    queries = np.flatnonzero((classes >= 0) & looks)
    for kind in np.unique(classes[classes >= 0]).tolist():
        keys = np.flatnonzero(classes == kind)
        if len(keys) < LEAST:
            continue
        cosines = (vectors[queries] @ vectors[keys].T).numpy().astype(np.float64)
        out = (np.abs(queries[:, None] - at[keys]) < 2) | (names[queries][:, None] == names[keys])
        cosines[out] = np.inf
        order = np.argsort(cosines, axis=1, kind="stable")
        places = np.empty_like(order)
        np.put_along_axis(places, order, np.broadcast_to(np.arange(len(keys)), order.shape), axis=1)
        candidates = (~out).sum(1, keepdims=True)
        rank = np.where(out | (candidates < LEAST), np.nan, (places + 0.5) / np.maximum(candidates, 1))
        table[np.ix_(queries, keys)] = rank
    return table

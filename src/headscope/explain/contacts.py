"""Residues in contact, from a protein model's attention: a logistic regression over the maps of all heads.

For each head's map A between residues (Rao et al. 2021, “Transformer protein language models are unsupervised structure
learners”, section 3.2),

    M = A + A^T,    F_ij = M_ij - r_i r_j / t                symmetrised, with the average product correction (APC)
    p_ij = sigmoid(b + sum_h w_h F^h_ij)                     w and b are the checkpoint's

with r the row sums of M and t their sum. Since the logit is linear in the maps, it is sum_h w_h M^h less one product of
row sums: maps are computed a few rows at a time, added up, and dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.attention.scores import softmax_rows
from headscope.errors import InputError, UnsupportedError
from headscope.explain.residual import check_whole, opened_model
from headscope.results.arrays import Named

if TYPE_CHECKING:
    from headscope.traces import Trace

EOS = 2
"""The id of <eos>, whose rows and columns ESM's contact head sets to 0."""

FEWEST = 3
"""Tokens of the shortest text with a residue between <cls> and <eos>."""


def contacts(trace: Trace) -> Named:
    """The probability that two residues are in contact (closer than 8 Å), by the checkpoint's own regression.

    The first and the last token, <cls> and <eos>, are left out.

    Args:
        trace: of a checkpoint that headscope opened, with all layers and heads.

    Returns:
        (residues, residues), symmetric, 0 to 1.

    Raises:
        UnsupportedError: the checkpoint has no contact head, or the model is a live one.
        TraceError: there is no model, or the trace lacks layers or heads.
        InputError: the text has no residue between its first and its last token.
    """
    check_whole(trace)
    model = opened_model(trace, "predicting contacts")
    if not model.anatomy.has("contacts.weight"):
        raise UnsupportedError(
            f"{model.name} has no contact head",
            where=model.checkpoint.where,
            advice="open a checkpoint of ESM-2 that was saved whole, with contact_head.regression.weight",
        )
    tokens = len(trace)
    if tokens < FEWEST:
        raise InputError(
            f"the text has {tokens} tokens: no residue is left between the first and the last",
            where="trace",
            advice="trace a sequence of at least one residue, with its special tokens",
        )
    inner = slice(1, tokens - 1)
    real = np.array([token != EOS for token in trace.ids])
    slopes = model.encoder.weight("contacts.weight")[0].astype(np.float64)
    summed = np.zeros((tokens - 2, tokens - 2))
    product = np.zeros_like(summed)
    for layer, record in enumerate(trace.layers):
        heads = len(record.q)
        w = slopes[layer * heads : (layer + 1) * heads]
        rows, columns = np.zeros((heads, tokens)), np.zeros((heads, tokens))
        for part in softmax_rows(record.q, record.k, scale=record.scale, mask=record.mask, terms=record.terms):
            kept = part.weights * (real[part.rows][:, None] & real)
            kept[:, :, [0, -1]] = 0
            kept[:, (part.rows == 0) | (part.rows == tokens - 1)] = 0
            rows[:, part.rows] = kept.sum(-1, dtype=np.float64)
            columns += kept.sum(1, dtype=np.float64)
            among = (part.rows > 0) & (part.rows < tokens - 1)
            summed[part.rows[among] - 1] += np.tensordot(w, kept[:, among, inner], 1)
        sums = (rows + columns)[:, inner]
        with np.errstate(invalid="ignore"):
            product += (sums * (w / sums.sum(-1))[:, None]).T @ sums
    logits = summed + summed.T - product + float(model.encoder.weight("contacts.bias")[0])
    residues = trace.tokens[inner]
    return Named("contacts", ("residues", "residues"), 1 / (1 + np.exp(-logits)), residues)

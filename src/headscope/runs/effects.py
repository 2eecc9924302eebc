"""Effects of silencing or patching each head on one output: exact, with the later layers run again for each head.

For every head (l, h) the model runs with that head's context replaced, everything after it computed anew, and

    change = target with the head changed - target as it is,

so that a head that the output rests on has a change below 0. Only layers from l on run again, from kept prefixes: with
L layers of H heads, H (L - 1) / 2 + 2 H / 3 forward passes' worth of products instead of H L. Of the last layer, a
target that reads one token needs little more than keys and values. BERT-base at 128 tokens: 68 forward passes for a
mask, 75 for a pooled vector, instead of 144.

Instead of a whole head, one edge of it may be cut: the query's context is then the one it would have if it could not
see that key, and every other query keeps its own.

Sources: silencing, Michel, Levy and Neubig 2019, “Are Sixteen Heads Really Better than One?”; patching,
Vig et al. 2020, “Investigating Gender Bias in Language Models Using Causal Mediation Analysis”; edges, Geva et al.
2023, “Dissecting Recall of Factual Associations in Auto-Regressive Language Models”.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from headscope.anatomy import check_index
from headscope.checkpoint.tokenizer import Prepared
from headscope.errors import InputError
from headscope.heads.intervals import mean_interval
from headscope.results.effect_records import Effects, Target, Wanted
from headscope.results.head_values import HeadValues
from headscope.runs.engine import Base, Edit, NumpyRunner, base_readings, check_way
from headscope.runs.targets import choose, is_pair
from headscope.runs.texts import as_input, as_traced, batches, limited, one_for_each, prepared
from headscope.settings import named

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.model import Model

LayerRead: TypeAlias = "Callable[[int, Float[np.ndarray, ' heads']], None]"
"""Called with a layer's number, and the change that each of its heads makes."""

METHODS = {
    "zero": "the head's context is 0",
    "mean": "every token gets the mean of the head's contexts over the text",
}
"""A change of a head, and its meaning."""


def of_vector(model: Model, wanted: Wanted, text: str) -> bool:
    """Return True if a target is read from the text's vector, so that the text is prepared as for its vector."""
    if isinstance(wanted, Target):
        return wanted.direction is not None
    if isinstance(wanted, tuple) and wanted:
        if is_pair(wanted):
            return all(of_vector(model, one, text) for one in wanted)
        return wanted[0] in ("embedding", "embedding_distance", "similarity")
    if wanted is not None or "sequence" in model.anatomy.tasks:
        return False
    mask = model.tokenizer.mask_token
    return "masked_lm" not in model.anatomy.tasks or mask is None or mask not in text


def prepared_for(
    model: Model, text: str, wanted: Wanted, pair: str | None = None, *, max_length: int | None
) -> Prepared:
    """A text as the model reads it for a target: prepared for a vector, and in a sentence-transformers checkpoint.

    Raises:
        InputError: an empty text.
        UnsupportedError: the model is one that headscope doesn't run.
    """
    model.anatomy.computable()
    rule = model.text_rule
    if not (rule.stated or of_vector(model, wanted, text if isinstance(text, str) else "")):
        return as_traced(model, text, pair, max_length=max_length)
    found = prepared(model, text, pair, rule=limited(rule, max_length), wanted=max_length)
    others = [one[1] for one in (wanted, *(wanted if isinstance(wanted, tuple) else ())) if _names_text(one)]
    for other in others:
        notes = prepared(model, other, rule=model.pooling, name=f"the second text {other[:40]!r}").notes
        found = replace(found, notes=tuple(dict.fromkeys((*found.notes, *notes))))
    return found


def _names_text(wanted: object) -> TypeGuard[tuple[str, str]]:
    """Return True for the name of a cosine with a text."""
    return isinstance(wanted, tuple) and len(wanted) == 2 and wanted[0] == "similarity" and isinstance(wanted[1], str)


@named
def effects(
    model: Model,
    text: str,
    target: Wanted = None,
    *,
    pair: str | None = None,
    method: str = "zero",
    patch_from: str | None = None,
    edge: tuple[int, int] | None = None,
    max_length: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Effects:
    """Silence or patch each head in turn, and read one output of a text; the formula and the cost are at the top.

    Args:
        model: the model.
        text: the text.
        target: the output; by default the best word at the first mask, else the predicted class, else the text's
            vector. See headscope.runs.targets.
        pair: a second text that goes with it.
        method: `zero` or `mean` (over the text's tokens).
        patch_from: a text with the same number of tokens, from whose run each head's context is taken instead.
        edge: (query, key), positions counted from 0: cut this edge of each head, instead of silencing the whole head.
        max_length: cut a longer text to this many tokens.
        progress: called with the layers done and all layers.

    Raises:
        InputError: an unknown method or target, no mask, a text that is too long, another number of tokens, no such
            edge.
        UnsupportedError: the model lacks the output, or is one that headscope doesn't run.
    """
    found = prepared_for(model, text, target, pair, max_length=max_length)
    options: dict[str, Any] = {"method": method, "edge": edge, "max_length": max_length, "progress": progress}
    return effects_of(model, [found], target, [patch_from], **options)[0]


def effects_of(
    model: Model,
    texts: Sequence[Prepared],
    target: Wanted,
    sources: Sequence[str | None],
    *,
    method: str = "zero",
    edge: tuple[int, int] | None = None,
    max_length: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    layer_read: LayerRead | None = None,
) -> list[Effects]:
    """The effects on texts that are tokenized, and run side by side; the last layer first, since it costs least.

    Arguments and errors as for `effects`, but: `sources` are the texts to patch from, and `layer_read` is called with a
    layer's number and the changes of its heads in the first text, as soon as they are there.
    """
    check_way(method, METHODS, "method")
    patched = any(one is not None for one in sources)
    ways = [name for name, given in (("patch_from", patched), ("edge", edge is not None)) if given]
    if len(ways) + (method != "zero") > 1:
        raise InputError(
            f"a head is changed in one way, not by {' and '.join([method, *ways])}",
            where="method",
            advice="leave out all but one of method, patch_from and edge",
        )
    if patched and any(one.pair is not None for one in texts):
        raise InputError(
            "a text with a second text can't be patched from a single one",
            where="patch_from",
            advice="leave out the second text",
        )
    runner, sizes = NumpyRunner(model), model.anatomy.computable()
    source = _source(runner, texts, sources, target, max_length) if patched else None
    base = runner.base([as_input(one.encoded) for one in texts])
    targets = [choose(model, one.encoded, base.last[rows], target) for one, rows in zip(texts, base.rows, strict=True)]
    before = base_readings(model, base, targets)
    do = "patch" if source is not None else method
    if edge is not None:
        if not isinstance(edge, Sequence) or len(edge) != 2:
            raise InputError(
                f"expected (query, key), got {edge!r:.40}", where="edge", advice="name two tokens: edge=(9, 2)"
            )
        query, key = (check_index(place, len(base.last), "token", "edge") for place in edge)
        do, edge = "edge", (query, key)
    values = np.empty((sizes.layers, sizes.heads, len(texts)))
    aside = np.empty_like(values)
    step = runner.together(base)
    for done, layer in enumerate(reversed(range(sizes.layers))):
        for start in range(0, sizes.heads, step):
            if progress is not None:
                progress(done, sizes.layers)  # which may end the run by an error
            heads = slice(start, min(start + step, sizes.heads))
            edits = [
                frozenset({Edit(layer, head, do, source=source, edge=edge)}) for head in range(heads.start, heads.stop)
            ]
            readings = runner.run(base, edits, targets)
            values[layer, heads] = readings.values
            if readings.aside is not None:
                aside[layer, heads] = readings.aside
        if layer_read is not None:
            layer_read(layer, values[layer, :, 0] - before.values[0])
    if progress is not None:
        progress(sizes.layers, sizes.layers)
    return [
        Effects.of(
            of.measure,
            values[..., at] - before.values[at],
            target=of,
            method=do,
            base=float(before.values[at]),
            aside=None if before.aside is None else aside[..., at].copy(),
            base_aside=None if before.aside is None else float(before.aside[at]),
            axis=one.encoded,
            text=one.text,
            pair=one.pair,
            patch_from=patched_from,
            edge=edge,
            notes=one.notes,
        )
        for at, (one, of, patched_from) in enumerate(zip(texts, targets, sources, strict=True))
    ]


def _source(
    runner: NumpyRunner, texts: Sequence[Prepared], sources: Sequence[Any], wanted: Wanted, max_length: int | None
) -> Base:
    """The pass over the texts to patch from.

    Raises:
        InputError: such a text has another number of tokens.
    """
    others = [prepared_for(runner.model, source, wanted, max_length=max_length).encoded for source in sources]
    for text, other in zip(texts, others, strict=True):
        if len(other) != len(text.encoded):
            raise InputError(
                f"the text has {len(text.encoded)} tokens and the one to patch from {len(other)}",
                where="patch_from",
                advice="patch from a text with the same number of tokens, so that each token has its counterpart",
            )
    return runner.base([*map(as_input, others)])


@named
def effects_over_texts(
    model: Model,
    texts: Sequence[str],
    target: Wanted = None,
    *,
    pair: Sequence[str] | None = None,
    method: str = "zero",
    patch_from: Sequence[str] | None = None,
    max_length: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> HeadValues:
    """The effects on each text, and their mean with its 95 % interval. Arguments as for `effects`, one for each text.

    `progress` is called with the texts done and all texts.

    Raises:
        InputError: no text, or another number of second texts or of texts to patch from.
    """
    if not texts:
        raise InputError("there are no texts", where="text", advice="pass at least one text")
    seconds, sources = one_for_each(texts, pair, "pair"), one_for_each(texts, patch_from, "patch_from")
    prepared_texts = [
        prepared_for(model, text, target, second, max_length=max_length)
        for text, second in zip(texts, seconds, strict=True)
    ]
    each: list[Effects] = []
    for batch in batches([*zip(prepared_texts, sources, strict=True)], lambda one: len(one[0].encoded)):
        ready, patched_from = zip(*batch, strict=True)
        each += effects_of(model, ready, target, patched_from, method=method, max_length=max_length)
        if progress is not None:
            progress(len(each), len(texts))
    mean, low, high = mean_interval(np.stack(each))
    measure = replace(each[0].measure, meaning="mean change of the texts' targets")
    return HeadValues.of(measure, mean, low=low, high=high, over="texts", interval="t", each=tuple(each))

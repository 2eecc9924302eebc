"""The functions behind convenience methods such as `trace.verify()`, whose implementations are in higher layers.

Everywhere else, imports go one way: lower layers never import higher ones. Each function here imports its
implementation when it is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

    from headscope._trace import HeadTrace, LazyMap, Named, Trace
    from headscope.checkpoint.sentence import Pooling
    from headscope.explain.attribution import Attribution
    from headscope.explain.effects import Effects, EffectsOverTexts
    from headscope.explain.findings import Finding
    from headscope.explain.mixing import MixingRatio
    from headscope.explain.promotes import Promotion
    from headscope.explain.similarity import TokenSimilarity
    from headscope.explain.target import Wanted
    from headscope.filling import Filled
    from headscope.model import Model
    from headscope.statistics import Statistics
    from headscope.verify import Report
    from headscope.view.widget import TraceWidget


def save(trace: Trace, path: Path, *, dtype: str, values: bool) -> Path:
    """Call headscope._trace.file.save."""
    from headscope._trace.file import save

    return save(trace, path, dtype=dtype, values=values)


def verify(trace: Trace, *, reference: bool, against: Any) -> Report:
    """Call headscope.verify.verify."""
    from headscope.verify import verify

    return verify(trace, reference=reference, against=against)


def statistics(
    trace: Trace, names: str | Iterable[str] | None, *, per_query: bool, special: bool, engine: str
) -> Statistics:
    """Call headscope.statistics.statistics."""
    from headscope.statistics import statistics

    return statistics(trace, names, per_query=per_query, special=special, engine=engine)


def head_distances(trace: Trace, *, special: bool) -> Named:
    """Call headscope.statistics.head_distances."""
    from headscope.statistics import head_distances

    return head_distances(trace, special=special)


def mixing_ratio(trace: Trace, kind: str) -> MixingRatio:
    """Call headscope.explain.mixing.mixing_ratio."""
    from headscope.explain.mixing import mixing_ratio

    return mixing_ratio(trace, kind)


def norm_map(trace: Trace, layer: int, kind: str, head: int | None) -> LazyMap:
    """Call headscope.explain.mixing.norm_map."""
    from headscope.explain.mixing import norm_map

    return norm_map(trace, layer, kind, head)


def rollout(trace: Trace, *, to: int | None, from_: int | None, kind: str) -> Named:
    """Call headscope.explain.rollout.rollout."""
    from headscope.explain.rollout import rollout

    return rollout(trace, to=to, from_=from_, kind=kind)


def value_zeroing(trace: Trace, layer: int, query: int) -> Named:
    """Call headscope.explain.value_zeroing.value_zeroing."""
    from headscope.explain.value_zeroing import value_zeroing

    return value_zeroing(trace, layer, query)


def contacts(trace: Trace) -> Named:
    """Call headscope.explain.contacts.contacts."""
    from headscope.explain.contacts import contacts

    return contacts(trace)


def findings(trace: Trace, *, layers: Sequence[int] | None) -> tuple[Finding, ...]:
    """Call headscope.explain.findings.findings."""
    from headscope.explain.findings import findings

    return findings(trace, layers=layers)


def head_promotes(trace: Trace, layer: int, head: int, query: int, *, top: int, key: int | None) -> Promotion:
    """Call headscope.explain.promotes.head_promotes."""
    from headscope.explain.promotes import head_promotes

    return head_promotes(trace, layer, head, query, top=top, key=key)


def layer_promotes(trace: Trace, layer: int, query: int, *, top: int, part: str) -> Promotion:
    """Call headscope.explain.promotes.layer_promotes."""
    from headscope.explain.promotes import layer_promotes

    return layer_promotes(trace, layer, query, top=top, part=part)


def expansion_rate(
    W_V: Float[np.ndarray, "d_model d_all"],
    b_V: Float[np.ndarray, " d_all"],
    W_O: Float[np.ndarray, "d_all d_model"],
    b_O: Float[np.ndarray, " d_model"],
) -> float:
    """Call headscope.explain.expansion.expansion_rate."""
    from headscope.explain.expansion import expansion_rate

    return expansion_rate(W_V, b_V, W_O, b_O)


def to_html(
    trace: Trace,
    path: str | Path,
    *,
    dtype: str,
    values: bool | None,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    title: str | None,
    runs: bool | None,
) -> Path:
    """Call headscope.view.html.to_html."""
    from headscope.view.html import to_html

    return to_html(trace, path, dtype=dtype, values=values, layers=layers, heads=heads, title=title, runs=runs)


def show(trace: Trace, *, height: int | None, open_browser: bool) -> TraceWidget | None:
    """Call headscope.view.notebook.show."""
    from headscope.view.notebook import show

    return show(trace, height=height, open_browser=open_browser)


def mimebundle(trace: Trace) -> dict[str, str]:
    """Call headscope.view.notebook.mimebundle."""
    from headscope.view.notebook import mimebundle

    return mimebundle(trace)


def fill(
    model: Model, text: str, pair: str | None, *, top: int, max_length: int | None, ablate: Iterable[tuple[int, int]]
) -> tuple[Filled, ...]:
    """Call headscope.filling.fill."""
    from headscope.filling import fill

    return fill(model, text, pair, top=top, max_length=max_length, ablate=ablate)


def knockout(head: HeadTrace, query: int, key: int) -> Float[np.ndarray, " d_value"]:
    """Call headscope.explain.knockout.knockout."""
    from headscope.explain.knockout import knockout

    return knockout(head, query, key)


def token_similarity(model: Model, a: str, b: str, *, rerun: bool, max_length: int | None) -> TokenSimilarity:
    """Call headscope.explain.similarity.token_similarity."""
    from headscope.explain.similarity import token_similarity

    return token_similarity(model, a, b, rerun=rerun, max_length=max_length)


def sentence_embedding(
    last_hidden_state: Float[np.ndarray, "tokens d_model"], pooling: Pooling
) -> Float[np.ndarray, " d_model"]:
    """Call headscope.explain.sentence.sentence_embedding."""
    from headscope.explain.sentence import sentence_embedding

    return sentence_embedding(last_hidden_state, pooling)


def effects(model: Model, text: str, target: Wanted, **options: Any) -> Effects:
    """Call headscope.explain.effects.effects."""
    from headscope.explain.effects import effects

    return effects(model, text, target, **options)


def effects_over_texts(model: Model, texts: list[str], target: Wanted, **options: Any) -> EffectsOverTexts:
    """Call headscope.explain.effects.effects_over_texts."""
    from headscope.explain.effects import effects_over_texts

    return effects_over_texts(model, texts, target, **options)


def attribute(
    model: Model,
    text: str,
    target: Wanted,
    *,
    method: str,
    pair: str | None,
    max_length: int | None,
    steps: int,
) -> Attribution:
    """Call headscope.explain.attribution.attribute."""
    from headscope.explain.attribution import attribute

    return attribute(model, text, target, method=method, pair=pair, max_length=max_length, steps=steps)

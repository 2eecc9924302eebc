"""The measures behind findings: one pass over each layer, a sample of queries to compare heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import HeadscopeError
from headscope.explain.content import Content
from headscope.explain.residual import blocks_of_rows, record_of, values_of, weights_of
from headscope.heads.kinds import FINDINGS
from headscope.heads.reference import over_queries, padding
from headscope.results.lazy_maps import TILE_CELLS
from headscope.traces import layer_W_O

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxtyping import Bool, Float, Int

    from headscope.heads import Roles
    from headscope.traces import LayerRecord, Trace

    PerHead = Float[np.ndarray, " heads"]
    Cells = Int[np.ndarray, "n 3"]
    """Links by the place of their head, their query and their key."""


NEIGHBOURS = {"previous": -1, "same": 0, "next": 1}
"""The distance from query to key, in tokens."""
ROLES = ("cls", "sep", "punctuation")

LEAST_SHARE = 1e-6
"""Shares are read as at least this far from 0 and from 1, so that no surprise is infinite."""

ALIKE_ROWS = 32
"""At most so many queries, evenly spaced, on which heads are compared with one another."""

LEAST_ALIKE_ROWS = 4
"""With fewer queries, two heads look alike by chance."""

MOST_LINKS = 64
"""At most so many links of a layer are looked at more closely, the most telling ones."""


FAR = 8
"""Words. A link over more than these is no more telling."""
EMBEDDED = 0.05
"""Of the first layer: its heads compare words as they stand in the vocabulary, whatever the sentence says."""
REFERRED = 1.5
"""Of a link from a pronoun of the third person back to a word: what it stands for."""
ACROSS = 10
"""Of a link from one text of a pair to the other: these come first, also those of equal words."""


@dataclass(frozen=True)
class Link:
    """One weight of a content word or pronoun on a content word.

    Attributes:
        layer, head: by number.
        query, key: by position.
        weight: the weight.
        expected: what is usual for the head: on this key, or at this distance.
        telling: a factor of what a reader makes of it: the root of log2(1 + distance in words), distances above FAR as
            FAR; EMBEDDED, REFERRED and ACROSS where they hold.
    """

    layer: int
    head: int
    query: int
    key: int
    weight: float
    expected: float
    telling: float = 1.0

    @property
    def score(self) -> float:
        """The order of links: how surprising, and how telling."""
        return float(surprise(self.weight, self.expected)) * self.telling


@dataclass(frozen=True, eq=False)
class Measures:
    """One layer in numbers, (heads,) each, means over the queries that have one.

    Attributes:
        layer: its number.
        shares: name -> the share of a head's weight.
        expected: name -> the same under the head's own average over queries, where there is such a thing.
        written: role -> the share of what a head writes, by length; empty where W_O or the values are not known.
        lengths: of what a head writes, |context W_O|; None likewise.
        links: strong weights of content words and pronouns on content words that are no neighbours, nor equal within
            a text, in heads that don't read neighbours.
    """

    layer: int
    shares: Mapping[str, PerHead]
    expected: Mapping[str, PerHead]
    written: Mapping[str, PerHead]
    lengths: PerHead | None
    links: list[Link]


def surprise(share: float | Float[np.ndarray, " n"], expected: float | Float[np.ndarray, " n"]) -> Any:
    """The distance of a share of a head's weight from the expected one, in nats; 0 where they agree.

    The Kullback-Leibler divergence of two yes-or-no choices: share log(share / expected) + the same of what is left.
    It is half of Dunning 1993's log-likelihood ratio for one query.
    """
    p, e = (np.clip(value, LEAST_SHARE, 1 - LEAST_SHARE) for value in (share, expected))
    divergence = p * np.log(p / e) + (1 - p) * np.log((1 - p) / (1 - e))
    return divergence if np.ndim(divergence) else float(divergence)


def measure(trace: Trace, layer: int, roles: Roles, content: Content | None) -> Measures:
    """One layer, in one pass over its weights, O(S) memory; about the cost of the statistics' weights alone.

    Args:
        content: of the tokens; None in cross-attention, where no query is a key.
    """
    record = record_of(trace, layer)
    heads, queries, _ = record.q.shape
    keys = record.k.shape[1]
    features, gram = _features(trace, layer, record, roles)
    d_value = 0 if gram is None else gram.shape[-1]
    seeing = np.isfinite(record.lse) & ~padding(record.mask, roles, queries)[None]
    on_keys = np.zeros((heads, keys))
    links: list[tuple[Cells, Float[np.ndarray, " n"]]] = []
    of_queries: dict[str, list[Float[np.ndarray, "heads n"]]] = {}
    for rows in blocks_of_rows(heads, queries, keys):
        p, seen = weights_of(record, rows), seeing[:, rows]
        on_keys += np.where(seen[..., None], p, 0).sum(1) if not seen.all() else p.sum(1)
        mixed = p @ features
        masses = mixed[..., d_value:]
        found = {role: (masses[..., at], seen & getattr(roles, role).any()) for at, role in enumerate(ROLES)}
        if gram is not None:
            context, norms = mixed[..., :d_value], masses[..., len(ROLES) :]
            squares, total = np.einsum("hnd,hnd->hn", context @ gram, context), norms[..., -1]
            found["length"] = np.sqrt(np.maximum(squares, 0)), seen
            for at, role in enumerate(ROLES):
                found[f"{role} written"] = norms[..., at] / np.where(total > 0, total, 1), seen & (total > 0)
        if content is not None:
            found |= _on_words(p, rows, seen, content)
            links.append(_links(p, rows, content))
        for name, (values, defined) in found.items():
            of_queries.setdefault(name, []).append(np.where(defined, values, np.nan))
    means = on_keys / np.maximum(seeing.sum(-1, keepdims=True), 1)
    named = {name: over_queries(np.concatenate(parts, axis=-1), np.float64) for name, parts in of_queries.items()}
    shares = {name: values for name, values in named.items() if name in FINDINGS}
    expected = {} if content is None else _expected(means, content)
    strongest = [] if content is None else _strongest_links(trace, layer, links, shares, means, content)
    written = {role: named[f"{role} written"] for role in ROLES} if gram is not None else {}
    return Measures(layer, shares, expected, written, named.get("length"), strongest)


def _features(
    trace: Trace, layer: int, record: LayerRecord, roles: Roles
) -> tuple[Float[np.ndarray, "heads_or_1 keys columns"], Float[np.ndarray, "heads d_value d_value"] | None]:
    """The right factor of the weights: values, roles, roles times |v W_O|. And W_O W_O^T, None where not known."""
    flags = np.stack([getattr(roles, role) for role in ROLES], -1).astype(np.float32)
    try:
        W_O, v = layer_W_O(trace, layer), values_of(record, layer)
    except HeadscopeError:  # the sentences then speak of weights only
        return flags[None], None
    gram = W_O @ W_O.swapaxes(-1, -2)
    norms = np.sqrt(np.maximum(np.einsum("hsd,hsd->hs", v @ gram, v), 0))[..., None]
    every = np.broadcast_to(flags, (len(v), *flags.shape))
    return np.concatenate([v, every, norms * flags, norms], -1), gram


def _on_words(
    p: Float[np.ndarray, "heads n keys"],
    rows: Int[np.ndarray, " n"],
    seen: Bool[np.ndarray, "heads n"],
    content: Content,
) -> dict[str, tuple[Float[np.ndarray, "heads m"], Bool[np.ndarray, "heads m"]]]:
    """A block's weights on neighbours and equal words, and which count; queries and keys are the same tokens."""
    keys, at, found = p.shape[-1], np.arange(len(rows)), {}
    for name, offset in NEIGHBOURS.items():
        to = rows + offset
        found[name] = p[:, at, np.clip(to, 0, keys - 1)], seen & (to >= 0) & (to < keys)
    equal = _equal(content, rows)
    repeated = np.flatnonzero(equal.any(-1))
    found["same_word"] = np.einsum("hnm,nm->hn", p[:, repeated], equal[repeated]), seen[:, repeated]
    return found


def _links(
    p: Float[np.ndarray, "heads n keys"], rows: Int[np.ndarray, " n"], content: Content
) -> tuple[Cells, Float[np.ndarray, " links"]]:
    """A block's links, and their weights."""
    cells = np.argwhere(p >= FINDINGS["link"])
    query, key = rows[cells[:, 1]], cells[:, 2]
    other = (content.group[query] != content.group[key]) | (content.text[query] != content.text[key])
    linked = content.looking[query] & content.content[key] & other
    linked &= np.abs(content.step[query] - content.step[key]) > 1
    weights = p[tuple(cells[linked].T)]
    return np.stack([cells[:, 0], query, key], axis=-1)[linked], weights


def _equal(content: Content, rows: Int[np.ndarray, " n"]) -> Bool[np.ndarray, "n keys"]:
    """(n, keys): which keys are another token of the same word."""
    group = content.group
    equal = (group[rows][:, None] == group[None]) & (group[rows] >= 0)[:, None]
    return equal & (content.place[rows][:, None] != content.place[None])


def _expected(means: Float[np.ndarray, "heads keys"], content: Content) -> dict[str, PerHead]:
    """The weight on the token before, after, … where every query has the head's average over queries."""
    keys = means.shape[1]
    rows = np.arange(keys)
    expected = {}
    for name, offset in NEIGHBOURS.items():
        to = rows + offset
        to = to[(to >= 0) & (to < keys)]
        expected[name] = means[:, to].mean(-1) if len(to) else np.full(len(means), np.nan)
    total, count = np.zeros(len(means)), 0
    for block in blocks_of_rows(1, keys, keys):
        equal = _equal(content, block)
        repeated = equal[equal.any(-1)]
        total, count = total + (means @ repeated.T).sum(-1), count + len(repeated)
    expected["same_word"] = total / max(count, 1)
    return expected


def _strongest_links(
    trace: Trace,
    layer: int,
    links: Sequence[tuple[Cells, Float[np.ndarray, " n"]]],
    shares: Mapping[str, PerHead],
    means: Float[np.ndarray, "heads keys"],
    content: Content,
) -> list[Link]:
    """The most telling links of a layer, each against the mean weight that the other queries give to its key."""
    cells, weights = (np.concatenate(parts) for parts in zip(*links, strict=True))
    numbers, weights = np.array(trace.head_numbers(layer)), weights.astype(np.float64)
    positional = np.any([shares[name] >= FINDINGS[name] for name in ("previous", "next")], axis=0)
    changed = [head for at, head in trace.changed if at == layer]
    active = ~np.isin(numbers, changed) & ~positional
    cells, weights = cells[active[cells[:, 0]]], weights[active[cells[:, 0]]]
    queries = len(trace.queries)
    expected = np.maximum(means[cells[:, 0], cells[:, 2]] * queries - weights, 0) / max(queries - 1, 1)
    listed = [
        Link(
            layer,
            int(numbers[head]),
            int(query),
            int(key),
            float(weight),
            float(usual),
            _telling(content, int(query), int(key)) * (EMBEDDED if layer == 0 else 1),
        )
        for (head, query, key), weight, usual in zip(cells, weights, expected, strict=True)
    ]
    return sorted(listed, key=lambda link: -link.score)[:MOST_LINKS]


def _telling(content: Content, query: int, key: int) -> float:
    """A link's score as distance and pronouns change it."""
    distance = int(content.step[key] - content.step[query])
    refers = bool(content.referring[query]) and distance < 0
    across = content.text[query] != content.text[key]
    factor = (REFERRED if refers else 1) * (ACROSS if across else 1)
    return float(np.sqrt(np.log2(1 + min(abs(distance), FAR)))) * factor


def offset_mean(trace: Trace, link: Link) -> float:
    """The mean weight that a link's head gives to the key at the same distance, over all other queries."""
    weights, offset, tokens = trace[link.layer, link.head].weights, link.key - link.query, len(trace)
    rows = np.arange(max(0, -offset), min(tokens, tokens - offset))
    total = 0.0
    for start in range(0, len(rows), 64):
        part = rows[start : start + 64]
        total += float(weights.tile(part, part + offset).diagonal().sum())
    return max((total - link.weight) / (len(rows) - 1), 0.0) if len(rows) > 1 else 0.0


@dataclass(frozen=True)
class Pair:
    """Two heads, (layer, head), and the share of their weight on the same keys, query by query and between queries."""

    first: tuple[int, int]
    second: tuple[int, int]
    overlap: float
    between: float


def similar_heads(trace: Trace, heads: Sequence[tuple[int, int]], rows: Int[np.ndarray, " n"], most: int) -> list[Pair]:
    """The pairs of heads that share most weight, against what they share where queries differ.

    With BC = sum_j sqrt(p_j q_j), the Bhattacharyya coefficient, all pairs are one matrix product, and the share on the
    same keys, sum_j min(p_j, q_j), is never above BC: it is computed for the most telling pairs only.
    """
    count = min(ALIKE_ROWS, len(rows) // 2 * 2)
    if len(heads) < 2 or count < LEAST_ALIKE_ROWS:
        return []
    sample = rows[np.linspace(0, len(rows) - 1, count).astype(int)]
    early, late = np.split(sample, 2)
    same, other = np.zeros((2, len(heads), len(heads)))
    step = max(1, 2 * TILE_CELLS // (len(heads) * len(trace.keys)))
    for start in range(0, len(early), step):
        a, b = (np.sqrt(_of_heads(trace, heads, part[start : start + step])) for part in (early, late))
        a, b = a.reshape(len(heads), -1), b.reshape(len(heads), -1)
        same += a @ a.T + b @ b.T
        cross = a @ b.T
        other += cross + cross.T
    same, other = (total / len(sample) for total in (same, other))
    gain = surprise(same, other)
    gain[np.tril_indices(len(heads))] = 0
    gain[(same < FINDINGS["alike"]) | (same < other)] = 0
    order = np.argsort(-gain, axis=None, kind="stable")[:most]
    pairs = []
    for first, second in zip(*np.unravel_index(order, gain.shape), strict=True):
        if gain[first, second] <= 0:
            break
        p, q = (_of_heads(trace, [heads[at]], sample)[0] for at in (first, second))
        half = len(sample) // 2
        overlap, between = (
            float(np.minimum(p, moved).sum(-1, dtype=np.float64).mean()) for moved in (q, np.roll(q, half, axis=0))
        )
        pairs.append(Pair(heads[first], heads[second], overlap, between))
    return pairs


def _of_heads(
    trace: Trace, heads: Sequence[tuple[int, int]], rows: Int[np.ndarray, " n"]
) -> Float[np.ndarray, "some_heads n keys"]:
    """(heads, n, keys): the weights of some queries in these heads, which go up layer by layer."""
    if len(heads) == 1:
        return np.asarray(trace[heads[0]].weights.tile(rows, np.arange(len(trace.keys))))[None]
    parts = []
    for layer in dict.fromkeys(layer for layer, _ in heads):
        numbers = trace.head_numbers(layer)
        wanted = [numbers.index(head) for of, head in heads if of == layer]
        parts.append(weights_of(record_of(trace, layer), rows)[wanted])
    return np.concatenate(parts)

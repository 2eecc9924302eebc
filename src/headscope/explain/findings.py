"""Findings: what is worth reading in a trace, as sentences with their numbers, the most telling first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import InputError, TraceError, UnsupportedError
from headscope.explain.content import Content, content_of
from headscope.explain.finding_measures import (
    NEIGHBOURS,
    ROLES,
    Link,
    Measures,
    measure,
    offset_mean,
    similar_heads,
    surprise,
)
from headscope.explain.taken_in import readers_of, shares_by
from headscope.heads import roles_of
from headscope.heads.head_distances import turned
from headscope.heads.kinds import FINDINGS
from headscope.model import Model
from headscope.results.explained import Cell, Finding
from headscope.settings import whole

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from headscope.heads import Roles
    from headscope.traces import Trace

    Measured = tuple[Measures, int, int]
    """A head that counts: its layer's measures, its place in them, and its number."""

PLACES = {"previous": "the one before", "next": "the one after", "same": "itself"}
EVERY = 0.9
"""Weight on a neighbour from which the sentence says that every word looks there."""
LEAST_SURPRISE = 0.1
"""Nats. A number that lies nearer to what the head does anyway is no finding."""
MOST = 5
"""Findings that a reader gets by default."""
LINKS = 2
"""Of them, links at most where there are others."""
FIRST = ("link", "previous", "next", "sink")
"""The kinds in the order in which they are told; then others, and then more of each."""
MOST_OF_A_KIND = 8
"""At most so many findings of one kind."""
MOST_TOKENS = 512
"""Of a longer text, no link is cut."""
CUT = 6
"""Links that are cut, to see which of them move the output."""
LEAST_MOVED = 0.001
"""1 - the cosine of the looking word's output with what it is without the link. A link that moves less comes later."""
LEAST_TOKENS = 2
"""Of a text, special tokens left out: with fewer, no token has another to look at."""
LONGEST_WORD = 24
"""Characters of a word that a sentence quotes."""
SAMPLED = 64
"""Words among which the one is chosen whose row shows what a head does."""


def findings(trace: Trace, *, layers: Sequence[int] | None = None, most: int | None = MOST) -> tuple[Finding, ...]:
    """The findings of a trace, the most telling first; none where there is nothing to say.

    First come up to LINKS links, one for each looking word; then the head that most reads the word before, and the one
    that most reads the word after; all heads that rest on [CLS], [SEP] or punctuation as one finding; then one of each
    other kind, and then what is left.

    A number is told where it is far from what the same head does on average over this text's queries: what a head
    gives to the token before, against what it gives to that token over all queries; one weight, against the same key's
    and the same distance's average; weight on [CLS], against the share of what the heads write that comes from there.
    The distance is a Kullback-Leibler divergence in nats (finding_measures.surprise), and the thresholds stand in
    heads.kinds. Links count more the further they reach and where they say what a pronoun stands for
    (finding_measures.Link). If the model can be run, the first CUT of them are cut, and those that move the looking
    word's output by less than LEAST_MOVED come after the others.

    Beside its weight stands what the head brings of the looking word's new vector, and the head that brings most
    (headscope.explain.taken_in).

    The cost is one pass over the weights in blocks of queries, about that of `trace.statistics()`, CUT runs of the
    layers from the cut on, and CUT words' way through the layers; memory is O(S). Silenced, replaced and broken heads
    are left out. Where W_O or the values are not known, the sentences speak of weights only.

    Args:
        layers: the numbers of the layers to look at; all by default.
        most: how many at most; None for all.

    Raises:
        InputError: there is no such layer, or `most` is negative.
    """
    most = None if most is None else whole(most, "most", 0)
    wanted = trace.numbers if layers is None else layers if isinstance(layers, Iterable) else [layers]
    chosen = tuple(dict.fromkeys(trace[layer].layer for layer in wanted))
    if not chosen:
        raise InputError("no layer to look at", where="layers", advice="name some, or leave it out for all")
    if sum(not special for special in trace.keys.special) < LEAST_TOKENS:
        return ()
    aligned = trace.keys is trace.queries
    roles = roles_of(trace)
    content = content_of(trace, trace.queries, roles) if aligned else None
    left_out = trace.changed | set(trace.broken)
    measured = [measure(trace, layer, roles, content) for layer in chosen]
    each = [
        (of, at, head)
        for of in measured
        for at, head in enumerate(trace.head_numbers(of.layer))
        if (of.layer, head) not in left_out
    ]
    rows = np.flatnonzero(~roles.query_special)
    sample = rows[
        np.all([np.isfinite(trace.layers[trace.numbers.index(layer)].lse[:, rows]).all(0) for layer in chosen], 0)
    ]
    links = [link for of in measured for link in of.links if (link.layer, link.head) not in left_out]
    everything = [
        *_linked(trace, links, content),
        *_neighbours(trace, each, content),
        *_resting(trace, each, roles, sample),
        *_alike(trace, [(of.layer, head) for of, _, head in each], sample),
        *_negligible(each),
    ]
    return ranked([finding for finding in everything if finding.surprise >= LEAST_SURPRISE])[:most]


def ranked(everything: Sequence[Finding]) -> tuple[Finding, ...]:
    """The order of telling: kinds as in FIRST, then one of each other kind, then more; links stay in their order."""
    kinds: dict[str, list[Finding]] = {}
    for finding in everything:
        kinds.setdefault(finding.kind, []).append(finding)
    queues = {
        kind: (of_kind if kind == "link" else sorted(of_kind, key=lambda finding: -finding.surprise))[:MOST_OF_A_KIND]
        for kind, of_kind in kinds.items()
    }
    first = {kind: LINKS if kind == "link" else 1 for kind in queues}
    listed = [kind for kind in FIRST if kind in queues]
    others = sorted(set(queues) - set(FIRST), key=lambda kind: -queues[kind][0].surprise)
    order = [finding for kind in (*listed, *others) for finding in queues[kind][: first[kind]]]
    rest = [
        (finding.surprise / (at + 1), finding)
        for kind, of_kind in queues.items()
        for at, finding in enumerate(of_kind)
        if at >= first[kind]
    ]
    return (*order, *(finding for _, finding in sorted(rest, key=lambda pair: -pair[0])))


def _neighbours(trace: Trace, each: Sequence[Measured], content: Content | None) -> Iterator[Finding]:
    """Heads that read the word before, after or itself, or other tokens of the same word."""
    for layer, at, head in each:
        for kind in (*PLACES, "same_word"):
            if kind not in layer.expected:
                continue
            share, expected = float(layer.shares[kind][at]), float(layer.expected[kind][at])
            if not share > max(FINDINGS[kind], expected):
                continue
            numbers = {"weight": share, "expected": expected}
            where = f"head {layer.layer}.{head}, {percent(share)} of its weight."
            if kind == "same_word":
                sentence, cell = f"A repeated word looks at its other place: {where}", Cell(layer.layer, head)
            else:
                who = "Every word looks at" if share >= EVERY else "Words look at"
                place = "themselves" if kind == "same" and share < EVERY else PLACES[kind]
                sentence = f"{who} {place}: {where}"
                cell = _clearest(trace, layer.layer, head, content, NEIGHBOURS[kind])
            yield Finding(kind, sentence, numbers, (cell,), surprise(share, expected))


def _clearest(trace: Trace, layer: int, head: int, content: Content | None, offset: int) -> Cell:
    """The weight of a content word at a distance that shows best what a head does."""
    if content is None:
        return Cell(layer, head)
    rows = np.flatnonzero(content.content)
    rows = rows[(rows + offset >= 0) & (rows + offset < len(content.content))][:SAMPLED]
    if not len(rows):
        return Cell(layer, head)
    weights = trace[layer, head].weights.tile(rows, rows + offset).diagonal()
    query = int(rows[weights.argmax()])
    return Cell(layer, head, query, query + offset)


def _resting(trace: Trace, each: Sequence[Measured], roles: Roles, rows: Int[np.ndarray, " n"]) -> Iterator[Finding]:
    """All heads that rest on [CLS], [SEP] or punctuation, in one sentence."""
    resting = [
        (float(layer.shares[role][at]), layer, at, head, role)
        for layer, at, head in each
        for role in ROLES
        if role in layer.shares and layer.shares[role][at] > FINDINGS[role]
    ]
    if not resting:
        return
    resting.sort(key=lambda place: (-place[0], place[1].layer, place[3]))
    weight = float(np.mean([share for share, *_ in resting]))
    counts = {role: sum(place[4] == role for place in resting) for role in ROLES}
    names = tuple(_role_name(trace, role) for role in sorted(ROLES, key=lambda role: -counts[role]) if counts[role])
    numbers = {"heads": float(len(resting)), "of": float(len(each)), "weight": weight}
    rest, its, they = ("rests", "its", "it writes") if len(resting) == 1 else ("rest", "their", "they write")
    start = f"{len(resting)} of {len(each)} heads {rest} on {' or '.join(names)}: {percent(weight)} of {its} weight, "
    if all(layer.written for _, layer, *_ in resting):
        against = float(np.mean([layer.written[role][at] for _, layer, at, _, role in resting]))
        numbers["written"], words = against, f"{start}{percent(against)} of what {they}."
    else:
        against = float(np.nanmean([layer.shares[place[4]][at] for place in resting for layer, at, _ in each]))
        numbers["average"], words = against, f"{start}the average head {percent(against)} (weights only)."
    first, *others = resting
    _, layer, _, head, role = first
    cells = (
        _rested(trace, layer.layer, head, getattr(roles, role), rows),
        *(Cell(layer.layer, head) for _, layer, _, head, _ in others),
    )
    yield Finding("sink", words, numbers, cells, surprise(weight, against), names)


def _rested(trace: Trace, layer: int, head: int, keys: Bool[np.ndarray, " keys"], rows: Int[np.ndarray, " n"]) -> Cell:
    """The largest weight of a word on one of these keys."""
    places = np.flatnonzero(keys)[:SAMPLED]
    if not len(rows):
        return Cell(layer, head)
    weights = np.asarray(trace[layer, head].weights.tile(rows[:SAMPLED], places))
    query, key = np.unravel_index(int(weights.argmax()), weights.shape)
    return Cell(layer, head, int(rows[query]), int(places[key]))


def _role_name(trace: Trace, role: str) -> str:
    """[CLS] as this vocabulary spells it; punctuation."""
    if role == "punctuation":
        return role
    flags = getattr(roles_of(trace), role)
    return next((token for token, flag in zip(trace.keys.tokens, flags, strict=True) if flag), role)


def _linked(trace: Trace, links: Sequence[Link], content: Content | None) -> Iterator[Finding]:
    """The most telling links, one of each looking word and one of each pair of words."""
    if content is None:
        return
    links = sorted(links, key=lambda link: -link.score)[:32]
    closer = [replace(link, expected=max(link.expected, offset_mean(trace, link))) for link in links]
    best: list[Link] = []
    seen: set[object] = set()
    for link in sorted(closer, key=lambda link: -link.score):
        place = int(content.place[link.query])
        pair = frozenset(content.words[at].casefold() for at in (link.query, link.key))
        if link.weight > link.expected and not seen & {place, pair}:
            seen |= {place, pair}
            best.append(link)
    runs_on = isinstance(trace.source, Model) and not trace.changed and len(trace) <= MOST_TOKENS
    cut = best[:CUT] if runs_on else []
    moved, brought = moved_by_cuts(trace, cut), brought_by_links(trace, cut)
    order = sorted(range(len(best)), key=lambda at: at < len(moved) and moved[at] < LEAST_MOVED)
    for at in order:
        yield _told(best[at], content, moved[at : at + 1], brought[at : at + 1])


def _told(
    link: Link, content: Content, moved: Sequence[float], brought: Sequence[tuple[float, float, tuple[int, int]]]
) -> Finding:
    """A link as a finding, with how far it moves its looking word and what it brings, where that is known."""
    looking, looked = (_quoted(content, place) for place in (link.query, link.key))
    sentence = (
        f"{looking} looks at {looked}: head {link.layer}.{link.head}, weight {short(link.weight)}; "
        f"{short(link.expected)} is usual for it."
    )
    numbers = {"weight": link.weight, "expected": link.expected}
    cells = [Cell(link.layer, link.head, link.query, link.key)]
    if moved:
        numbers["moved"] = moved[0]
    if brought:
        numbers["brings"], most, (layer, head) = brought[0]
        sentence += f" It brings {short(numbers['brings'])} of the new {looking}."
        if (layer, head) != (link.layer, link.head):
            numbers["most"] = most
            cells.append(Cell(layer, head, link.query, link.key))
            sentence = f"{sentence[:-1]}; {layer}.{head} brings {short(most)}."
    return Finding("link", sentence, numbers, tuple(cells), surprise(link.weight, link.expected))


def _quoted(content: Content, place: int) -> str:
    """A word, with its position where the text has it more than once."""
    word = content.words[place]
    again = np.unique(content.place[content.group == content.group[place]])
    quoted = f"“{word if len(word) <= LONGEST_WORD else word[: LONGEST_WORD - 1] + '…'}”"
    return f"{quoted} ({place})" if len(again) > 1 else quoted


def short(weight: float) -> str:
    """A weight or share as pictures have it: .69, −.02; 1 where it rounds to that, 0 below .005."""
    text = f"{abs(weight):.2f}"
    sign = "−" if weight < 0 and text != "0.00" else ""
    return sign + {"0.00": "0", "1.00": "1"}.get(text, text.removeprefix("0"))


def percent(share: float) -> str:
    """A share in per cent without decimals; never 0% or 100% for what only rounds to it."""
    if 0 < share < 0.005:
        return "under 1%"
    return "over 99%" if 0.995 <= share < 1 else f"{share:.0%}"


def _alike(trace: Trace, heads: Sequence[tuple[int, int]], rows: np.ndarray) -> Iterator[Finding]:
    """Pairs of heads that look at the same keys, query by query."""
    for pair in similar_heads(trace, heads, rows, MOST_OF_A_KIND):
        if pair.overlap >= max(FINDINGS["alike"], pair.between):
            (layer, head), (other_layer, other_head) = pair.first, pair.second
            yield Finding(
                "alike",
                f"Heads {layer}.{head} and {other_layer}.{other_head} look alike: {percent(pair.overlap)} of their "
                f"weight on the same words, {percent(pair.between)} where the looking words differ.",
                {"overlap": pair.overlap, "between": pair.between},
                (Cell(layer, head), Cell(other_layer, other_head)),
                surprise(pair.overlap, pair.between),
            )


def _negligible(each: Sequence[Measured]) -> Iterator[Finding]:
    """Heads that write vectors much shorter than their layer's other heads do."""
    for layer, at, head in each:
        if layer.lengths is None:
            continue
        counted = [place for other, place, _ in each if other is layer]
        average = float(layer.lengths[counted].mean())
        ratio = float(layer.lengths[at]) / average if average > 0 else 1.0
        if ratio <= FINDINGS["negligible"]:
            yield Finding(
                "negligible",
                f"Head {layer.layer}.{head} writes next to nothing: vectors {percent(ratio)} as long as its layer's "
                "average.",
                {"length": float(layer.lengths[at]), "ratio": ratio},
                (Cell(layer.layer, head),),
                surprise(ratio / (1 + ratio), 0.5),
            )


def brought_by_links(trace: Trace, links: Sequence[Link]) -> list[tuple[float, float, tuple[int, int]]]:
    """The share that each link brings of its looking word's new vector, and the head of all layers that brings most.

    Returns:
        For each link its share (headscope.explain.taken_in), the largest one and its (layer, head); none where the
        trace is not of a whole pass of a model whose norms follow its sums, or where a share is not a number.
    """
    if not links:
        return []
    try:
        rows = np.array([link.query for link in links])
        by_layer = [shares for _, shares, _ in shares_by(trace, rows, readers_of(trace, rows))]
    except (TraceError, UnsupportedError):
        return []
    listed = []
    for at, link in enumerate(links):
        shares = {
            (layer, head): float(share)
            for layer, of_heads in enumerate(by_layer)
            for head, share in enumerate(of_heads[:, at, link.key])
        }
        if not np.isfinite([*shares.values()]).all():
            return []
        most = max(shares, key=shares.__getitem__)
        listed.append((shares[link.layer, link.head], shares[most], most))
    return listed


def moved_by_cuts(trace: Trace, links: Sequence[Link]) -> list[float]:
    """1 - the cosine of each link's looking word's last hidden state with what it is without the link.

    Returns:
        A number for each link; none where the trace's model can't be run, or where one is not a number.
    """
    if not links:
        return []
    # Imported only here: a text without links needs no runs.
    from headscope.runs.engine import Edit, NumpyRunner
    from headscope.runs.texts import as_input

    assert isinstance(trace.source, Model)
    runner = NumpyRunner(trace.source)
    try:
        base = runner.base([as_input(trace.queries)])
        edits = [frozenset({Edit(link.layer, link.head, "edge", edge=(link.query, link.key))}) for link in links]
        moved = [0.0] * len(links)
        for runs, (states,) in runner.states(base, edits):
            for at, run in enumerate(runs):
                query = links[run].query
                moved[run] = float(turned(states[at, query], base.last[query]))
    except UnsupportedError:  # a model that headscope reads and doesn't run
        return []
    return moved if np.isfinite(moved).all() else []

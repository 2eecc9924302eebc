"""Elements of every screen of a trace: its model, its tokens' labels, its weights as short decimals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.checkpoint import called
from headscope.view.labels import width
from headscope.view.pieces import labels
from headscope.view.terminal import Drawing, Line, Paper, prose

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._trace import Trace


def trace_record(trace: Trace) -> dict[str, Any]:
    """The first fields of every record of a trace."""
    return {
        "model": trace.model,
        "tokens": trace.tokens,
        "ids": trace.ids,
        "segments": trace.segments,
        "ablated": sorted(trace.ablated),
        **({"unrecorded": trace.unrecorded} if trace.unrecorded else {}),
        "broken": trace.broken,
    }


def trace_aside(trace: Trace) -> str:
    """The model, the number of tokens and of unknown ones, and the silenced heads."""
    unknown = sum(token in ("[UNK]", "<unk>") for token in trace.tokens)
    silenced = ", ".join(f"{layer}.{head}" for layer, head in sorted(trace.ablated))
    return (
        f"{called(trace.model)}, {len(trace)} token{'' if len(trace) == 1 else 's'}"
        + (f", {unknown} of them unknown to its vocabulary" if unknown else "")
        + (f", silenced: {silenced}" if silenced else "")
        + (f", unrecorded attention: {'; '.join(trace.unrecorded)}" if trace.unrecorded else "")
    )


def shown_tokens(trace: Trace) -> tuple[str, ...]:
    """The labels of the tokens."""
    return labels(trace.queries, trace.text, trace.pair)


def shown_keys(trace: Trace) -> tuple[str, ...]:
    """The labels of the keys, which differ from the tokens' in cross-attention and with a cache."""
    return shown_tokens(trace) if trace.keys is trace.queries else labels(trace.keys)


def tokens_line(trace: Trace) -> Drawing:
    """The tokens with their positions."""
    return prose(" ".join(f"{at}:{label}" for at, label in enumerate(shown_tokens(trace))), "dim")


def highlighted(names: Sequence[str], place: int) -> Drawing:
    """The tokens with the query marked; of many, those around it."""

    def draw(paper: Paper) -> Iterable[Line]:
        room = paper.width - width(names[place]) - 10
        start, stop = place, place + 1
        while room > 0 and (start > 0 or stop < len(names)):
            forward = stop < len(names) and (start == 0 or stop - place <= place - start)
            room -= width(names[stop if forward else start - 1]) + 1
            if room > 0:
                start, stop = (start, stop + 1) if forward else (start - 1, stop)
        dots = paper.sign("…", "...")
        before_text = f"{dots} " * (start > 0) + "".join(f"{token} " for token in names[start:place])
        after_text = "".join(f" {token}" for token in names[place + 1 : stop]) + f" {dots}" * (stop < len(names))
        yield (
            (before_text, "dim"),
            (f"{paper.sign('»', '>')}{names[place]}{paper.sign('«', '<')}", "bold"),
            (after_text, "dim"),
        )

    return draw


def short(weight: Any) -> float:
    """A float32 as the shortest decimal that reads back as the same float32."""
    return float(str(np.float32(weight)))


def short_rows(weights: Float[np.ndarray, "queries keys"]) -> list[list[float]]:
    """All weights of a head, each as `short` returns it."""
    return [[float(text) for text in row] for row in weights.astype(np.float32).astype("U")]

"""What every screen of a trace says: its model, its tokens as people's words, its weights as short decimals."""

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
    """What every record of a trace begins with."""
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
    """The model, how many tokens, how many of them its vocabulary lacks, which heads were silenced."""
    unknown = sum(token in ("[UNK]", "<unk>") for token in trace.tokens)
    silenced = ", ".join(f"{layer}.{head}" for layer, head in sorted(trace.ablated))
    return (
        f"{called(trace.model)}, {len(trace)} token{'' if len(trace) == 1 else 's'}"
        + (f", {unknown} of them unknown to its vocabulary" if unknown else "")
        + (f", silenced: {silenced}" if silenced else "")
        + (f", unrecorded attention: {'; '.join(trace.unrecorded)}" if trace.unrecorded else "")
    )


def shown_tokens(trace: Trace) -> tuple[str, ...]:
    """The tokens as people's words."""
    return labels(trace.queries, trace.text, trace.pair)


def shown_keys(trace: Trace) -> tuple[str, ...]:
    """The keys as people's words: the same tokens, but in cross-attention and with a cache."""
    return shown_tokens(trace) if trace.keys is trace.queries else labels(trace.keys)


def tokens_line(trace: Trace) -> Drawing:
    """The tokens with their positions."""
    return prose(" ".join(f"{at}:{label}" for at, label in enumerate(shown_tokens(trace))), "dim")


def highlighted(shown: Sequence[str], place: int) -> Drawing:
    """The tokens with the query set apart; where there are many, those around it."""

    def draw(paper: Paper) -> Iterable[Line]:
        room = paper.width - width(shown[place]) - 10
        start, stop = place, place + 1
        while room > 0 and (start > 0 or stop < len(shown)):
            forward = stop < len(shown) and (start == 0 or stop - place <= place - start)
            room -= width(shown[stop if forward else start - 1]) + 1
            if room > 0:
                start, stop = (start, stop + 1) if forward else (start - 1, stop)
        dots = paper.sign("…", "...")
        before_text = f"{dots} " * (start > 0) + "".join(f"{name} " for name in shown[start:place])
        after_text = "".join(f" {name}" for name in shown[place + 1 : stop]) + f" {dots}" * (stop < len(shown))
        yield (
            (before_text, "dim"),
            (f"{paper.sign('»', '>')}{shown[place]}{paper.sign('«', '<')}", "bold"),
            (after_text, "dim"),
        )

    return draw


def short(weight: Any) -> float:
    """A float32 as the shortest decimal that reads back as the same float32."""
    return float(str(np.float32(weight)))


def short_rows(weights: Float[np.ndarray, "queries keys"]) -> list[list[float]]:
    """All weights of a head, each as `short` has it."""
    return [[float(text) for text in row] for row in weights.astype(np.float32).astype("U")]

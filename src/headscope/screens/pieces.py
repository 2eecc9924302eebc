"""Labels of tokens: a vocabulary's marks (`##`, `Ġ`, `▁`, spelled bytes) turned back into text; lines about a trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.checkpoint import called
from headscope.errors import InputError
from headscope.results.tokens import SPACES, sources, whole_words
from headscope.screens.labels import printable, width
from headscope.screens.terminal import Drawing, Line, Paper, prose
from headscope.screens.values import shortened, whole_number

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.results.tokens import TokenAxis
    from headscope.traces import Trace

CONTINUED = "·"
"""Mark before a token that continues a word."""


def labels(axis: TokenAxis, text: str | None = None, pair: str | None = None) -> tuple[str, ...]:
    """One printable label per token: `em ·bed ·ding ·s`, `[CLS]`, 你 even if the vocabulary spells bytes.

    Special and unknown tokens keep their names, because the model sees no more of them.
    """
    names: list[str] = []
    words, _ = whole_words(axis, text, pair)
    for at, (token, place) in enumerate(zip(axis.tokens, sources(axis, text, pair), strict=True)):
        if axis.special[at]:
            names.append(printable(token))
            continue
        span = axis.spans[at]
        source = place[1][span[0] : span[1]] if place is not None and span is not None else None
        continued = at > 0 and words[at] == words[at - 1]
        names.append((CONTINUED if continued else "") + _label(token, source, continued))
    return tuple(names)


def joined(axis: TokenAxis, most: int) -> str:
    """The first `most` tokens as people write them: the pieces of a word together, words apart."""
    text = ""
    for label in labels(axis)[:most]:
        continued = label.startswith(CONTINUED) and label != CONTINUED
        text += label.removeprefix(CONTINUED) if continued else f" {label}"
    return text.strip()


def _label(token: str, source: str | None, continued: bool) -> str:
    if continued and token.startswith("##") and len(token) > 2:
        token = token[2:]
    elif len(token) > 1 and token[0] in SPACES and (source is None or token[0] not in source):
        token = token[1:]
    spelled = _spelled_bytes(token) if not token.isascii() else None
    if source is not None and spelled is not None and token not in source and spelled in source.encode():
        token = spelled.decode(errors="backslashreplace")
    return printable(token)


@cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 is itself, every other byte is a letter from U+0100 on."""
    unchanged = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in unchanged]
    return {chr(byte): byte for byte in unchanged} | {chr(0x100 + at): byte for at, byte in enumerate(rest)}


def _spelled_bytes(token: str) -> bytes | None:
    alphabet = _byte_alphabet()
    return bytes(alphabet[letter] for letter in token) if all(letter in alphabet for letter in token) else None


def find_token(wanted: str, tokens: Sequence[str], shown: Sequence[str], where: str = "--query") -> int:
    """The position of a token named by its number, counted from 0, its text or its label.

    Raises:
        InputError: no such position or token, or a token that occurs more than once; it names the option, `where`.
    """
    number = whole_number(wanted)
    if number is not None:
        if -len(tokens) <= number < len(tokens):
            return number % len(tokens)
        found = f"there is no token {wanted}: the text has {len(tokens)} tokens"
        raise InputError(found, where=where, advice=f"tokens are numbered 0 to {len(tokens) - 1}")
    for same in (str.__eq__, lambda form, other: form.casefold() == other.casefold()):
        places = [
            at
            for at, pair in enumerate(zip(tokens, shown, strict=True))
            if any(same(form, wanted) for form in (*pair, pair[1].removeprefix(CONTINUED)))
        ]
        if len(places) == 1:
            return places[0]
        if places:
            found = f"{wanted!r} occurs {len(places)} times: at {', '.join(map(str, places))}"
            raise InputError(found, where=where, advice="choose one by its number")
    listed = " ".join(f"{at}:{label}" for at, label in enumerate(shown[:40]))
    advice = f"the tokens are {listed}{' …' if len(shown) > 40 else ''}"
    raise InputError(f"there is no token {shortened(wanted)}", where=where, advice=advice)


def trace_record(trace: Trace) -> dict[str, Any]:
    """The first fields of every record of a trace."""
    return {
        "model": trace.model,
        "tokens": trace.tokens,
        "ids": trace.ids,
        "segments": trace.queries.segments,
        "ablated": sorted(trace.ablated),
        **({"swapped": [[*head, way] for head, way in trace.swapped.items()]} if trace.swapped else {}),
        **({"unrecorded": trace.unrecorded} if trace.unrecorded else {}),
        "broken": trace.broken,
        **({"notes": trace.notes} if trace.notes else {}),
    }


def trace_aside(trace: Trace) -> str:
    """The model, the number of tokens and of unknown ones, and the heads that were changed."""
    unknown = sum(token in ("[UNK]", "<unk>") for token in trace.tokens)
    silenced = ", ".join(f"{layer}.{head}" for layer, head in sorted(trace.ablated - trace.swapped.keys()))
    replaced = ", ".join(f"{layer}.{head} ({way})" for (layer, head), way in trace.swapped.items())
    return (
        f"{called(trace.model)}, {len(trace)} token{'' if len(trace) == 1 else 's'}"
        + (f", {unknown} of them unknown to its vocabulary" if unknown else "")
        + (f", silenced: {silenced}" if silenced else "")
        + (f", replaced: {replaced}" if replaced else "")
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

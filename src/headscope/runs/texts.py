"""Texts, prepared as a model reads them, and its forward passes over them: with a trace, or the last states alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from headscope.anatomy import check_index
from headscope.attention.patterns import Heads, Way, by_head, checked_way, recorded, swap_notes
from headscope.checkpoint.tokenizer import Prepared
from headscope.checkpoint.tokenizer.face import checked_text
from headscope.encoder import Input
from headscope.encoder.products import FEW_TEXTS
from headscope.errors import InputError, warn
from headscope.results.arrays import Named
from headscope.results.tokens import TokenAxis, sources
from headscope.settings import whole
from headscope.traces import Trace

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.model import Model
    from headscope.results.explained import Pooling

BATCH_TOKENS = 4096
"""Most tokens that go through the encoder side by side."""

T = TypeVar("T")

Ids = tuple[tuple[int, ...], tuple[int, ...]]
"""The ids and segments of one text."""


def column_of(given: Any, name: str) -> Any:
    """A column of a table, an array or a tuple as a list; a string, or None, as it is. A column's index says nothing.

    Raises:
        InputError: it is a table, or something else that is no column.
    """
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, (Mapping, bytes)) or hasattr(given, "columns") or not isinstance(given, Iterable):
        raise InputError(
            f"expected a list, got {type(given).__name__}",
            where=name,
            advice="pass a list, or one column of a table: frame['text']",
        )
    found: list[Any] = given.to_pylist() if hasattr(given, "to_pylist") else list(given)
    return found


def texts_of(given: Any, name: str) -> Any:
    """Texts as `column_of` has them.

    Raises:
        InputError: as there; or an entry is not a text, by its place.
    """
    found = column_of(given, name)
    for at, text in enumerate(found if isinstance(found, list) else ()):
        if not isinstance(text, str):
            raise InputError(
                f"entry {at} is {text!r:.40}, not a text",
                where=f"{name}[{at}]",
                advice="leave out rows without a text; the second texts of pairs are a list of their own, pair=",
            )
    return found


def one_text(given: Any) -> str:
    """A text that stands alone.

    Raises:
        InputError: it is something else, such as a list of texts.
    """
    if not isinstance(given, str):
        raise InputError(
            f"expected one text, got {type(given).__name__}", where="text", advice="pass one string, text by text"
        )
    return given


def one_for_each(texts: Sequence[str], several: Any, name: str) -> Sequence[Any]:
    """The companions of texts, a second text or a label for each; None for each where there are none.

    Raises:
        InputError: it is one text, or there are more or fewer than texts.
    """
    if several is None:
        return [None] * len(texts)
    if isinstance(several, str) or len(several) != len(texts):
        count = "one text" if isinstance(several, str) else f"{len(several)} in {name}"
        raise InputError(f"{len(texts)} texts and {count}", where=name, advice="pass one for each text")
    return several


def prepared(
    model: Model,
    text: str,
    pair: str | None = None,
    *,
    rule: Pooling,
    name: str = "the text",
    wanted: int | None = None,
) -> Prepared:
    """Prepare a text for a model, as sentence-transformers does: the prompt, lower case, the limit.

    Every text whose vector or score is read passes through here. Special tokens in the text keep their case.

    Args:
        model: the model.
        text: the text.
        pair: a second text for the same input.
        rule: the prompt, the case and the limit; the model's positions limit a text too.
        name: of the text, for notes.
        wanted: a limit that a person gave; a text that is cut further gives a NoteWarning.

    Raises:
        InputError: an empty text.
        UnsupportedError: the model is one that headscope doesn't run.
    """
    model.anatomy.computable()
    checked_text(text, "text")
    tokenizer, prompt = model.tokenizer, rule.prompt
    notes = tokenizer.doubts(pair=pair is not None)
    notes += [f"the model's prompt {prompt!r} was put before {name}"] if prompt else []
    if rule.lowercase:
        lower = _lowered(model, text)
        notes += [f"{name} was lower-cased, as the model's files say"] if lower != text else []
        text, prompt = lower, _lowered(model, prompt)
        pair = None if pair is None else _lowered(model, pair)
    text = prompt + text
    longest = min(model.anatomy.longest_text, rule.max_length or model.anatomy.longest_text)
    uncut = tokenizer.encode(text, pair)
    encoded = uncut if len(uncut) <= longest else tokenizer.encode(text, pair, max_length=longest)
    if len(encoded) < len(uncut):
        notes.append(f"{name} was cut from {len(uncut)} to {len(encoded)} tokens")
        if wanted is None or longest < wanted:
            warn(f"{name} was cut to {len(encoded)} tokens, the most that the model reads: see .notes")
    if prompt and not rule.include_prompt:
        alone = tokenizer.encode(prompt, max_length=longest)
        encoded = replace(encoded, prompt=len(alone) - alone.special[-1])
        notes.append("the prompt's tokens are left out of the text's vector, as the model's files say")
    return Prepared(text, encoded, len(prompt), tuple(notes), pair, len(uncut))


def as_traced(model: Model, text: str, pair: str | None = None, *, max_length: int | None = None) -> Prepared:
    """A text as a trace has it: as it is, or prepared if the checkpoint is one of sentence-transformers.

    It stays without the prompt, whose tokens have no span, so that it can be read again.

    Args:
        model: the model.
        text: the text.
        pair: a second text for the same input.
        max_length: a limit instead of the model's own.

    Raises:
        InputError: an empty text.
        UnsupportedError: the model is one that headscope doesn't run.
    """
    if model.checkpoint.file("modules.json") is None:
        notes = tuple(model.tokenizer.doubts(pair=pair is not None))
        return Prepared(text, model.tokenizer.encode(text, pair, max_length=max_length), pair=pair, notes=notes)
    found = prepared(model, text, pair, rule=limited(model.text_rule, max_length), wanted=max_length)
    own, spans = found.text[found.prompt :], list(found.encoded.spans)
    for at, place in enumerate(sources(found.encoded, own, pair) if found.prompt else ()):
        span = spans[at]
        if place is not None and place[0] == 0 and span is not None:
            start, stop = (max(0, end - found.prompt) for end in span)
            spans[at] = (start, stop) if stop else None
    return replace(found, text=own, encoded=replace(found.encoded, spans=tuple(spans)), prompt=0)


def limited(rule: Pooling, max_length: int | None) -> Pooling:
    """The rule with a person's limit, a whole number of at least 1, instead of its own."""
    return rule if max_length is None else replace(rule, max_length=whole(max_length, "max_length", 1))


def _lowered(model: Model, text: str) -> str:
    """The text in lower case, but for special tokens, which a tokenizer finds before it changes the case."""
    special = "|".join(map(re.escape, sorted(model.tokenizer.special_tokens, key=len, reverse=True)))
    parts = re.split(f"({special})", text) if special else [text]
    return "".join(part if at % 2 else part.lower() for at, part in enumerate(parts))


def self_attended(trace: Trace) -> TokenAxis:
    """The tokens of a trace of self-attention.

    Raises:
        InputError: cross-attention, whose keys are other tokens than its queries.
    """
    if trace.keys is not trace.queries:
        raise InputError(
            "the keys are another text than the queries",
            where=f"trace of {trace.stack} attention",
            advice="use a trace of self-attention",
        )
    return trace.queries


def of_trace(trace: Trace) -> Prepared:
    """The text of a trace of self-attention as it was tokenized. Errors are those of `self_attended`."""
    return Prepared(trace.text or "", self_attended(trace), pair=trace.pair)


def as_input(text: TokenAxis | Ids) -> Input:
    """A text as the encoder takes it."""
    ids, segments = (text.ids, text.segments) if isinstance(text, TokenAxis) else text
    return Input(np.array(ids, dtype=np.int64), np.array(segments, dtype=np.int64))


def last_states(model: Model, texts: Iterable[TokenAxis | Ids]) -> list[Float[np.ndarray, "tokens d_model"]]:
    """The last hidden state of each text, in the order of the texts.

    Raises:
        InputError: a text is longer than the position table.
    """
    states: list[Float[np.ndarray, "tokens d_model"]] = []
    for batch in batches(map(as_input, texts), lambda text: len(text.ids)):
        for text in model.encoder.forward(batch):
            assert text.last is not None
            states.append(text.last)
    return states


def batches(texts: Iterable[T], tokens: Callable[[T], int], most: int = BATCH_TOKENS) -> Iterator[list[T]]:
    """Neighbouring texts with at most so many tokens together, or one text."""
    batch: list[T] = []
    together = 0
    for text in texts:
        if batch and together + tokens(text) > most:
            yield batch
            batch, together = [], 0
        batch.append(text)
        together += tokens(text)
    if batch:
        yield batch


def trace(
    model: Model,
    text: str | list[str] | None = None,
    pair: str | list[str] | None = None,
    *,
    words: Sequence[str] | None = None,
    ids: Sequence[int] | None = None,
    segments: Sequence[int] | None = None,
    max_length: int | None = None,
    ablate: Heads = (),
    hidden_states: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Trace | list[Trace]:
    """Run one forward pass and return its trace, or one for each text of a list. See `Model.trace`."""
    model.anatomy.computable()
    ways = _ways(model, ablate)
    if isinstance(text, Iterable):
        text, pair = texts_of(text, "text"), texts_of(pair, "pair")
    if isinstance(text, list):
        if words is not None or ids is not None or segments is not None:
            raise InputError(
                "a list of texts can't be combined with words, ids or segments",
                where="trace(text=[…])",
                advice="pass only the list of texts",
            )
        several = [
            _read_at(model, at, first, second, max_length)
            for at, (first, second) in enumerate(zip(text, one_for_each(text, pair, "pair"), strict=True))
        ]
        return _run(model, several, ways, hidden_states, progress)
    if isinstance(pair, list):
        raise InputError(
            f"`pair` is a list of {len(pair)} texts, but `text` is a single text",
            where="pair",
            advice="pass one second text",
        )
    inputs = [name for name, value in (("text", text), ("words", words), ("ids", ids)) if value is not None]
    if len(inputs) != 1:
        raise InputError(
            f"a trace needs exactly one of text, words and ids, got {' and '.join(inputs) or 'none'}",
            where="trace",
            advice='pass a text: model.trace("The cat sat on the mat.")',
        )
    for name, value, needs in (("pair", pair, "text"), ("segments", segments, "ids")):
        if value is not None and inputs != [needs]:
            raise InputError(f"{name} goes with {needs}", where=name, advice=f"pass {needs}, or leave {name} out")
    if text is not None:
        single = as_traced(model, text, pair, max_length=max_length)
    elif words is not None:
        encoded = model.tokenizer.encode_words(_plain(words), max_length=max_length)
        single = Prepared("", encoded, notes=tuple(model.tokenizer.doubts(pair=False)))
    else:
        single = Prepared("", model.tokenizer.encode_ids(_plain(ids), _plain(segments), max_length=max_length))
    return _run(model, [single], ways, hidden_states, progress)[0]


def _plain(given: Any) -> Any:
    """Ids or words in an array, a tensor or a column of pandas as a list, also those of a batch with one row."""
    plain = given.tolist() if hasattr(given, "tolist") else given
    return plain[0] if isinstance(plain, list) and len(plain) == 1 and isinstance(plain[0], list) else plain


def _ways(model: Model, ablate: Heads) -> dict[tuple[int, int], Way]:
    """The way of each head, as a pair of indices from 0, after checking that the model has it."""
    sizes = model.anatomy.known()
    ways: dict[tuple[int, int], Way] = {}
    for (layer, head), way in by_head(ablate).items():
        where = f"ablate, layer {layer}, head {head}"
        number = check_index(layer, sizes.layers, "layer", "the model")
        at = number, check_index(head, sizes.heads, "head", f"layer {layer}")
        if at in ways and isinstance(ablate, Mapping):
            found = "the head has two ways: its layer or itself is counted from the start, and from the end"
            raise InputError(found, where=where, advice="name each head once")
        ways[at] = checked_way(way, where)
    return ways


def _read_at(model: Model, at: int, text: str, pair: str | None, max_length: int | None) -> Prepared:
    """Prepare one text of a list.

    Raises:
        InputError: the tokenizer's error, with the index of the text.
    """
    try:
        return as_traced(model, text, pair, max_length=max_length)
    except InputError as error:
        where = f"{error.where}[{at}]"
        raise InputError(f"{where}: {error.found}", where=where, advice=error.advice) from error


def _run(
    model: Model,
    texts: Sequence[Prepared],
    ways: Mapping[tuple[int, int], Way],
    hidden_states: bool,
    progress: Callable[[int, int], None] | None,
) -> list[Trace]:
    """Run the encoder over all inputs, in batches, and return their traces."""
    encoder = model.encoder if len(texts) <= FEW_TEXTS else model.encoder.for_many_texts
    layers = model.anatomy.known().layers
    layers_done = None if progress is None else lambda done: progress(done, layers)
    traces: list[Trace] = []
    silenced, swapped = recorded(ways)
    for batch in batches(texts, lambda text: len(text.encoded)):
        inputs = [as_input(text.encoded) for text in batch]
        passes = encoder.forward(inputs, ablate=ways, hidden_states=hidden_states, progress=layers_done)
        for text, result in zip(batch, passes, strict=True):
            assert result.last is not None
            states = {"last_hidden_state": result.last}
            states |= {f"hidden_states.{index}": state for index, state in enumerate(result.hidden)}
            outputs = {name: Named(name, ("tokens", "d_model"), state) for name, state in states.items()}
            traces.append(
                Trace(
                    model=model.name,
                    fingerprint=model.fingerprint,
                    queries=text.encoded,
                    layers=result.layers,
                    outputs=outputs,
                    text=text.text or None,
                    pair=text.pair,
                    ablated=silenced,
                    swapped=swapped,
                    source=model,
                    notes=(*text.notes, *swap_notes(swapped)),
                )
            )
    return traces

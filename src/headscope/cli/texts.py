"""What MODEL and TEXT mean: a model and its forward pass over a text, or a trace that was saved."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from headscope.cli.app import DOUBTFUL, opened, tell
from headscope.cli.progress import layers_shown
from headscope.errors import InputError

if TYPE_CHECKING:
    from headscope._trace import Trace
    from headscope.model import Model


def traced(
    model: str,
    text: str | None,
    pair: str | None = None,
    *,
    revision: str | None,
    words: bool = False,
    ids: bool = False,
    max_length: int | None = None,
    ablate: list[str] | None = None,
    check: Callable[[Model], object] = lambda model: None,
    doubts: bool = True,
) -> tuple[Model, Trace]:
    """The model by its name, and its forward pass over what TEXT means.

    Args:
        check: is called with the model before any weight is read.
        doubts: whether what looks wrong with the checkpoint is said on stderr.
    """
    from headscope.view.typed import head_names, number_list, word_list

    silenced = head_names(ablate or ())
    if words and ids:
        raise InputError("TEXT can't be both words and ids", where="--ids", advice="give one of --words and --ids")
    if (words or ids) and pair is not None:
        raise InputError(
            "a second text goes with a first text only", where="--pair", advice="leave out --words, --ids or --pair"
        )
    typed = given_text(text, model)
    pair = None if pair is None else as_typed(pair)
    one = opened(model, revision)
    check(one)
    with layers_shown(sys.stderr) as progress:
        if ids:
            given = number_list(typed, noun="token id", option="--ids", example="'101 7592 102'")
            trace = one.trace(ids=given, max_length=max_length, ablate=silenced, progress=progress)
        elif words:
            trace = one.trace(words=word_list(typed), max_length=max_length, ablate=silenced, progress=progress)
        else:
            trace = one.trace(typed, pair, max_length=max_length, ablate=silenced, progress=progress)
    for problem in one.anatomy.problems if doubts else ():
        tell(f"! {problem}")
    return one, trace


def exit_code(trace: Trace) -> int:
    """How to end when the rest has been shown: 1 where the model's numbers are not finite, which is said here."""
    from headscope._trace import broken_line

    if (line := broken_line(trace)) is None:
        return 0
    tell(f"! {line}")
    return DOUBTFUL


def as_typed(text: str) -> str:
    """An argument as it was typed: where the locale could not decode its bytes, they are taken as UTF-8."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError:
        return text


def given_text(text: str | None, model: str) -> str:
    """TEXT, from standard input where it is `-`.

    Raises:
        InputError: there is none, or standard input can't be read or is not valid UTF-8.
    """
    if text is None:
        if " " in model.strip() and not os.path.exists(model):
            advice = f"the first argument is the model, - is the bundled one: - {model!r}"
        else:
            advice = f'say what the model is to read: {shlex.quote(model)} "The cat sat on the mat."'
        raise InputError("there is no TEXT", where=f"MODEL {model}", advice=advice)
    if text != "-":
        return as_typed(text)
    try:
        return sys.stdin.buffer.read().decode("utf-8").rstrip("\r\n")
    except OSError as error:
        raise InputError(
            f"it can't be read: {error.strerror or error}",
            where="standard input",
            advice="pipe the text in, or give it as TEXT",
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"the text is no UTF-8: byte {error.start} is {error.object[error.start]:#04x}",
            where="standard input",
            advice="convert it to UTF-8",
        ) from error


def saved_or_traced(
    model: str,
    text: str | None,
    pair: str | None,
    *,
    revision: str | None,
    words: bool,
    ids: bool,
    max_length: int | None,
    ablate: list[str] | None,
    check: Callable[[Model], object] = lambda model: None,
) -> tuple[Model | None, Trace]:
    """The trace that MODEL names, where there is no TEXT and it names one; else as `traced`."""
    from headscope._trace import is_trace, load

    if text is not None or not is_trace(model):
        return traced(
            model,
            text,
            pair,
            revision=revision,
            words=words,
            ids=ids,
            max_length=max_length,
            ablate=ablate,
            check=check,
        )
    if any(given not in (None, False) for given in (pair, revision, words, ids, max_length, ablate)):
        raise InputError(
            "a trace that was saved has been computed: no option of the forward pass can change it",
            where=model,
            advice="leave out --pair, --words, --ids, --max-length, --ablate and --revision",
        )
    return None, load(model)

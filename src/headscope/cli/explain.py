"""The commands that explain an output: the effects of heads, the contributions of tokens, the matches of texts."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from headscope.cli.app import app, named, opened, show, tell, tell_saved
from headscope.cli.options import Form, Html, ModelName, Segments, Top, argument, number, option, takes_options
from headscope.cli.request import LONGEST, TextRequest, as_typed, pasted
from headscope.errors import InputError
from headscope.progress_bar import progress_bar
from headscope.settings import Declared, Setting

if TYPE_CHECKING:
    from headscope.model import Model
    from headscope.results.effect_records import Wanted
    from headscope.results.explained import Prediction
    from headscope.screens.terminal import Sheet

EXPLAIN = "Explain an output"

CHECK = Setting("Mask the strongest words for real, and show what that changes.")

Method = Annotated[str, option("--method", "NAME", "How a head is silenced: zero, or mean over the text's tokens.")]


@dataclass(frozen=True)
class TargetOptions:
    """The output to explain, as typed."""

    target: Annotated[
        str | None,
        option(
            "--target",
            "NAME",
            r"Output to explain: a word at the first \[MASK], or a class by name or number. By default the "
            "likeliest word, the predicted class, or the text's vector, depending on the model.",
        ),
    ] = None
    at: Annotated[
        int | None,
        option("--at", "TOKEN", "With --target: the position of the word or of the labelled token.", parser=number),
    ] = None
    like: Annotated[str | None, option("--like", "TEXT", "Explain the cosine similarity to this text instead.")] = None
    against: Annotated[
        str | None,
        option(
            "--against",
            "NAME",
            "Explain the difference from an alternative: a word or class with --target, a text with --like.",
        ),
    ] = None
    vector: Annotated[bool, Setting("Explain the text's vector instead.")] = False

    def wanted(self, model: Model) -> Wanted:
        """Return the target that the options name.

        Raises:
            InputError: the options name several targets, or --at or --against are given without one.
        """
        given = {"--target": self.target is not None, "--like": self.like is not None, "vector": self.vector}
        options = [name for name, on in given.items() if on]
        if len(options) > 1:
            raise InputError(f"{' and '.join(options)} exclude each other", where=options[1], advice="use one of them")
        if self.at is not None and self.target is None:
            raise InputError("--at requires --target", where="--at", advice="add --target")
        if self.against is not None and self.target is None and self.like is None:
            raise InputError("--against requires --target or --like", where="--against", advice="add one of them")
        if self.like is not None:
            return _less(*(("similarity", as_typed(text)) for text in (self.like, self.against) if text is not None))
        if self.vector:
            return ("embedding",)
        if self.target is None:
            return None
        return _less(*(self._named(model, name) for name in (self.target, self.against) if name is not None))

    def _named(self, model: Model, name: str) -> Wanted:
        """A word, class or label, at --at if that is given."""
        from headscope.screens.values import whole_number

        name = as_typed(name)
        index = whole_number(name)
        label = name if index is None else index
        if self.at is None:
            return label
        return ("token", self.at, label) if "token" in model.anatomy.tasks else ("word", label, self.at)


def _less(target: Wanted, *other: Wanted) -> Wanted:
    """The target, or the target less its alternative."""
    return (target, *other) if other else target


def finish(sheet: Sheet, form: Form, step: str, html: Path | None) -> None:
    """Print an answer, and write its screen as HTML where that was asked for."""
    if html is not None:
        from headscope.screens.html_tables import write_screen

        tell_saved(html, write_screen(sheet.drawings, html))
    show(sheet, form.name, step=step)


def prediction(model: Model, request: TextRequest, text: str) -> Prediction | None:
    """Return what a classifier of texts predicts; None for other models."""
    if "sequence" not in model.anatomy.tasks:
        return None
    return model.predict(text, request.second, max_length=request.max_length)


@dataclass(frozen=True)
class EffectsSettings(Declared):
    """The replacement of a head."""

    patch_from: Annotated[
        str | None, Setting("Replace each head's context with that from this text's run.", "TEXT")
    ] = None


@app.command(rich_help_panel=EXPLAIN)
@takes_options
def effects(
    request: TextRequest,
    form: Form,
    goal: TargetOptions,
    settings: EffectsSettings,
    method: Method = "zero",
    top: Top = None,
    html: Html = None,
) -> None:
    """Measure how silencing each head changes one output."""
    from headscope.screens.explain_sheets import effects_sheet

    text = request.given_text()
    model = request.opened()
    with progress_bar("layers", sys.stderr) as progress:
        result = model.effects(
            text,
            goal.wanted(model),
            pair=request.second,
            method=method,
            patch_from=None if settings.patch_from is None else as_typed(settings.patch_from),
            max_length=request.max_length,
            progress=progress,
        )
    layer, head = result.strongest(1)[0]
    step = request.step("attend", text, "--heads", f"{layer}.{head}")
    finish(effects_sheet(model.name, result, top, prediction(model, request, text)), form, step, html)


@dataclass(frozen=True)
class WhySettings(Declared):
    """The check of a score."""

    check: Annotated[bool, CHECK] = True


@dataclass(frozen=True)
class AttributionSettings(Declared):
    """The form of parts, and their check."""

    by: Annotated[str, Setting("What a row is.", "UNIT", choices=("token", "word", "sentence"))] = "word"
    check: Annotated[bool, CHECK] = True


@app.command(rich_help_panel=EXPLAIN)
@takes_options
def attribute(
    request: TextRequest,
    form: Form,
    goal: TargetOptions,
    settings: AttributionSettings,
    top: Top = None,
    html: Html = None,
) -> None:
    """Show how much each token adds to one output, as shaded text."""
    from headscope.screens.explain_sheets import attribution_sheet

    text = request.given_text()
    model = request.opened()
    target = goal.wanted(model)
    result = model.attribute(text, target, pair=request.second, max_length=request.max_length, check=settings.check)
    finish(attribution_sheet(model.name, result, top, settings.by), form, request.step("effects", text), html)


@app.command(rich_help_panel=EXPLAIN)
@takes_options
def why(
    request: TextRequest,
    form: Form,
    head: Annotated[str, argument("HEAD", "The head, as 3.1.")],
    query: Annotated[str, argument("QUERY", "The token that looks.")],
    key: Annotated[str, argument("KEY", "The token that it looks at.")],
    settings: WhySettings,
    top: Top = None,
    html: Html = None,
) -> None:
    """Show why a head looks from one token at another: its score, by pairs of input tokens."""
    from headscope.screens.explain_sheets import why_sheet
    from headscope.screens.pieces import find_token, labels
    from headscope.screens.values import head_list

    chosen = head_list(head, "HEAD")
    layer, number = chosen[0]
    if len(chosen) != 1 or number is None:
        raise InputError(f"{head!r:.40} is not one head", where="HEAD", advice="write layer.head, such as 3.1")
    text, model = request.given_text(), request.opened()
    trace = model.trace(text, request.second, max_length=request.max_length)
    for note in trace.notes:
        tell(f"! {note}")
    names = labels(trace.queries, trace.text, trace.pair)
    places = (find_token(as_typed(name), trace.tokens, names, of) for name, of in ((query, "QUERY"), (key, "KEY")))
    result = trace[layer, number].why(*places, check=settings.check)
    step = request.step("attend", text, "--heads", f"{layer}.{number}", "--query", str(result.query))
    finish(why_sheet(model.name, result, names, text, top), form, step, html)


@dataclass(frozen=True)
class MatchSettings(AttributionSettings):
    """The comparison of a query and its documents, and its form."""

    segments: Segments = None
    level: Annotated[
        str,
        Setting(
            "Words as they enter the model, or the vectors that are compared.", "LEVEL", choices=("input", "output")
        ),
    ] = "input"
    kind: Annotated[
        str | None,
        Setting("Kind of model, where its files don't say it.", "KIND", choices=("bi", "late", "sparse", "cross")),
    ] = None


@app.command(rich_help_panel=EXPLAIN)
@takes_options
def match(
    model: ModelName,
    form: Form,
    settings: MatchSettings,
    query: Annotated[str, argument("QUERY", "The query, or one text.")],
    documents: Annotated[list[str], argument("DOCUMENTS", "Documents, or the other text.")],
    top: Top = None,
    html: Html = None,
) -> None:
    """Show which words make documents match a query, and why one stands above another."""
    from headscope.explain.matching import match as matched
    from headscope.screens.match_sheet import match_sheet

    texts = [as_typed(text) for text in documents]
    read = opened(model, segments=settings.segments)
    result = matched(read, as_typed(query), texts, level=settings.level, kind=settings.kind, check=settings.check)
    step = pasted("attribute", model, query, options=["--like", texts[0]])
    step = step if query != "-" and len(query) + len(texts[0]) < LONGEST else pasted("summary", model)
    finish(match_sheet(named(model)[0], result, top, settings.by, links=settings.check), form, step, html)

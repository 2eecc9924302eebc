"""Tools that agents call through `headscope mcp`: each answers with the record that its command prints under --json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from headscope.cli.app import opened
from headscope.errors import InputError
from headscope.results.json_schemas import enveloped, parameters_schema
from headscope.screens.tables import plain

if TYPE_CHECKING:
    from headscope.screens.terminal import Sheet


@dataclass(frozen=True)
class OfModel:
    """Arguments of a tool that reads a checkpoint.

    Attributes:
        model: hub id, folder or file of the checkpoint; `-` is the bundled model.
    """

    model: str


@dataclass(frozen=True)
class OfHead(OfModel):
    """Arguments of a tool that reads one head.

    Attributes:
        model: hub id, folder or file of the checkpoint; `-` is the bundled model.
        layer: from 0.
        head: from 0.
    """

    layer: int
    head: int


@dataclass(frozen=True)
class OfText(OfModel):
    """Arguments of a tool that runs a model on a text.

    Attributes:
        model: hub id, folder or file of the checkpoint; `-` is the bundled model.
        text: the text; a masked-LM model fills [MASK].
        pair: a second text of the same input.
    """

    text: str
    pair: str | None = None


@dataclass(frozen=True)
class OfToken(OfText):
    """Arguments of a tool that looks from one token.

    Attributes:
        model: hub id, folder or file of the checkpoint; `-` is the bundled model.
        text: the text.
        token: the token that looks: its text, or its position from 0.
        pair: a second text of the same input.
        top: most heads in the answer.
    """

    token: str = "0"
    top: int = 10


@dataclass(frozen=True)
class OfOutput(OfText):
    """Arguments of a tool that explains an output.

    Attributes:
        model: hub id, folder or file of the checkpoint; `-` is the bundled model.
        text: the text; a masked-LM model fills [MASK].
        pair: a second text of the same input.
        target: a word at the first mask, or a class; by default the likeliest.
    """

    target: str | None = None


@dataclass(frozen=True)
class OfQuery:
    """Arguments of a tool that ranks documents.

    Attributes:
        model: hub id, folder or file of the checkpoint; `-` is the bundled model.
        query: the query, or one of two texts.
        documents: the documents, or the other text.
    """

    model: str
    query: str
    documents: list[str]


@dataclass(frozen=True)
class OfSurvey:
    """Arguments of a look-up in an atlas.

    Attributes:
        folder: the folder of a finished survey.
        layer: from 0; all layers without it.
        head: from 0; all heads without it.
    """

    folder: str
    layer: int | None = None
    head: int | None = None


def _shapes(asked: OfModel) -> Sheet:
    from headscope.screens.anatomy_sheets import shapes_sheet

    return shapes_sheet(opened(asked.model))


def _summary(asked: OfModel) -> Sheet:
    from headscope.screens.anatomy_sheets import summary_sheet

    return summary_sheet(opened(asked.model))


def _head(asked: OfHead) -> Sheet:
    from headscope.screens.report_sheets import head_sheet

    return head_sheet(opened(asked.model), asked.layer, asked.head)


def _attend(asked: OfToken) -> Sheet:
    from headscope.screens.attention_sheets import attend_sheet

    return attend_sheet(opened(asked.model).trace(asked.text, asked.pair), query=asked.token, top=asked.top)


def _fill(asked: OfText) -> Sheet:
    from headscope.runs.filling import check_masks, fill_trace
    from headscope.screens.filling_sheet import fill_sheet

    model = opened(asked.model)
    check_masks(model)
    trace = model.trace(asked.text, asked.pair)
    return fill_sheet(trace, fill_trace(model, trace))


def _predict(asked: OfText) -> Sheet:
    from headscope.screens.prediction_sheet import prediction_sheet

    model = opened(asked.model)
    return prediction_sheet(model.name, model.predict(asked.text, asked.pair))


def _effects(asked: OfOutput) -> Sheet:
    from headscope.screens.explain_sheets import effects_sheet

    model = opened(asked.model)
    return effects_sheet(model.name, model.effects(asked.text, asked.target, pair=asked.pair))


def _attribute(asked: OfOutput) -> Sheet:
    from headscope.screens.explain_sheets import attribution_sheet

    model = opened(asked.model)
    return attribution_sheet(model.name, model.attribute(asked.text, asked.target, pair=asked.pair))


def _match(asked: OfQuery) -> Sheet:
    from headscope.explain.matching import match
    from headscope.screens.match_sheet import match_sheet

    model = opened(asked.model)
    return match_sheet(model.name, match(model, asked.query, asked.documents))


def _atlas(asked: OfSurvey) -> Mapping[str, Any]:
    from headscope.opening import open_any

    survey: Any = open_any(asked.folder)
    if not hasattr(survey, "windows"):
        raise InputError(f"{asked.folder!r} is not a survey", where="folder", advice="name the --out of a survey")
    wanted = {"layer": asked.layer, "head": asked.head}
    rows = [row for row in survey.rows() if all(value is None or row[name] == value for name, value in wanted.items())]
    return {"folder": asked.folder, "model": survey.manifest["model"]["name"], "heads": rows}


@dataclass(frozen=True)
class Tool:
    """A tool.

    Attributes:
        describes: its purpose, for agents.
        takes: the dataclass of its arguments.
        answer: makes the sheet, or the record, of its answer.
        schema: name of the answer's schema in results/answers.py; None for tables whose columns vary.
    """

    describes: str
    takes: type
    answer: Callable[[Any], Any]
    schema: str | None

    def call(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the record of the answer, ready for JSON.

        Raises:
            InputError: an argument is unknown, missing, or of another type.
        """
        schema = parameters_schema(self.takes)
        unknown = sorted(arguments.keys() - schema["properties"].keys())
        missing = [name for name in schema["required"] if name not in arguments]
        hints = get_type_hints(self.takes)
        wrong = [name for name, value in arguments.items() if name in hints and not _fits(hints[name], value)]
        if unknown or missing or wrong:
            raise InputError(
                f"arguments unknown: {unknown}, missing: {missing}, of another type: {wrong}",
                where="arguments",
                advice=f"the arguments are {', '.join(schema['properties'])}",
            )
        answer = self.answer(self.takes(**arguments))
        record = answer if isinstance(answer, Mapping) else answer.record()
        found: dict[str, Any] = plain(enveloped(self.schema or "atlas", record))
        return found


def _fits(hint: Any, value: object) -> bool:
    """Return True if an argument has the type of its field; a bool is not a number."""
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_fits(get_args(hint)[0], one) for one in value)
    return type(value) in (get_args(hint) or (hint,))


TOOLS = {
    "summary": Tool("What a checkpoint holds: sizes, parts, memory, problems.", OfModel, _summary, "summary"),
    "shapes": Tool("Every tensor of a checkpoint, from its header alone.", OfModel, _shapes, "shapes"),
    "head": Tool("One head's slices of the checkpoint's tensors, with norms.", OfHead, _head, "head"),
    "attend": Tool("The heads that look from one token most, and at what.", OfToken, _attend, "attend-token"),
    "fill": Tool("The likeliest tokens at each [MASK].", OfText, _fill, "fill"),
    "predict": Tool("The classes that a classifier predicts.", OfText, _predict, "predict"),
    "effects": Tool("How silencing each head changes the output.", OfOutput, _effects, "effects"),
    "attribute": Tool("How much each token adds to the output.", OfOutput, _attribute, "attribute"),
    "match": Tool("Which words make documents match a query, and why one is above another.", OfQuery, _match, "match"),
    "atlas": Tool("Statistics and labels of heads, from a finished survey.", OfSurvey, _atlas, None),
}
"""Name -> tool. All of them only read."""

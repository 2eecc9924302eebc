"""Predictions, effects of heads, attributions to tokens, and why a head looks at a token: screens, JSON and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.checkpoint import called
from headscope.results.answers import OutputRow, TargetRow, WhyAnswer, filled
from headscope.results.head_values import signed
from headscope.results.score_parts import KAPPA, strongest
from headscope.runs import effects
from headscope.screens.inked import heat_map, inked_text, signed_bars
from headscope.screens.labels import printable
from headscope.screens.pieces import highlighted, labels, shown_tokens
from headscope.screens.tables import PLACE, Column, Table, answer
from headscope.screens.terminal import Bar, Drawing, Line, Paper, Sheet, bars, blank, notes, prose, table, title

if TYPE_CHECKING:
    from headscope.results.effect_records import Effects, Target
    from headscope.results.explained import Attribution, Filled, Prediction
    from headscope.results.score_parts import Part, Why
    from headscope.traces import Trace


TOP = 10
MOST_KAPPA = 1e3
"""Above this, rounding in fp32 reaches the digits of the number."""
EFFECT_COLUMNS = (*PLACE, Column("change", align="right", form="+.4f"))
TOKEN_COLUMNS = (
    Column("position", align="right"),
    Column("token", kind="code"),
    Column("score", align="right", form="+.4f"),
)


def target_record(target: Target) -> Mapping[str, Any]:
    """A target as a JSON record."""

    def output(row: type, of: Target, **given: Any) -> dict[str, Any]:
        return filled(row, of, position=of.row, default=of.chosen, **given)

    return output(TargetRow, target, against=target.against and output(OutputRow, target.against))


def predicted(prediction: Prediction | None) -> list[Drawing]:
    """The first line of an explanation: the likeliest classes that a classifier predicts."""
    if prediction is None:
        return []
    rows = prediction.rows(3)
    if prediction.probabilities is not None:
        return likeliest([(row["label"], row["probability"]) for row in rows])
    return [prose("the model predicts " + ", ".join(f"{row['label']!r} {signed(row['logit'])}" for row in rows))]


def effects_sheet(model: str, result: Effects, top: int | None = None, prediction: Prediction | None = None) -> Sheet:
    """The effects of all heads: a heat map, and the heads with the strongest effects.

    Args:
        model: its name.
        result: the effects.
        top: most rows of a table, strongest first; None for all in their order, on the screen for TOP.
        prediction: what a classifier predicts for the text.
    """
    aside = result.target.aside if result.aside is not None else ""
    columns = (*EFFECT_COLUMNS, *((Column(aside, align="right", form=".4f"),) if aside else ()))

    def heads(top: int | None) -> Table:
        places = np.ndindex(*result.change.shape) if top is None else result.strongest(top)
        beside = [result.change] if result.aside is None else [result.change, result.aside]
        return Table(columns, tuple((*place, *(float(values[place]) for values in beside)) for place in places))

    way = "the context comes from the other text" if result.method == "patch" else effects.METHODS[result.method]
    unchanged = f"{result.base:.4f} unchanged"
    if result.base_aside is not None:
        unchanged += f", {result.target.aside} {result.base_aside:.4f}"
    return Sheet(
        record=answer(
            "effects",
            result,
            model=model,
            tokens=result.axis.tokens,
            target=target_record(result.target),
            **{"probability": None, "cosine": None, result.target.aside: result.base_aside},
            predictions=None if prediction is None else prediction.rows(),
            heads=heads(None).records(),
        ),
        table=lambda: heads(top),
        drawings=(
            title(f"effects of {result.change.size} heads", called(model)),
            *predicted(prediction),
            prose(f"on {result.target}: {unchanged}"),
            blank,
            heat_map(result.change, result.target.unit),
            blank,
            table(heads(top or TOP)),
            notes([*result.notes, f"change: with the head changed, minus unchanged; {way}"]),
        ),
    )


def attribution_sheet(model: str, result: Attribution, top: int | None = None, by: str = "word") -> Sheet:
    """An attribution: the prediction, the text with shading behind its words, and the words that add most.

    Args:
        model: its name.
        result: the attribution.
        top: most rows of a table, strongest first; None for all in their order, on the screen for TOP.
        by: what a row of the screen is: a token, a word or a sentence.
    """
    words, parts = labels(result.axis, result.text, result.pair), result.parts(by)

    return Sheet(
        record=answer(
            "attribute",
            result,
            model=model,
            target=target_record(result.target),
            predictions=result.prediction,
            tokens=_token_table(result, None).records(),
            parts=parts,
        ),
        table=lambda: _token_table(result, top),
        drawings=(
            title(f"what {len(words)} tokens add", called(model)),
            *likeliest([(choice.label, choice.share) for choice in result.prediction]),
            prose(f"to {result.target}: {result.total:.4f}"),
            blank,
            inked_text(words, result.scores),
            blank,
            part_bars(parts, top or TOP, noun=by, unit=result.target.unit, ranks=result.kappa > KAPPA),
            notes([*result.notes, *_sums(result, parts)]),
        ),
    )


def _token_table(result: Attribution, top: int | None) -> Table:
    places = range(len(result.tokens)) if top is None else result.strongest(top)
    return Table(TOKEN_COLUMNS, tuple((at, result.tokens[at], float(result.scores[at])) for at in places))


def part_bars(parts: Sequence[Part], top: int, *, noun: str, unit: str, ranks: bool) -> Drawing:
    """The strongest parts with their shares, and what masking some of them did."""
    chosen = strongest(parts, top)
    rows = [(part.tokens[0], printable(part.label), part.share, _masked(part)) for part in chosen]
    beside = "masked" if any(part.change is not None for part in chosen) else ""
    return signed_bars(rows, noun=noun, unit=unit, ranks=ranks, beside=beside)


def _masked(part: Part) -> str:
    if part.change is None:
        return ""
    return f"{signed(part.change)}{' !' if part.contradicted else ''}"


def _sums(result: Attribution, parts: Sequence[Part]) -> list[str]:
    """The sum of the parts, how far to trust them, and what masking said."""
    special = sum(part.share for part in parts if part.special)
    of_text = sum(part.share for part in parts if not part.special)
    together = f"together {signed(of_text + special + result.rest)} of {signed(result.total)}"
    lines = [
        "decompx: what each token's embedding adds to the output, with attention, norms and slopes held (adds up)",
        f"text {signed(of_text)}, special tokens {signed(special)}, the biases {signed(result.rest)}, {together}",
        *trust(result.kappa),
    ]
    if result.unchecked:
        lines.append(result.unchecked)
    return lines + masking_notes(result.checks)


def trust(kappa: float | None) -> list[str]:
    """A line on how far amounts that add up to a number can be trusted."""
    if kappa is None:
        return []
    if kappa > MOST_KAPPA:
        return [f"kappa {kappa:.1e}: the number is a thousandth of what cancels in it; even the ranks may be noise"]
    if kappa > KAPPA:
        return [f"kappa {kappa:.1f}: parts {kappa:.0f} times the number cancel, so only ranks are shown"]
    return [f"kappa {kappa:.2f}: the parts' sizes over the number's; near 1, little cancels"]


def masking_notes(checks: Sequence[Part]) -> list[str]:
    """The meaning of the column of masked words, and whether the model contradicts a share."""
    if not checks:
        return []
    wrong = [part.label for part in checks if part.contradicted]
    against = f"; ! the model contradicts the share's sign: {', '.join(wrong)}" if wrong else ""
    return [f"masked: the number less the number with the word masked for real{against}"]


TOP_PAIRS = 10
PAIR_COLUMNS = (
    Column("query_part", "query's side", kind="code"),
    Column("key_part", "key's side", kind="code"),
    Column("share", "share", align="right", form="+.4f"),
)


def why_sheet(model: str, result: Why, names: Sequence[str], text: str, top: int | None = None) -> Sheet:
    """The score, the text with each token's part in it as ink, and the strongest pairs.

    Args:
        model: its name.
        result: the answer.
        names: a label for each token.
        text: the text.
        top: most rows of a table.
    """
    labels = [name.removeprefix("·") or name for name in (*names, *result.labels[len(names) :])]
    pairs = result.strongest(result.table.size if top is None else top)
    shown = pairs[: top or TOP_PAIRS]
    head = f"layer {result.layer}, head {result.head}"

    def bars(paper: Paper) -> Iterable[Line]:
        mixed = [
            (at, f"{labels[row]}{paper.times(' x ')}{labels[column]}", float(result.table[row, column]), "")
            for at, (row, column) in enumerate(shown)
        ]
        return signed_bars(mixed, noun="pair", unit="share", ranks=result.kappa > KAPPA)(paper)

    rows = tuple((labels[row], labels[column], float(result.table[row, column])) for row, column in pairs)
    return Sheet(
        lambda: filled(
            WhyAnswer, result, model=model, text=text, pairs=Table(PAIR_COLUMNS, rows[: top or len(rows)]).records()
        ),
        lambda: Table(PAIR_COLUMNS, rows),
        (
            title(f"{head}: {labels[result.query]} looks at {labels[result.key]}", called(model)),
            prose(
                f"weight {result.weight:.4f}; score {result.score:.4f}, the mean of the other keys {result.others:.4f}"
            ),
            prose(f"these pairs add up to the difference, {signed(result.difference)}"),
            blank,
            inked_text(names, np.array([result.of_token(at) for at in range(len(names))])),
            blank,
            bars,
            notes(_lines(result)),
        ),
    )


def _lines(result: Why) -> list[str]:
    tokens = float(result.cells.sum())
    lines = [
        "a pair: what the first token gives the query, times what the second gives this key more than the other keys",
        f"pairs of tokens {signed(tokens)}, pairs with biases or the distance {signed(result.rest)}",
        *trust(result.kappa),
    ]
    if result.unchecked:
        lines.append(result.unchecked)
    return lines + [
        f"masking {part.label} for real takes {signed(part.change, 2)} from the weight's log odds; its pairs add "
        f"{signed(part.share)}"
        for part in result.checks
        if part.change is not None
    ]


FILLED_COLUMNS = (
    Column("position", align="right"),
    Column("token", kind="code"),
    Column("id", align="right", form="d"),
    Column("probability", align="right", form=".4f"),
)


def fill_sheet(trace: Trace, found: Sequence[Filled]) -> Sheet:
    """The likeliest tokens for each mask, with their probabilities."""
    rows = [[tuple(row.values()) for row in mask.rows()] for mask in found]
    masks = f"{len(found)} mask{'s' if len(found) > 1 else ''}"
    drawings: list[Drawing] = [title(called(trace.model), f"{masks}; tokens count from 0")]
    for mask in found:
        drawings += [blank, highlighted(shown_tokens(trace), mask.position), guesses(mask)]
    drawings.append(notes(["probabilities are over the whole vocabulary; a full bar is 1"]))
    return Sheet(
        schema="fill",
        record=answer(
            "fill",
            trace,
            masks=[
                {"position": mask.position, "pieces": Table(FILLED_COLUMNS[1:], tuple(row[1:] for row in of)).records()}
                for mask, of in zip(found, rows, strict=True)
            ],
        ),
        table=lambda: Table(FILLED_COLUMNS, tuple(row for of in rows for row in of)),
        drawings=tuple(drawings),
    )


def guesses(mask: Filled) -> Drawing:
    """The likeliest tokens for one mask, as bars."""
    found = zip(mask.tokens, mask.probabilities, strict=True)
    return bars([Bar(printable(token), f"{chance:.3f}", chance) for token, chance in found], most=24)


TOP_CLASSES = 5
CLASS_COLUMNS = (
    Column("label", kind="code"),
    Column("logit", align="right", form="+.4f"),
    Column("probability", align="right", form=".4f"),
)
LABEL_COLUMNS = (Column("position", align="right"), Column("token", kind="code"), *CLASS_COLUMNS)
NOTES = {
    "sequence": "probabilities are over all classes; a full bar is 1",
    "token": "each token with its likeliest class",
    "several": "classes don't exclude each other: each has a probability of its own",
    "score": "one output: a score, with the probability that its sigmoid gives",
    "regression": "one number for each output: the config says regression, so there are no probabilities",
}


def likeliest(labels: Sequence[tuple[str, float]]) -> list[Drawing]:
    """The first of some labels with its probability, and those that follow it; nothing without any."""
    said = [
        f"{'; then' if at else 'the model predicts'} {label!r},{'' if at else ' probability'} {share:.4f}"
        for at, (label, share) in enumerate(labels)
    ]
    return [prose("".join(said))] if said else []


def prediction_sheet(model: str, prediction: Prediction, top: int | None = None) -> Sheet:
    """The classes of a text, the likeliest first, or each token with its likeliest class.

    Args:
        model: its name.
        prediction: the prediction.
        top: most classes of a text.
    """
    columns: tuple[Column, ...] = LABEL_COLUMNS if prediction.task == "token" else CLASS_COLUMNS
    if prediction.probabilities is None:
        columns = columns[:-1]

    def shown(top: int | None) -> Table:
        return Table(columns, tuple(tuple(row[column.key] for column in columns) for row in prediction.rows(top)))

    found = shown(top or TOP_CLASSES) if prediction.task == "sequence" else shown(None)
    body = (
        classes(prediction, top or TOP_CLASSES)
        if prediction.probabilities is not None and prediction.task == "sequence"
        else table(found)
    )
    what = f"{len(prediction.labels)} class{'es' if len(prediction.labels) > 1 else ''}"
    return Sheet(
        record=answer("predict", prediction, model=model, tokens=prediction.axis.tokens, predictions=prediction.rows()),
        table=lambda: shown(top),
        drawings=(title(called(model), what), blank, body, notes([NOTES[prediction.kind]])),
    )


def classes(prediction: Prediction, top: int) -> Drawing:
    """The likeliest classes of a text, as bars."""
    rows = prediction.rows(top)
    return bars(
        [Bar(printable(row["label"]), f"{row['probability']:.3f}", row["probability"]) for row in rows], part=2, most=32
    )

"""`hs.doctor(model)`: is a model sound? Each line a number, what is usual, and what to do.

Only what is certainly wrong fails; other numbers stand beside what sound models have (all-MiniLM-L6-v2,
all-mpnet-base-v2 and the bundled model), and are yours to judge.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.checkpoint.json_text import JsonError, few, read_object
from headscope.checkpoint.sentence import stated_otherwise
from headscope.encoder.tops import pooled
from headscope.errors import CheckpointError, HeadscopeError, InputError
from headscope.heads.distances import relative
from headscope.model import Model, open_model
from headscope.results.report import Check, Report
from headscope.runs.texts import as_sentence
from headscope.verify.health import MOST_NAMES, UNIFORM, entropy_shares
from headscope.verify.parity import check_texts

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.checkpoint.tokenizer import Encoded, Prepared
    from headscope.traces import Trace

NO_LIMIT = math.inf
DEAD = 0.01
"""A head whose output is below this share of its layer's mean writes next to nothing."""
COLLAPSED = 0.9
"""Mean cosine above which all texts look alike: .95 with fresh weights, .96 in a collapsed model."""
LONGEST = 2048
"""Tokens of the longest text that is run."""


def doctor(
    model: Any,
    texts: Iterable[str] | None = None,
    *,
    tokenizer: Any = None,
    earlier: Report | str | os.PathLike[str] | None = None,
) -> Report:
    """Check that a model is sound.

        report = hs.doctor("my-model", earlier="before.json")
        report.agrees, [check for check in report.checks if not check.agrees]

    Args:
        model: the name of a checkpoint, what `hs.open` returned, or a live transformers model, of which its answers to
            padding are checked.
        texts: texts as the model will read them; by default twenty of mixed lengths.
        tokenizer: for a live model: a transformers tokenizer, or the name of a checkpoint that has one.
        earlier: an earlier report on the same texts, or the file that `headscope doctor --json` printed into; its
            numbers then stand beside these.

    Returns:
        A report whose checks each have a number (`worst`), its limit (`tolerance`, infinite for a number that only
        stands beside what is usual), what is usual (`reason`), the earlier run's number (`earlier`), and what to do
        (`advice`).

    Raises:
        InputError: there is no text, `model` is not a model, or `earlier` is not a report.
        UnsupportedError: headscope doesn't run this family, or pools in another way.
    """
    checked = check_texts(texts, 0)
    before = {} if earlier is None else _numbers_of(earlier)
    if isinstance(model, (str, os.PathLike)):
        model = open_model(model)
    if not isinstance(model, Model):
        from headscope.verify.live_doctor import check_live

        report = check_live(model, checked, tokenizer)
    else:
        skipped: dict[str, str] = {}
        checks = tuple(_checks(model, checked, skipped))
        report = Report(model.name, checks, (*_warnings(checks), *_notes(model)), tuple(skipped.items()))
    return replace(report, checks=tuple(replace(check, earlier=before.get(check.name)) for check in report.checks))


def _numbers_of(earlier: Report | str | os.PathLike[str]) -> dict[str, float]:
    """Each line's number in an earlier run.

    Raises:
        InputError: it is not a report, or a file that holds none.
    """
    if isinstance(earlier, Report):
        return {check.name: check.worst for check in earlier.checks}
    problem = f"expected a report or the name of a file, got {type(earlier).__name__}"
    if isinstance(earlier, (str, os.PathLike)):
        try:
            rows = read_object(Path(earlier), unique=False).get("checks")
            named: list[Any] = rows if isinstance(rows, list) else [None]
            return {row["name"]: math.nan if row["worst"] is None else float(row["worst"]) for row in named}
        except JsonError as error:
            problem = str(error)
        except (KeyError, TypeError, ValueError):
            problem = "the file is not a report of `headscope doctor`"
    advice = "name the file that `headscope doctor MODEL --json > FILE` wrote"
    raise InputError(problem, where=f"earlier: {earlier!s:.200}", advice=advice)


def _checks(model: Model, texts: list[str], skipped: dict[str, str]) -> Iterator[Check]:
    """Every line, files first; states only of a model whose files fit one another."""
    files = [*_files(model), *_beside(model, texts[0])]
    yield from files
    if any(not check.agrees for check in files if check.name != "fresh norms"):
        return
    read = [as_sentence(model, text) for text in texts]
    encoded = [one.encoded for one in read]
    yield from _tokens(model, read)
    yield from _lengths(model, max(encoded, key=len))
    traces = [model.trace(ids=text.ids, segments=text.segments) for text in encoded]
    vectors = np.stack(
        [
            pooled(trace.outputs["last_hidden_state"].array, model.pooling, text.prompt)
            for trace, text in zip(traces, encoded, strict=True)
        ]
    )
    if not np.isfinite(vectors).all():
        return
    yield _random_pairs(vectors)
    yield from _heads(model, traces)
    yield _sinks(traces)
    yield from _precisions(model, encoded, vectors)
    yield _outliers(model, encoded)
    try:
        from headscope.runs.modules import base_module
        from headscope.verify.live_doctor import padding_checks

        yield from padding_checks(
            base_module(model), [as_sentence(model, text, max_length=64).encoded for text in texts[:8]]
        )
    except HeadscopeError as error:
        skipped["padding"] = error.found


def count(name: str, what: str, number: int, usual: str, advice: str, **place: Any) -> Check:
    """A number of things of which there should be none."""
    return Check(name, what, float(number), 0.0, usual, advice=advice, **place)


def _files(model: Model) -> Iterator[Check]:
    anatomy = model.anatomy
    problems, missing = anatomy.problems, anatomy.missing
    what = problems[0] if problems else "config.json and the tensors fit one another"
    yield count("files", what, len(problems), "0", "correct config.json, or take the files of one version")
    what = few(missing, MOST_NAMES) if missing else "parameters that the file lacks and a class would initialise"
    yield count(
        "missing weights", what, len(missing), "0", "save the whole model again; a class would fill these at random"
    )
    broken = []
    for name in model.checkpoint.tensors:
        values = model.checkpoint.read(name)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            broken.append(name)
    what = few(broken, MOST_NAMES) if broken else "tensors with NaN or infinity"
    yield count(
        "numbers", what, len(broken), "0", "training diverged, or the file is damaged: take an earlier checkpoint"
    )
    fresh = [row.stored for row in anatomy.parameters if _is_fresh(model, row)]
    what = few(fresh, MOST_NAMES) if fresh else "LayerNorms whose scale is exactly 1"
    yield count(
        "fresh norms",
        what,
        len(fresh),
        "0",
        "these layers were never trained, or were initialised anew: load all weights",
    )


def _is_fresh(model: Model, row: Any) -> bool:
    """Return True if a parameter is a norm's scale as initialised."""
    if row.role is None or "norm" not in row.role or not row.role.endswith(".weight"):
        return False
    return bool((model.encoder.read(row) == 1).all())


def _beside(model: Model, text: str) -> Iterator[Check]:
    """The tokenizer, and what sentence-transformers' files say of pooling, window and prompts."""
    rows, problem, more = model.anatomy.known().vocab, "", 1
    try:
        size = len(model.tokenizer.encode(text)) and model.tokenizer.size
        problem, more = f"the tokenizer has {size:,} tokens, the embeddings {rows:,} rows", max(0, size - rows)
    except HeadscopeError as error:
        problem = error.found
    yield count("tokenizer", problem, more, "0", "take the tokenizer of this checkpoint")
    try:
        width, longest = model.anatomy.computable().d_model, model.anatomy.longest_text
        wrong = stated_otherwise(model.checkpoint, model.pooling, width, longest)
    except CheckpointError as error:
        wrong = [error.found]
    what = few(wrong, MOST_NAMES) if wrong else "contradictions of pooling, window and prompts with the model"
    yield count("pooling", what, len(wrong), "0", "correct these files, or save the model again")


def _tokens(model: Model, texts: list[Prepared]) -> Iterator[Check]:
    """The tokenizer's reading of the texts."""
    unknown = model.tokenizer.id("[UNK]")
    unknown = model.tokenizer.id("<unk>") if unknown is None else unknown
    own = [np.array(one.encoded.ids)[~np.array(one.encoded.special)] for one in texts]
    total = max(1, sum(map(len, own)))
    share = 0.0 if unknown is None else sum(int((ids == unknown).sum()) for ids in own) / total
    advice = "these texts have words that the vocabulary lacks: another language, script or case"
    yield Check("unknown", "share of tokens that are [UNK]", share, NO_LIMIT, "0 to .01", advice=advice)
    limit = min(model.pooling.max_length or model.anatomy.longest_text, model.anatomy.longest_text)
    cut = sum(one.whole > limit for one in texts) / len(texts)
    advice = "cut the texts into parts, or take a model with a longer window"
    yield Check("cut", f"share of texts with more than {limit:,} tokens", cut, NO_LIMIT, "0", advice=advice)


def _lengths(model: Model, text: Encoded) -> Iterator[Check]:
    """The states at lengths 2^k up to the longest."""
    longest = min(model.anatomy.longest_text, LONGEST)
    lengths = [*(2**k for k in range(1, 12) if 2**k < longest), longest]
    bad = []
    for length in lengths:
        ids = np.resize(text.ids, length).tolist()
        last = model.trace(ids=ids).outputs["last_hidden_state"].array
        if not np.isfinite(last).all():
            bad.append(length)
    what = f"of the lengths {', '.join(map(str, lengths))}, those that give NaN or infinity"
    yield count("lengths", what, len(bad), "0", f"don't read texts of {few(list(map(str, bad)), MOST_NAMES)} tokens")


def _random_pairs(vectors: Float[np.ndarray, "texts d_model"]) -> Check:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cells = (unit @ unit.T)[np.triu_indices(len(unit), 1)]
    mean = float(cells.mean()) if len(cells) else 0.0
    what = "mean cosine of the texts' vectors, all pairs"
    advice = "above .9 all texts look alike: other pooling, fresh weights, or a collapse in training"
    return Check("random pairs", what, mean, NO_LIMIT, ".05 (sentence models) to .5 (masked LMs)", advice=advice)


def _heads(model: Model, traces: list[Trace]) -> Iterator[Check]:
    """Dead, uniform and duplicated heads; sinks."""
    longer = [trace for trace in traces if len(trace) > 2] or traces
    few_traces = sorted(longer, key=len)[:8]
    norms = np.mean([[_written(trace, layer) for layer in trace.numbers] for trace in few_traces], axis=0)
    shares = norms / np.maximum(norms.mean(axis=1, keepdims=True), 1e-30)
    layer, head = (int(at) for at in np.unravel_index(shares.argmin(), shares.shape))
    dead = int((shares < DEAD).sum())
    what = f"heads that write less than {DEAD:.0%} of their layer's mean; the weakest writes {shares.min():.2f}"
    yield count(
        "dead heads",
        what,
        dead,
        "0; the weakest .4 to .6",
        "remove them, or load their weights again",
        layer=layer,
        head=head,
    )
    entropies = [entropy_shares(trace) for trace in few_traces]
    entropy = np.mean([one for one in entropies if len(one)] or [np.zeros_like(shares)], axis=0)
    uniform = entropy > UNIFORM
    layer, head = (int(at) for at in np.unravel_index(entropy.argmax(), entropy.shape))
    what = f"layers in which every head looks everywhere alike (entropy above {UNIFORM:.0%} of log S)"
    advice = "such a layer attends to nothing: its queries and keys were never trained"
    yield count("uniform layers", what, int(uniform.all(axis=1).sum()), "0", advice, layer=layer, head=head)
    what = f"share of heads that look everywhere alike; the most even has {entropy.max():.2f} of log S"
    yield Check(
        "uniform heads", what, float(uniform.mean()), NO_LIMIT, "0 to .05", layer=layer, head=head, advice=advice
    )
    twins = [_twins(model, layer) for layer in traces[0].numbers]
    layer = int(np.argmax(twins))
    advice = "training makes no two heads alike; to remove one, add its rows of W_O to the other's first"
    yield count(
        "twin heads",
        "heads whose W_Q, W_K and W_V are those of another head of the layer",
        sum(twins),
        "0",
        advice,
        layer=layer,
    )


def _sinks(traces: list[Trace]) -> Check:
    """The mean weight on the ends of the longest text."""
    longest = max(traces, key=len)
    ends = [np.asarray(longest[layer].weights[:, :, :])[..., [0, -1]] for layer in longest.numbers]
    sinks = np.array([cells.sum(-1).mean() for cells in ends])
    layer = int(sinks.argmax())
    what = "mean weight on the first and last token in the layer where it is largest"
    advice = "a head that finds nothing looks there; `headscope effects` says which do any work"
    return Check("sinks", what, float(sinks.max()), NO_LIMIT, ".3 to .5", layer=layer, advice=advice)


def _written(trace: Trace, layer: int) -> list[float]:
    """(heads,): the mean length of what each head writes."""
    return [float(np.linalg.norm(head.output, axis=-1).mean()) for head in trace[layer]]


def _twins(model: Model, layer: int) -> int:
    """The heads of a layer that have the weights of an earlier one; keys that heads share don't count by themselves."""
    slices = [np.concatenate([head.W_Q, head.W_K, head.W_V], axis=1).tobytes() for head in model.layers[layer].heads]
    return len(slices) - len(set(slices))


def _precisions(model: Model, encoded: list[Encoded], vectors: Float[np.ndarray, "texts d_model"]) -> Iterator[Check]:
    """The cost of rounding the weights."""
    from headscope.runs.texts import as_input

    names = {row.stored: row for row in model.anatomy.parameters if row.role is not None}
    for name, usual, rounded in (("fp16", "up to .001", in_fp16), ("bf16", "up to .01", in_bf16)):
        weights = {stored: rounded(model.encoder.read(row)) for stored, row in names.items() if row.rows is None}
        encoder = model.encoder.changed(weights=weights)
        passes = encoder.forward([as_input(text) for text in encoded])
        again = np.stack(
            [
                pooled(one.last, model.pooling, text.prompt)
                for one, text in zip(passes, encoded, strict=True)
                if one.last is not None
            ]
        )
        apart = np.nan_to_num(relative(vectors, again), nan=np.inf)
        what = f"largest relative difference of a text's vector with the weights in {name}"
        yield Check(
            name,
            what,
            float(apart.max()),
            NO_LIMIT,
            usual,
            text=int(apart.argmax()),
            advice=f"infinite: a number is beyond {name}'s range; serve it in fp32 if that is too much",
        )


def in_fp16(x: np.ndarray) -> np.ndarray:
    """The numbers rounded to fp16."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


def in_bf16(x: np.ndarray) -> np.ndarray:
    """The numbers rounded to bf16, to nearest even (finite numbers)."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def _outliers(model: Model, encoded: list[Encoded]) -> Check:
    """The largest activation beside the median: one scale for a whole tensor leaves the others few steps."""
    text = max(encoded, key=len)
    states = model.trace(ids=text.ids, segments=text.segments, hidden_states=True).hidden_states
    ratios = []
    for state in states:
        largest = np.abs(state.array).max(axis=0)
        ratios.append((float(largest.max() / max(float(np.median(largest)), 1e-30)), int(largest.argmax())))
    layer = int(np.argmax([ratio for ratio, _ in ratios]))
    ratio, channel = ratios[layer]
    what = f"largest number of a layer's input beside the median channel's; channel {channel}"
    advice = "one int8 scale for a tensor leaves the other channels few steps: quantise per channel, then use parity"
    return Check("outliers", what, ratio, NO_LIMIT, "2 to 8", layer=layer, advice=advice)


def _warnings(checks: Iterable[Check]) -> Iterator[str]:
    """Facts that are unusual without being certainly wrong."""
    for check in checks:
        if (check.name == "random pairs" and check.worst > COLLAPSED) or math.isinf(check.worst):
            yield f"unusual: {check.compared} is {check.worst:.2f}; {check.advice}"


def _notes(model: Model) -> Iterator[str]:
    try:
        pooling, doubts = model.pooling, model.tokenizer.doubts(pair=True)
    except CheckpointError:
        return
    yield from doubts
    yield f"pooling: {pooling}"
    if pooling.prompt:
        yield f"prompt before every text: {pooling.prompt!r}"
    if model.anatomy.longest_text > LONGEST:
        yield f"lengths above {LONGEST:,} were not run; the model takes {model.anatomy.longest_text:,}"

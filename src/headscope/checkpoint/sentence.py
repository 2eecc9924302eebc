"""sentence-transformers' files: a checkpoint's pooling of its tokens into one vector, and its scoring of two texts.

A query and a document are scored in one of four ways: see `Scoring`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headscope.checkpoint.json_text import JsonError, brief, parse_object, shown
from headscope.checkpoint.raw_files import is_plain, read_whole
from headscope.errors import CheckpointError, UnsupportedError
from headscope.results.explained import Pooling
from headscope.results.match_record import SIDES, Scoring

if TYPE_CHECKING:
    from headscope.checkpoint import Checkpoint


MOST_BYTES = 1_000_000
"""Maximum bytes and items of one of these files; real files have a few hundred bytes."""

AGAIN = "download or copy the file again"
MODES = ("mean", "cls")
"""The pooling modes for which a cosine is a sum over pairs of tokens."""

SPELLINGS = {"mean": "mean", "mean_tokens": "mean", "cls": "cls", "cls_token": "cls"}
"""A mode as sentence-transformers spells it: after `pooling_mode_` in a field's name, or as `pooling_mode`'s value."""


def read_pooling(checkpoint: Checkpoint) -> Pooling:
    """Return the pooling that a checkpoint specifies; without modules.json, sentence-transformers' default.

    Raises:
        CheckpointError: a file can't be read or contains invalid values.
        UnsupportedError: a mode other than mean or cls, several modes at once, or a module after the pooling.
    """
    rule = read_rule(checkpoint)
    if not rule.stated:
        return rule
    kinds = modules_of(checkpoint) or []
    names = [name for name, _ in kinds]
    if names[:2] != ["Transformer", "Pooling"] or names[2:] not in ([], ["Normalize"]):
        raise UnsupportedError(
            f"modules.json lists {_listed(names) or 'nothing'}; headscope computes Transformer, Pooling and Normalize",
            where=checkpoint.where,
            advice="read trace.outputs['last_hidden_state'] and apply the other modules yourself",
        )
    mode, width = _mode(checkpoint, f"{kinds[1][1]}/config.json"), _count(checkpoint, "truncate_dim")
    return replace(rule, mode=mode, normalized=len(names) == 3, width=width)


def read_rule(checkpoint: Checkpoint) -> Pooling:
    """The prompt, the case and the limit that a checkpoint's files say, however the vectors are pooled then.

    The limit is max_seq_length; sentence-transformers 6 writes none, and then it is the tokenizer's model_max_length.
    None where neither file has one: the positions are the limit.

    Raises:
        CheckpointError: a file can't be read or contains invalid values.
    """
    settings = _read(checkpoint, "sentence_bert_config.json")
    tokenizer = _read(checkpoint, "tokenizer_config.json")
    limits = (settings.get("max_seq_length"), tokenizer.get("model_max_length"), tokenizer.get("max_len"))
    limit = next((one for one in map(_length, limits) if one is not None), None)
    lowercase = settings.get("do_lower_case") is True
    modules = modules_of(checkpoint)
    if modules is None:
        return Pooling(max_length=limit, lowercase=lowercase)
    configs = [_read(checkpoint, f"{folder}/config.json") for kind, folder in modules if kind == "Pooling"]
    return Pooling(
        stated=True,
        max_length=limit,
        lowercase=lowercase,
        prompt=_prompts(_settings(checkpoint), "cross")[0],
        include_prompt=all(config.get("include_prompt") is not False for config in configs),
    )


def _length(value: object) -> int | None:
    """A number of tokens; None for anything else, and for the huge number that means no limit."""
    return value if type(value) is int and 0 < value < 1 << 24 else None


def _count(checkpoint: Checkpoint, field: str) -> int | None:
    """A count in config_sentence_transformers.json, from 1 on; None if it is absent or null.

    Raises:
        CheckpointError: it is something else.
    """
    value = _settings(checkpoint).get(field)
    if value is None or (type(value) is int and value > 0):
        return value
    raise CheckpointError(
        f"{field} is {brief(value)}, expected a positive number",
        where=f"{checkpoint.where}: config_sentence_transformers.json",
        advice="correct the field, or save the model again",
    )


def modules_of(checkpoint: Checkpoint) -> list[tuple[str, str]] | None:
    """Return each module's class, without its package, and its folder; None if there is no modules.json."""
    result = _read(checkpoint, "modules.json", b'{"items": %s}')
    if not result:
        return None
    if set(result) == {"items"} and isinstance(result["items"], list):
        return [_module(module, checkpoint) for module in result["items"]]
    raise CheckpointError("expected a JSON list", where=f"{checkpoint.where}: modules.json", advice=AGAIN)


def _module(module: object, checkpoint: Checkpoint) -> tuple[str, str]:
    if isinstance(module, dict):
        kind, path = module.get("type"), module.get("path")
        if isinstance(kind, str) and isinstance(path, str):
            name = kind.rpartition(".")[2]
            if is_plain(path) or (not path and name != "Pooling"):
                return name, path
    raise CheckpointError(
        f"a module is {brief(module)}, expected a type and the name of a folder",
        where=f"{checkpoint.where}: modules.json",
        advice=AGAIN,
    )


def _mode(checkpoint: Checkpoint, filename: str) -> str:
    """Return the pooling mode from its config."""
    where = f"{checkpoint.where}: {filename}"
    if checkpoint.file(filename) is None:
        raise CheckpointError(f"modules.json lists a Pooling, but there is no {filename}", where=where, advice=AGAIN)
    config, prefix = _read(checkpoint, filename), "pooling_mode_"
    named = config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else list(named) if isinstance(named, list) else []
    if not modes:
        modes = [key.removeprefix(prefix) for key, on in config.items() if key.startswith(prefix) and on is True]
    known = [SPELLINGS.get(str(mode)) for mode in modes]
    if len(modes) == 1 and known[0] is not None:
        return known[0]
    result = " and ".join(brief(mode) for mode in modes) or "no mode"
    raise UnsupportedError(
        f"the pooling is {result}; a cosine is a sum over pairs of tokens only for {' or '.join(MODES)}",
        where=where,
        advice="compare the vectors themselves: trace.outputs['last_hidden_state'] has the tokens'",
    )


def _read(checkpoint: Checkpoint, filename: str, form: bytes = b"%s") -> dict[str, Any]:
    """The JSON object in a file beside the weights, after `form` wraps it; empty if there is no such file."""
    path = checkpoint.file(filename)
    try:
        data = None if path is None else form.replace(b"%s", read_whole(path, MOST_BYTES))
        return {} if data is None else parse_object(data, unique=False)
    except (OSError, JsonError) as error:
        raise CheckpointError(
            f"the file can't be read: {getattr(error, 'strerror', None) or error}",
            where=f"{checkpoint.where}: {filename}",
            advice=AGAIN,
        ) from error


def _settings(checkpoint: Checkpoint) -> dict[str, Any]:
    return _read(checkpoint, "config_sentence_transformers.json")


KINDS = ("bi", "late", "sparse", "cross")
MODEL_TYPES = {
    "SentenceTransformer": "bi",
    "MultiVectorEncoder": "late",
    "SparseEncoder": "sparse",
    "CrossEncoder": "cross",
}
"""model_type of config_sentence_transformers.json -> the kind."""
MARKS = {"SpladePooling": "sparse", "MultiVectorMask": "late"}
"""A module that only one kind has -> the kind."""
MEASURES = {"cosine": "cosine", "dot": "dot", "dot_score": "dot"}
LATE = ("Transformer", "Dense", "MultiVectorMask", "Normalize")
"""Modules of late interaction."""
IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"


def read_scoring(checkpoint: Checkpoint, *, classifies: bool, kind: str | None = None) -> Scoring:
    """The scoring that a checkpoint's files say.

    Args:
        checkpoint: the checkpoint.
        classifies: True if it has a sequence classifier on top, which makes a plain checkpoint a cross-encoder.
        kind: one of KINDS; by default what the files say, or else a cross-encoder or a bi-encoder with the mean.

    Raises:
        CheckpointError: a file can't be read.
        UnsupportedError: a module, a setting or a similarity that headscope doesn't compute, by its name.
    """
    settings = _settings(checkpoint)
    modules = modules_of(checkpoint) or []
    names = [name for name, _ in modules]
    if kind is None:
        plain = "bi" if names or not classifies else "cross"
        marked = next((kind for module, kind in MARKS.items() if module in names), plain)
        kind = MODEL_TYPES.get(str(settings.get("model_type")), marked)
    rule, cut = read_rule(checkpoint), _read(checkpoint, "sentence_bert_config.json")
    query, document = (_length(cut.get(f"{side}_length")) or rule.max_length for side in ("query", "document"))
    prompts = _prompts(settings, kind)
    scoring = Scoring(kind, "logit", prompts=prompts, lengths=(query, document), lowercase=rule.lowercase)
    if kind == "cross":
        return scoring
    if kind == "late":
        return _late(checkpoint, scoring, modules)
    if kind == "sparse":
        return _sparse(checkpoint, scoring, modules)
    pooling, measure = read_pooling(checkpoint), _measure(checkpoint, "cosine", MEASURES)
    return replace(scoring, measure=measure, pooling=pooling, stated=pooling.stated)


def _measure(checkpoint: Checkpoint, default: str, known: Mapping[str, str]) -> str:
    measure = _settings(checkpoint).get("similarity_fn_name") or default
    if not isinstance(measure, str) or measure not in known:
        raise _unsupported(
            checkpoint, f"the similarity is {brief(measure)}", " and ".join(dict.fromkeys(known.values()))
        )
    return known[measure]


def activation_of(checkpoint: Checkpoint) -> str:
    """The function of a cross-encoder's logit: `sigmoid` or `identity`; by default sigmoid, as sentence-transformers.

    Raises:
        UnsupportedError: another function.
    """
    named = _settings(checkpoint).get("activation_fn")
    older = checkpoint.config.get("sentence_transformers")
    if named is None and isinstance(older, dict):
        named = older.get("activation_fn")
    if named in (None, SIGMOID):
        return "sigmoid"
    if named == IDENTITY:
        return "identity"
    raise _unsupported(checkpoint, f"the activation of the score is {brief(named)}", "Sigmoid and Identity")


def _prompts(settings: Mapping[str, Any], kind: str) -> tuple[str, str]:
    """The prompts of a query and of a document, as `encode_query` and `encode_document` of sentence-transformers 6 do.

    Prompts of other names are put before no text there, nor is the default one; a cross-encoder has the default alone.
    """
    prompts = _prompts_by_name(settings)
    names = (settings.get("default_prompt_name"), None) if kind == "cross" else SIDES
    query, document = (prompts.get(name, "") if isinstance(name, str) else "" for name in names)
    return query, document


def _prompts_by_name(settings: Mapping[str, Any]) -> dict[str, str]:
    prompts = settings.get("prompts")
    return {name: text for name, text in prompts.items() if isinstance(text, str)} if isinstance(prompts, dict) else {}


def unapplied_prompts(checkpoint: Checkpoint, scoring: Scoring) -> list[str]:
    """Names of prompts that the files have and that sentence-transformers puts before neither text."""
    given = _prompts_by_name(_settings(checkpoint))
    return [shown(name) for name, text in given.items() if text not in ("", *scoring.prompts)]


def _sparse(checkpoint: Checkpoint, scoring: Scoring, modules: list[tuple[str, str]]) -> Scoring:
    """Transformer and SpladePooling; without modules.json, what sentence-transformers makes of a masked-LM model."""
    names = [name for name, _ in modules]
    if modules and names[1:] != ["SpladePooling"]:
        raise _unsupported(checkpoint, f"modules.json lists {_listed(names)}", "Transformer and SpladePooling")
    splade = _read(checkpoint, f"{modules[1][1]}/config.json") if modules else {}
    strategy, activation = splade.get("pooling_strategy", "max"), splade.get("activation_function", "relu")
    if strategy not in ("max", "sum") or activation not in ("relu", "log1p_relu"):
        raise _unsupported(checkpoint, f"SpladePooling is {brief(strategy)} of {brief(activation)}", "max, sum; relu")
    twice = activation == "log1p_relu"
    return replace(
        scoring,
        measure=_measure(checkpoint, "dot", MEASURES),
        strategy=strategy,
        twice=twice,
        active=_count(checkpoint, "max_active_dims"),
        stated=bool(modules),
    )


def _late(checkpoint: Checkpoint, scoring: Scoring, modules: list[tuple[str, str]]) -> Scoring:
    """Transformer, any Dense, MultiVectorMask and Normalize."""
    names, dense = [name for name, _ in modules], []
    mask: dict[str, Any] = {}
    if odd := [name for name in names if name not in LATE]:
        raise _unsupported(checkpoint, f"modules.json lists {_listed(odd)}", ", ".join(LATE))
    for name, folder in modules:
        config = _read(checkpoint, f"{folder}/config.json") if folder else {}
        if name == "Dense" and (config.get("activation_function", IDENTITY) != IDENTITY or config.get("use_residual")):
            raise _unsupported(checkpoint, f"{shown(folder)} has an activation or a residual", "linear Dense modules")
        mask = config if name == "MultiVectorMask" else mask
        dense += [folder] if name == "Dense" else []
    if mask.get("keep_only_token_ids"):
        raise _unsupported(checkpoint, "documents keep only some tokens (keep_only_token_ids)", "skiplists")
    words, sides = (mask.get(name) or () for name in ("skiplist_words", "skiplist_tasks"))
    if not isinstance(words, (list, tuple)) or not isinstance(sides, (list, tuple)):
        raise _unsupported(checkpoint, f"a skiplist is {brief(words)} for {brief(sides)}", "lists")
    return replace(
        scoring,
        measure=_measure(checkpoint, "maxsim", {"maxsim": "maxsim"}),
        dense=tuple(dense),
        normalized="Normalize" in names,
        skipped=tuple(map(str, words)),
        skipped_in=tuple(map(str, sides)) or ("document",),
        expansion=_expansion(checkpoint),
    )


def _expansion(checkpoint: Checkpoint) -> int | None:
    """The tokens to which queries are filled up; None if they aren't."""
    expansion = _read(checkpoint, "sentence_bert_config.json").get("query_expansion")
    if not expansion:
        return None
    given = expansion if isinstance(expansion, dict) else {}
    length = _length(given.get("length"))
    if given.get("strategy") != "fixed" or not given.get("attend") or given.get("token") or length is None:
        raise _unsupported(
            checkpoint, f"query_expansion is {brief(expansion)}", "a fixed length of mask tokens that attention sees"
        )
    return length


def _listed(names: list[str]) -> str:
    return ", ".join(map(shown, names))


def _unsupported(checkpoint: Checkpoint, what: str, computed: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what}; headscope computes {computed}",
        where=checkpoint.where,
        advice="use sentence-transformers itself for its scores",
    )

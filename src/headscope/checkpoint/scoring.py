"""The scoring of a query and a document by a checkpoint: sentence-transformers' files of its four kinds of model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headscope.checkpoint.json_text import brief, shown
from headscope.checkpoint.sentence import (
    count_in,
    json_list,
    json_object,
    length_of,
    module_of,
    read_pooling,
    read_rule,
)
from headscope.errors import UnsupportedError
from headscope.results.match_record import SIDES, Scoring

if TYPE_CHECKING:
    from headscope.checkpoint import Checkpoint

KINDS = ("bi", "late", "sparse", "cross")
MODEL_TYPES = {
    "SentenceTransformer": "bi",
    "MultiVectorEncoder": "late",
    "SparseEncoder": "sparse",
    "CrossEncoder": "cross",
}
"""model_type of config_sentence_transformers.json -> the kind."""
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
    settings = json_object(checkpoint, "config_sentence_transformers.json") or {}
    listed = json_list(checkpoint, "modules.json")
    modules = [module_of(module, checkpoint) for module in listed or ()]
    names = [name for name, _ in modules]
    if kind is None:
        kind = MODEL_TYPES.get(str(settings.get("model_type"))) or _by_modules(names, classifies)
    lengths, lowercase = _transformer(checkpoint)
    scoring = Scoring(kind, "logit", prompts=_prompts(settings, kind), lengths=lengths, lowercase=lowercase)
    if kind == "cross":
        return scoring
    if kind == "late":
        return _late(checkpoint, scoring, modules)
    if kind == "sparse":
        return _sparse(checkpoint, scoring, modules)
    pooling, measure = read_pooling(checkpoint), _measure(checkpoint, "cosine", MEASURES)
    return replace(scoring, measure=measure, pooling=pooling, stated=pooling.stated)


def _measure(checkpoint: Checkpoint, default: str, known: Mapping[str, str]) -> str:
    settings = json_object(checkpoint, "config_sentence_transformers.json") or {}
    measure = settings.get("similarity_fn_name") or default
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
    settings = json_object(checkpoint, "config_sentence_transformers.json") or {}
    named = settings.get("activation_fn")
    older = checkpoint.config.get("sentence_transformers")
    if named is None and isinstance(older, dict):
        named = older.get("activation_fn")
    if named in (None, SIGMOID):
        return "sigmoid"
    if named == IDENTITY:
        return "identity"
    raise _unsupported(checkpoint, f"the activation of the score is {brief(named)}", "Sigmoid and Identity")


def _by_modules(names: list[str], classifies: bool) -> str:
    if "SpladePooling" in names:
        return "sparse"
    if "MultiVectorMask" in names:
        return "late"
    return "bi" if names or not classifies else "cross"


def _prompts(settings: Mapping[str, Any], kind: str) -> tuple[str, str]:
    """The prompts of a query and of a document, as `encode_query` and `encode_document` of sentence-transformers 6 do.

    Prompts of other names are put before no text there, nor is the default one; a cross-encoder has the default alone.
    """
    prompts = settings.get("prompts")
    prompts = prompts if isinstance(prompts, dict) else {}
    names = (settings.get("default_prompt_name"), None) if kind == "cross" else SIDES
    query, document = (prompts.get(name) if isinstance(name, str) else None for name in names)
    return query if isinstance(query, str) else "", document if isinstance(document, str) else ""


def unapplied_prompts(checkpoint: Checkpoint, scoring: Scoring) -> list[str]:
    """Names of prompts that the files have and that sentence-transformers puts before neither text."""
    prompts = (json_object(checkpoint, "config_sentence_transformers.json") or {}).get("prompts")
    given = prompts if isinstance(prompts, dict) else {}
    return [shown(name) for name, text in given.items() if isinstance(text, str) and text not in ("", *scoring.prompts)]


def _transformer(checkpoint: Checkpoint) -> tuple[tuple[int | None, int | None], bool]:
    """The lengths to which queries and documents are cut, and whether they are lower-cased."""
    settings = json_object(checkpoint, "sentence_bert_config.json") or {}
    rule = read_rule(checkpoint)
    lengths = [length_of(settings.get(f"{side}_length")) or rule.max_length for side in ("query", "document")]
    return (lengths[0], lengths[1]), rule.lowercase


def _sparse(checkpoint: Checkpoint, scoring: Scoring, modules: list[tuple[str, str]]) -> Scoring:
    """Transformer and SpladePooling; without modules.json, what sentence-transformers makes of a masked-LM model."""
    names = [name for name, _ in modules]
    if modules and names[1:] != ["SpladePooling"]:
        raise _unsupported(checkpoint, f"modules.json lists {_listed(names)}", "Transformer and SpladePooling")
    splade = json_object(checkpoint, f"{modules[1][1]}/config.json") or {} if modules else {}
    strategy, activation = splade.get("pooling_strategy", "max"), splade.get("activation_function", "relu")
    if strategy not in ("max", "sum") or activation not in ("relu", "log1p_relu"):
        raise _unsupported(checkpoint, f"SpladePooling is {brief(strategy)} of {brief(activation)}", "max, sum; relu")
    twice = activation == "log1p_relu"
    return replace(
        scoring,
        measure=_measure(checkpoint, "dot", MEASURES),
        strategy=strategy,
        twice=twice,
        active=count_in(checkpoint, "max_active_dims"),
        stated=bool(modules),
    )


def _late(checkpoint: Checkpoint, scoring: Scoring, modules: list[tuple[str, str]]) -> Scoring:
    """Transformer, any Dense, MultiVectorMask and Normalize."""
    names, dense = [name for name, _ in modules], []
    mask: dict[str, Any] = {}
    if odd := [name for name in names if name not in LATE]:
        raise _unsupported(checkpoint, f"modules.json lists {_listed(odd)}", ", ".join(LATE))
    for name, folder in modules:
        config = json_object(checkpoint, f"{folder}/config.json") or {} if folder else {}
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
    expansion = (json_object(checkpoint, "sentence_bert_config.json") or {}).get("query_expansion")
    if not expansion:
        return None
    given = expansion if isinstance(expansion, dict) else {}
    length = length_of(given.get("length"))
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

"""A checkpoint's pooling of its tokens into one vector, from modules.json and sentence-transformers' other files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.checkpoint.json_text import JsonError, brief, parse_object, shown
from headscope.checkpoint.raw_files import read_whole
from headscope.errors import CheckpointError, UnsupportedError
from headscope.results.explained import Pooling

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
    kinds = [module_of(module, checkpoint) for module in json_list(checkpoint, "modules.json") or ()]
    names = [name for name, _ in kinds]
    if names[:2] != ["Transformer", "Pooling"] or names[2:] not in ([], ["Normalize"]):
        raise UnsupportedError(
            f"modules.json lists {', '.join(map(shown, names)) or 'nothing'}; headscope computes Transformer, Pooling "
            "and Normalize",
            where=checkpoint.where,
            advice="read trace.outputs['last_hidden_state'] and apply the other modules yourself",
        )
    mode, width = _mode(checkpoint, f"{kinds[1][1]}/config.json"), count_in(checkpoint, "truncate_dim")
    return replace(rule, mode=mode, normalized=len(names) == 3, width=width)


def read_rule(checkpoint: Checkpoint) -> Pooling:
    """The prompt, the case and the limit that a checkpoint's files say, however the vectors are pooled then.

    The limit is max_seq_length; sentence-transformers 6 writes none, and then it is the tokenizer's model_max_length.
    None where neither file has one: the positions are the limit.

    Raises:
        CheckpointError: a file can't be read or contains invalid values.
    """
    settings = json_object(checkpoint, "sentence_bert_config.json") or {}
    tokenizer = json_object(checkpoint, "tokenizer_config.json") or {}
    limits = (settings.get("max_seq_length"), tokenizer.get("model_max_length"), tokenizer.get("max_len"))
    limit = next((one for one in map(length_of, limits) if one is not None), None)
    lowercase = settings.get("do_lower_case") is True
    modules = json_list(checkpoint, "modules.json")
    if modules is None:
        return Pooling(max_length=limit, lowercase=lowercase)
    pools = [folder for kind, folder in (module_of(module, checkpoint) for module in modules) if kind == "Pooling"]
    configs = [json_object(checkpoint, f"{folder}/config.json") or {} for folder in pools]
    return Pooling(
        stated=True,
        max_length=limit,
        lowercase=lowercase,
        prompt=_prompt(json_object(checkpoint, "config_sentence_transformers.json") or {}),
        include_prompt=all(config.get("include_prompt") is not False for config in configs),
    )


def length_of(value: object) -> int | None:
    """A number of tokens; None for anything else, and for the huge number that means no limit."""
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 24
    return value if usable else None  # type: ignore[return-value]


def count_in(checkpoint: Checkpoint, field: str) -> int | None:
    """A count in config_sentence_transformers.json, from 1 on; None if it is absent or null.

    Raises:
        CheckpointError: it is something else.
    """
    value = (json_object(checkpoint, "config_sentence_transformers.json") or {}).get(field)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise CheckpointError(
        f"{field} is {brief(value)}, expected a positive number",
        where=f"{checkpoint.where}: config_sentence_transformers.json",
        advice="correct the field, or save the model again",
    )


def module_of(module: object, checkpoint: Checkpoint) -> tuple[str, str]:
    """Return a module's class, without its package, and its folder."""
    if isinstance(module, dict):
        kind, path = module.get("type"), module.get("path")
        if isinstance(kind, str) and isinstance(path, str):
            plain = not any(sign in path for sign in "/\\:\0") and path not in (".", "..") and len(path) < 256
            name = kind.rpartition(".")[2]
            if plain and (path or name != "Pooling"):
                return name, path
    raise CheckpointError(
        f"a module is {brief(module)}, expected a type and the name of a folder",
        where=f"{checkpoint.where}: modules.json",
        advice=AGAIN,
    )


def _mode(checkpoint: Checkpoint, filename: str) -> str:
    """Return the pooling mode from its config."""
    config = json_object(checkpoint, filename)
    where = f"{checkpoint.where}: {filename}"
    if config is None:
        raise CheckpointError(f"modules.json lists a Pooling, but there is no {filename}", where=where, advice=AGAIN)
    prefix = "pooling_mode_"
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


def _prompt(config: Mapping[str, Any]) -> str:
    """Return the default prompt, empty if there is none."""
    prompts, name = config.get("prompts"), config.get("default_prompt_name")
    result = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    return result if isinstance(result, str) else ""


def json_object(checkpoint: Checkpoint, filename: str) -> dict[str, Any] | None:
    """Read a JSON object beside the weights; None if there is no such file."""
    path = checkpoint.file(filename)
    return None if path is None else _parsed(path, b"%s", checkpoint, filename)


def json_list(checkpoint: Checkpoint, filename: str) -> list[Any] | None:
    """Read a JSON list beside the weights; None if there is no such file."""
    path = checkpoint.file(filename)
    if path is None:
        return None
    result = _parsed(path, b'{"items": %s}', checkpoint, filename)
    if set(result) == {"items"} and isinstance(result["items"], list):
        return result["items"]
    raise CheckpointError("expected a JSON list", where=f"{checkpoint.where}: {filename}", advice=AGAIN)


def _parsed(path: Path, form: bytes, checkpoint: Checkpoint, filename: str) -> dict[str, Any]:
    try:
        data = read_whole(path, MOST_BYTES)
        return parse_object(form.replace(b"%s", data), unique=False)
    except (OSError, JsonError) as error:
        raise CheckpointError(
            f"the file can't be read: {getattr(error, 'strerror', None) or error}",
            where=f"{checkpoint.where}: {filename}",
            advice=AGAIN,
        ) from error

"""`hs.open`: one name for everything on disk: a checkpoint, a saved trace, a survey's folder."""

from __future__ import annotations

import os
from typing import Any

from headscope.errors import InputError
from headscope.model import Model, open_model
from headscope.settings import named


@named
def open(
    name: str | os.PathLike[str] | Any = "-",
    *,
    revision: str | None = None,
    model: Model | None = None,
    tokenizer: str | os.PathLike[str] | Any = None,
    segments: str | None = None,
) -> Model | Any:
    """Open a checkpoint, a saved trace, or the folder of a finished survey.

    Of a checkpoint, header and config are read, but no weights.

    Args:
        name: a hub id, a folder, a file, or `-` for the bundled model; a file that `trace.save` wrote; the folder of a
            survey; or a model in memory: an object of sentence-transformers, a pipeline or a model of transformers,
            which is saved to a temporary folder as it is now.
        revision: a branch, tag or commit; for hub ids only.
        model: for traces only: the model that the trace came from, as in `hs.load`.
        tokenizer: for checkpoints without one: a folder with a tokenizer's files, or another checkpoint's name; for a
            model of transformers in memory also its tokenizer.
        segments: for checkpoints: those of a pair, `one` for both texts or `two`; by default as the tokenizer has them
            in the version of transformers that saved it.

    Returns:
        A Model, a Trace or a Survey. Type checkers take it for a Model; `hs.load` and `hs.Survey` have their own types.

    Raises:
        NotFoundError: there is no such checkpoint.
        InputError: `name` is nothing of this kind, a survey is not finished, or an option is for something else.
        CheckpointError: the files are damaged or contradict each other; TraceError if a trace's are.
        ConfigError: the config lacks a size or holds an impossible one.
    """
    kind, taken = "checkpoint", ["revision", "tokenizer", "segments"]
    if isinstance(name, Model):
        kind, taken = "model that is open", []
    elif not isinstance(name, (str, os.PathLike)):
        kind, taken = "model in memory", ["tokenizer", "segments"]
    elif os.path.exists(name):
        from headscope.atlas import is_survey

        if is_survey(name):
            kind, taken = "survey", []
        elif _is_trace(name):
            kind, taken = "trace", ["model"]
    given = {"revision": revision, "tokenizer": tokenizer, "segments": segments, "model": model}
    for option in (name for name, value in given.items() if value is not None and name not in taken):
        advice = f"leave {option} out" + "; only a saved trace takes a model" * (option == "model")
        raise InputError(f"a {kind} takes no {option}", where=str(name), advice=advice)
    if kind == "trace":
        from headscope.traces import load

        return load(name, model=model)
    if kind == "survey":
        from headscope.atlas.result import Survey

        return Survey(name)
    return open_model(name, revision=revision, tokenizer=tokenizer, segments=segments or "own")


def _is_trace(path: str | os.PathLike[str]) -> bool:
    """Return True if a file is a trace. NumPy is imported only for a file that may be one."""
    if not os.path.isfile(path) or not os.fspath(path).endswith(".safetensors"):
        return False
    from headscope.traces import is_trace

    return is_trace(path)

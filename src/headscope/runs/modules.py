"""A checkpoint as a live transformers model, with what sits on top of it, for explanations that need gradients."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from headscope.errors import MissingExtraError, UnsupportedError, install
from headscope.results.effects import Target

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
    raise MissingExtraError(
        "gradients need PyTorch and transformers, which are not both installed",
        where="torch",
        advice=f"{install('torch')}, or use a method that needs no gradients",
    )

import torch
import transformers

from headscope.live.built import check_size, configured, foreign_errors, quiet
from headscope.runs.targets import class_count

if TYPE_CHECKING:
    from headscope.anatomy.schema import Top
    from headscope.checkpoint.tokenizer import Encoded
    from headscope.model import Model
    from headscope.runs.gradients import Score

TASKS = {"word": "masked_lm", "class": "sequence", "score": "sequence", "token": "token"}

_built: WeakKeyDictionary[Model, dict[str, Any]] = WeakKeyDictionary()
"""The modules of each model by their class, as long as the model is in use."""


def module_for(model: Model, target: Target) -> Any:
    """The checkpoint as the transformers class that computes a target, in fp32 and eval mode; built once for a model.

    The class is built from config.json and filled with the stored tensors under its own names: nothing is unpickled
    and no code of the checkpoint is run.

    Raises:
        UnsupportedError: this transformers lacks the class, doesn't take the config, or needs other parameters.
    """
    anatomy = model.anatomy
    task = TASKS.get(target.kind)
    top = next((candidate for candidate in anatomy.tops if task in candidate.tasks), None)
    name = anatomy.base_class if top is None else anatomy.class_stem + top.suffix
    modules = _built.setdefault(model, {})
    if name not in modules:
        modules[name] = _build(model, name, task, top)
    return modules[name]


def base_module(model: Model) -> Any:
    """The checkpoint's base class, without what sits on top; errors as of `module_for`."""
    return module_for(model, Target("embedding", "", None, None))


def _build(model: Model, name: str, task: str | None, top: Top | None) -> Any:
    anatomy = model.anatomy
    prefix = anatomy.family.prefix if anatomy.family and top is not None else ""
    kind = getattr(transformers, name, None)
    if kind is None:
        raise UnsupportedError(
            f"transformers {transformers.__version__} has no {name}",
            where="transformers",
            advice="install a newer transformers",
        )
    settings = dict(model.checkpoint.config)
    if task in ("sequence", "token") and "id2label" not in settings:
        settings["num_labels"] = class_count(model)
    where = model.checkpoint.where
    config = configured(kind.config_class, settings, where=where, tensors=len(model.checkpoint.tensors))
    check_size(kind, config, model.checkpoint)
    with quiet(), foreign_errors(where, "correct config.json"):
        module = kind(config).eval().float()
    rows = [(prefix + name, row) for name, row in anatomy.class_rows(model.parameters) if row.role is not None]
    if top is not None:
        rows += [(name, row) for name, row in anatomy.class_rows(model.extra) if row.role is not None]
    parameters = dict(module.named_parameters(remove_duplicate=False))
    given = {key: torch.from_numpy(np.array(model.encoder.read(row))) for key, row in rows if key in parameters}
    with foreign_errors(where, "use a checkpoint that was saved whole"):
        missing = module.load_state_dict(given, strict=False).missing_keys
    module.tie_weights()
    parameters = dict(module.named_parameters(remove_duplicate=False))
    filled = {parameters[key].data_ptr() for key in given}
    lacking = [key for key in missing if key in parameters and parameters[key].data_ptr() not in filled]
    if task is None:
        lacking = [key for key in lacking if not key.startswith("pooler.")]  # no vector is read there
    if lacking:
        raise UnsupportedError(
            f"{name} in transformers needs what the checkpoint lacks: {', '.join(lacking[:5])}",
            where=where,
            advice="use a checkpoint that was saved whole",
        )
    return module.requires_grad_(False)


def inputs_of(model: Model, encoded: Encoded) -> dict[str, torch.Tensor]:
    """The arguments that the module is called with."""
    inputs = {"input_ids": torch.tensor([encoded.ids])}
    if model.anatomy.known().types:
        inputs["token_type_ids"] = torch.tensor([encoded.segments])
    return inputs


def score_of(target: Target) -> Score:
    """From what the module returns to the target's number, as headscope.runs.targets defines it."""
    if target.against is not None:
        one, other = score_of(target.alone), score_of(target.against)
        return lambda outputs: one(outputs) - other(outputs)
    if target.direction is None:
        place = (0, target.index) if target.kind in ("class", "score") else (0, target.row, target.index)
        return lambda outputs: (outputs.logits if hasattr(outputs, "logits") else outputs.prediction_logits)[place]
    direction = torch.from_numpy(np.asarray(target.direction))

    def along(outputs: Any) -> torch.Tensor:
        hidden: torch.Tensor = outputs.last_hidden_state[0].double()
        vector = hidden[target.prompt :].mean(0) if target.row is None else hidden[target.row]
        vector = vector[: len(direction)]
        return vector @ direction / (vector.norm() if target.kind == "similarity" else target.length)

    return along

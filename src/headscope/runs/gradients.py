"""Gradients of a live torch model of the BERT families, by its own backward pass: of heads, of weights, of embeddings.

With A_h the contexts of head h, (tokens, d_head), g = dL/dA_h, and L the score that is explained:

    head          dL/dxi_h = sum A_h * g, where xi_h = 1 multiplies the head's output: Michel et al. 2019, whose
                  importance is the mean of its absolute value over texts
    weights       dL/dp_ij = g_i . v_j, so attention x gradient of key j, summed over queries, needs no map:
                  sum_i p_ij g_i . v_j = (P^T g)_j . v_j
    embeddings    (e - e') . integral of dL/de from e' to e: integrated gradients, Sundararajan et al. 2017

Contexts are what goes into the layer's output projection, and values are what comes out of the value projection, so any
implementation of attention will do. One backward pass gives the first two; the third takes one for each step.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headscope.anatomy.families import family_of
from headscope.attention.scores import log_sum_exps, scores, split_heads, weights
from headscope.errors import InputError, MissingExtraError, UnsupportedError, install
from headscope.live.evaluating import evaluating
from headscope.results.tiled import TILE_CELLS

if importlib.util.find_spec("torch") is None:
    raise MissingExtraError(
        "gradients need PyTorch, which is not installed",
        where="torch",
        advice=f"{install('torch')}, or use a method that needs no gradients",
    )

import torch
from torch import nn

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.anatomy import Family

Score = Callable[[Any], torch.Tensor]
"""From what the model returns to the number that is explained."""

ROLES = ("query", "key", "value")


class LayerSites(NamedTuple):
    """The names of a layer's query, key and value projections, and of the one that the contexts go into."""

    query: str
    key: str
    value: str
    output: str


@dataclass(frozen=True)
class Sites:
    """The parts of a live model that gradients are taken at.

    Attributes:
        words: the name of the module that looks word embeddings up.
        layers: where they are in each layer.
        heads: heads in each layer.
    """

    words: str
    layers: tuple[LayerSites, ...]
    heads: int


def sites_of(module: nn.Module) -> Sites:
    """Find the parts of a transformers model of the BERT families.

    Raises:
        UnsupportedError: a model of another family, or one whose modules have other names.
    """
    config: Any = getattr(module, "config", None)
    settings: dict[str, Any] = config.to_dict() if hasattr(config, "to_dict") else {}
    known = family_of(settings)
    roles = (*(f"layer.{role}.weight" for role in ROLES), "layer.attention_output.weight")
    if known is None or not named_apart(known[0], roles):
        raise UnsupportedError(
            f"{type(module).__name__} is of no family whose parts are known by name",
            where="a live model",
            advice="pass a transformers model of BERT, RoBERTa, DistilBERT, ELECTRA, ERNIE or MegatronBERT",
        )
    family, _ = known
    prefix = next(
        (candidate for candidate in ("", family.prefix) if hasattr(module, (candidate + "embeddings").split(".")[0])),
        "",
    )
    names = {spec.role: spec.name.removesuffix(".weight") for spec in (*family.embeddings, *family.layer)}
    count, heads = (int(getattr(config, family.config[what])) for what in ("layers", "heads"))
    layers = tuple(LayerSites(*(prefix + names[role].format(l=layer) for role in roles)) for layer in range(count))
    sites = Sites(prefix + names["embeddings.word.weight"], layers, heads)
    lacking = [name for name in (sites.words, *(name for layer in layers for name in layer)) if not _has(module, name)]
    if lacking:
        raise UnsupportedError(
            f"{type(module).__name__} has no module {lacking[0]}",
            where="a live model",
            advice="pass the model as transformers builds it",
        )
    return sites


def words_of(module: nn.Module) -> nn.Module:
    """The module that looks word embeddings up, in a transformers model of any family that headscope knows.

    Raises:
        UnsupportedError: a model of another family.
    """
    config: Any = getattr(module, "config", None)
    if not hasattr(config, "to_dict") or family_of(config.to_dict()) is None:
        raise UnsupportedError(
            f"{type(module).__name__} is of no family whose parts are known by name",
            where="a live model",
            advice="pass a transformers model of a family that hs.open runs",
        )
    words: nn.Module = module.get_input_embeddings()  # type: ignore[operator]  # every PreTrainedModel has it
    return words


def named_apart(family: Family, roles: Sequence[str]) -> bool:
    """Return True if every layer has modules of its own for these roles, whose outputs are the queries and keys."""
    named = {spec.role for spec in family.layer}
    return named.issuperset(roles) and family.rotary is None and not family.terms and "groups" not in family.config


def _has(module: nn.Module, name: str) -> bool:
    try:
        module.get_submodule(name)
    except AttributeError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradients that one backward pass gives.

    Attributes:
        score: the number that is explained.
        heads: (layers, heads), sum A_h * dL/dA_h: what the head's output times a mask adds to first order, so silencing
            it would change the score by about the negative.
        keys: (layers, heads, tokens), attention x gradient of each key, summed over queries; the sum over keys is
            `heads`.
    """

    score: float
    heads: Float[np.ndarray, "layers heads"]
    keys: Float[np.ndarray, "layers heads tokens"]


def gradients(module: nn.Module, inputs: Mapping[str, torch.Tensor], score: Score) -> Gradients:
    """One forward and one backward pass over one text; see the top of this file.

    Args:
        module: a transformers model of the BERT families, in any attention implementation. It runs where it lies, in
            eval mode, and its parameters get no gradients.
        inputs: what it is called with: one text without padding.
        score: from what it returns to the number that is explained.

    Raises:
        InputError: several texts, padding, or a score that doesn't rest on the model's attention.
        UnsupportedError: a model of another family.
    """
    sites = sites_of(module)
    check_inputs(inputs)
    seen: dict[str, torch.Tensor] = {}

    def output(name: str) -> Callable[[Any, Any, torch.Tensor], None]:
        return lambda _module, _given, result: seen.update({name: result})

    def given(name: str) -> Callable[[Any, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]:
        def hook(_module: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            # A leaf where no parameter requires gradients, so that there is a backward pass in any case.
            context = arguments[0] if arguments[0].requires_grad else arguments[0].detach().requires_grad_()
            seen[name] = context
            return (context, *arguments[1:])

        return hook

    with evaluating(module), ExitStack() as hooks, torch.enable_grad():
        for layer in sites.layers:
            for name in layer[:3]:
                hooks.callback(module.get_submodule(name).register_forward_hook(output(name)).remove)
            into = module.get_submodule(layer.output)
            hooks.callback(into.register_forward_pre_hook(given(layer.output)).remove)
        number = score(module(**inputs))
        slopes_at = _gradients_of(number, [seen[layer.output] for layer in sites.layers])
    heads, keys = [], []
    for (query, key, value, context), g in zip(sites.layers, slopes_at, strict=True):
        q, k, v, A, slopes = (
            np.ascontiguousarray(split_heads(_numbers(array), sites.heads))
            for array in (seen[query], seen[key], seen[value], seen[context], g)
        )
        heads.append((A.astype(np.float64) * slopes).sum(axis=(1, 2)))
        keys.append((_transposed_product(q, k, slopes) * v).sum(axis=-1))
    return Gradients(float(number.detach()), np.stack(heads), np.stack(keys))


def _gradients_of(number: torch.Tensor, at: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    if not isinstance(number, torch.Tensor) or number.numel() != 1 or not number.requires_grad:
        raise InputError(
            "the score is not one number that rests on the model's attention",
            where="score",
            advice="return one element of the outputs: lambda outputs: outputs.logits[0, 1]",
        )
    return tuple(
        torch.zeros_like(tensor) if g is None else g
        for tensor, g in zip(at, torch.autograd.grad(number.reshape(()), at, allow_unused=True), strict=True)
    )


def _transposed_product(
    q: Float[np.ndarray, "heads tokens d_head"],
    k: Float[np.ndarray, "heads tokens d_head"],
    g: Float[np.ndarray, "heads tokens d_head"],
) -> Float[np.ndarray, "heads tokens d_head"]:
    """P^T g, in blocks of queries."""
    heads, tokens, d_head = q.shape
    scale = 1 / float(np.sqrt(d_head))
    lse = log_sum_exps(q, k, scale=scale)
    total = np.zeros((heads, tokens, d_head))
    step = max(1, TILE_CELLS // (heads * tokens))
    for start in range(0, tokens, step):
        part = slice(start, min(start + step, tokens))
        total += weights(scores(q[:, part], k, scale=scale), lse[:, part]).swapaxes(-1, -2) @ g[:, part]
    return total


def _numbers(tensor: torch.Tensor) -> Float[np.ndarray, "tokens width"]:
    array: Float[np.ndarray, "tokens width"] = tensor.detach()[0].float().cpu().numpy()
    return array


@dataclass(frozen=True, eq=False)
class Integrated:
    """Integrated gradients of one text.

    Attributes:
        score: the number that is explained.
        baseline: that number for the baseline.
        tokens: (tokens,), what each token's word embedding adds; the sum is score - baseline up to the integration's
            error.
    """

    score: float
    baseline: float
    tokens: Float[np.ndarray, " tokens"]


def integrated_gradients(
    module: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    score: Score,
    baseline: torch.Tensor,
    *,
    steps: int = 32,
) -> Integrated:
    """Gradients of the word embeddings along the straight line from a baseline, by Gauss-Legendre quadrature.

    Positions and segments stay as they are. It costs `steps` + 2 forward passes and `steps` backward passes.

    Args:
        module: as in `gradients`.
        inputs: likewise, with input_ids.
        score: likewise.
        baseline: (1, tokens): the ids whose word embeddings the line starts from.
        steps: points of the quadrature, which is exact for a gradient that is a polynomial of degree 2 steps - 1.

    Raises:
        InputError: several texts, a baseline of another shape, steps below 1.
        UnsupportedError: a model of another family.
    """
    words = words_of(module)
    ids = check_inputs(inputs)
    if baseline.shape != ids.shape or steps < 1:
        raise InputError(
            f"a baseline of {tuple(baseline.shape)} for ids {tuple(ids.shape)}, and {steps} steps",
            where="integrated_gradients",
            advice="pass an id for each token, and at least one step",
        )
    with evaluating(module):
        with torch.no_grad():
            end, start = (words(row).detach() for row in (ids, baseline))

        def at(embedded: torch.Tensor) -> torch.Tensor:
            hook = words.register_forward_hook(lambda _module, _given, _result: embedded)
            try:
                return score(module(**inputs))
            finally:
                hook.remove()

        places, shares = np.polynomial.legendre.leggauss(steps)
        total = torch.zeros_like(end, dtype=torch.float64)
        for place, share in zip((places + 1) / 2, shares / 2, strict=True):
            embedded = (start + float(place) * (end - start)).requires_grad_()
            with torch.enable_grad():
                (slope,) = _gradients_of(at(embedded), [embedded])
            total += float(share) * slope.double()
        with torch.no_grad():
            numbers = [float(at(embedded)) for embedded in (end, start)]
    parts = (total * (end - start).double()).sum(-1)[0]
    return Integrated(numbers[0], numbers[1], parts.cpu().numpy())


def check_inputs(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The ids of the only text, (1, tokens).

    Raises:
        InputError: no ids, several texts, or padding.
    """
    ids = inputs.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or len(ids) != 1:
        shape = tuple(ids.shape) if isinstance(ids, torch.Tensor) else "missing"
        raise InputError(
            f"input_ids are {shape}, expected (1, tokens)",
            where="inputs",
            advice="pass one text at a time: tokenizer(text, return_tensors='pt')",
        )
    mask = inputs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise InputError("the text is padded", where="attention_mask", advice="pass the text without padding")
    return ids

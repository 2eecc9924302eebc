"""Verify the trace of an opened checkpoint against the paper's formulas in fp64, and against transformers."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.anatomy.sizes import SAVED_CONFIG
from headscope.attention.patterns import GIVEN
from headscope.encoder.distances import STORED
from headscope.errors import HeadscopeError, UnsupportedError, install
from headscope.results.verify_report import Check
from headscope.verify.rounding import FP32_REASON, Limits, Worst, row_blocks

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float
    from torch import nn

    from headscope.attention.terms import Terms
    from headscope.model import Model
    from headscope.traces import LayerRecord, Trace


OPTIONAL = ("pooler.", "pooler_", "contact_head.", "encoder.embed_positions.")
"""Modules of the base class that a checkpoint may lack, and that change no hidden state."""


UNKEPT = "a head attended with a map that the trace doesn't have"


def run_eager(
    model: Model, trace: Trace
) -> tuple[list[Float[np.ndarray, "heads tokens tokens"]], list[Float[np.ndarray, "tokens d_model"]]]:
    """Build the checkpoint's base class in transformers, with eager attention in fp32, and run the trace's ids.

    The class is built from config.json and filled with the stored tensors under the class's names, so nothing is
    unpickled and no code of the checkpoint runs. The contexts of silenced heads are set to 0, and those of heads under
    another map to what the trace says.

    Returns:
        Weights of each layer, and the hidden states of the embeddings, then of each layer.

    Raises:
        UnsupportedError: transformers has no such class, rejects the config, or requires parameters that the checkpoint
            lacks; or the trace doesn't have a head's map.
    """
    import torch
    import transformers

    from headscope.live.built import check_size, configured, foreign_errors, quiet

    base = getattr(transformers, model.anatomy.base_class, None)
    if base is None:
        raise UnsupportedError(
            f"transformers {transformers.__version__} has no class {model.anatomy.base_class}",
            where="transformers",
            advice="install a newer version of transformers",
        )
    where = model.checkpoint.where
    config = configured(base.config_class, model.checkpoint.config, where=where, tensors=len(model.checkpoint.tensors))
    check_size(base, config, model.checkpoint)
    with quiet(), foreign_errors(where, "correct config.json"), torch.device("cpu"):
        config._attn_implementation = "eager"
        module = base(config).eval().float()
    state = {
        name: torch.from_numpy(model.encoder.read(row).copy())
        for name, row in model.anatomy.class_rows(model.parameters)
        if row.role is not None
    }
    for name in model.anatomy.buffers:
        if name.endswith(STORED):  # ESM runs with the file's frequencies
            state[STORED] = torch.from_numpy(np.array(model.checkpoint.read(name), dtype=np.float32))
    with foreign_errors(where, SAVED_CONFIG):
        missing = module.load_state_dict(state, strict=False).missing_keys
    buffers = dict(module.named_buffers())
    required = [name for name in missing if not name.startswith(OPTIONAL) and name not in buffers]
    if required:
        raise UnsupportedError(
            f"{model.anatomy.base_class} in transformers requires parameters that the checkpoint lacks: "
            f"{', '.join(required[:5])}",
            where=model.name,
            advice="use a complete checkpoint",
        )
    contexts = {head: context for head in trace.changed if (context := trace[head].written) is not None}
    if len(contexts) < len(trace.changed):
        layer, head = min(trace.changed - contexts.keys())
        raise UnsupportedError(UNKEPT, where=f"layer {layer}, head {head}", advice="use a map with a name")
    inputs = {"input_ids": torch.tensor([trace.ids], device="cpu")}
    if model.anatomy.known().types:
        inputs["token_type_ids"] = torch.tensor([trace.queries.segments], device="cpu")
    with foreign_errors(where, SAVED_CONFIG), torch.inference_mode(), torch.device("cpu"):
        silence(module, model, contexts)
        outputs = module(**inputs, output_attentions=True, output_hidden_states=True)
    attentions = [attention[0].numpy() for attention in outputs.attentions]
    return attentions, [state[0].numpy() for state in outputs.hidden_states]


def silence(
    module: nn.Module, model: Model, changed: Mapping[tuple[int, int], Float[np.ndarray, "tokens d_head"]]
) -> None:
    """Replace the contexts of these heads before W_O. Layers that share a module call it in their order."""
    if not changed:
        return
    import torch

    users: dict[str, list[int]] = {}
    for layer in range(model.anatomy.known().layers):
        row = model.anatomy.parameter("layer.attention_output.weight", layer)
        ((name, _),) = model.anatomy.class_rows([row])
        users.setdefault(name.removesuffix(".weight"), []).append(layer)
    for name, layers in users.items():
        calls = iter(layers)

        def before(
            _module: nn.Module, inputs: tuple[torch.Tensor], calls: Iterator[int] = calls
        ) -> tuple[torch.Tensor]:
            layer = next(calls)
            contexts = inputs[0].clone()
            for (at, head), context in changed.items():
                if at == layer:
                    contexts[..., model.layers[layer].heads[head].span] = torch.from_numpy(np.array(context))
            return (contexts,)

        module.get_submodule(name).register_forward_pre_hook(before)


def input_states(trace: Trace, model: Model) -> list[Float[np.ndarray, "tokens d_model"]] | None:
    """(S, d_model) each: the input of every layer, and the output of the last; None if the trace lacks a map for it."""
    kept = trace.hidden_states
    if len(kept) != len(trace.layers) + 1:
        ways = {**dict.fromkeys(trace.ablated, "zero"), **trace.swapped}
        if not {*GIVEN}.isdisjoint(ways.values()):
            return None
        again = model.trace(ids=trace.ids, segments=trace.queries.segments, ablate=ways, hidden_states=True)
        kept = again.hidden_states
    return [state.array for state in kept]


def paper(trace: Trace, model: Model, states: list[Float[np.ndarray, "tokens d_model"]], limits: Limits) -> list[Check]:
    """Compare with the paper's formulas, head by head in fp64, and with the sum over heads."""
    why = limits.reason
    split = "the fused product's split against X W_i + b_i of each head"
    parts = {
        name: Worst(name, f"{split}, {symbol}, in fp64", limits.numbers, why)
        for name, symbol in (("queries", "W_Q"), ("keys", "W_K"), ("values", "W_V"))
    }
    softmax = "exp(s - lse) against softmax(Q K^T / sqrt(d_head)) of whole rows in fp64"
    cells = Worst("weights", softmax, limits.weights, why)
    contexts = Worst("context", "weights @ V in fp32 against fp64", limits.contexts, why)
    together = "sum of context_i W_i^O + b_O against Concat(context) W^O + b_O in fp64"
    summed = Worst("sum over heads", together, limits.contexts, why)
    rounded = trace.precision != "fp32"
    for layer, state in enumerate(states[:-1]):
        x = normed(model, state.astype(np.float64), layer)
        angles = model.encoder.angles(layer, len(x))
        # (tokens, d_head / 2), e^(i m theta): the complex number by which each pair turns
        turn = None if angles is None else angles[0].astype(np.complex128) + 1j * angles[1]
        mask, scale = trace.layers[layer].mask, model.encoder.scale
        concat, total = [], np.zeros_like(x)
        for head, slices in enumerate(model.layers[layer].heads):
            head_trace = trace[layer, head]
            q = x @ slices.W_Q.astype(np.float64) + slices.b_Q
            k = x @ slices.W_K.astype(np.float64) + slices.b_K
            v = x @ slices.W_V.astype(np.float64) + slices.b_V
            if turn is not None:
                q, k = turned(model, q, turn), turned(model, k, turn)
                v = turned(model, v, turn) if model.anatomy.config.get("rotary_value") else v
            place: dict[str, Any] = {"layer": layer, "head": head}
            fused = (head_trace.q, head_trace.k, head_trace.v)
            for worst, ours, expected in zip(parts.values(), fused, (q, k, v), strict=True):
                worst.see(ours, expected, ("query" if worst is parts["queries"] else "key",), **place)
            context = np.empty_like(v)
            for rows in row_blocks(len(q)):
                s = scale * (q[rows] @ k.T)
                s += added(trace.layers[layer].terms.of_head(head), q, k, rows, scale)
                allowed = mask.allowed(np.arange(len(q))[rows], np.arange(len(k)), (len(q), len(k)))
                s = s if allowed is None else np.where(allowed, s, -np.inf)
                p = np.exp(s - s.max(axis=-1, keepdims=True))
                p /= p.sum(axis=-1, keepdims=True)
                cells.see(head_trace.weights[rows], p, ("query", "key"), **place, query=rows.start)
                context[rows] = p @ v
            size = float(np.abs(v).max()) if rounded else 0.0
            contexts.see(head_trace.context, context, ("query",), size=size, **place)
            changed = head_trace.silenced or head_trace.swapped
            written = head_trace.written if changed else context  # None under an unknown map: left out on both sides
            concat.append(np.zeros_like(context) if written is None else written)
            total += 0 if written is None else head_trace.output
        b_O = model.layers[layer].b_O
        W_O = model.encoder.weight("layer.attention_output.weight", layer).T.astype(np.float64)
        expected = np.concatenate(concat, axis=1) @ W_O + b_O
        size = _output_bound(trace.layers[layer], W_O) if rounded else 0.0
        summed.see(total + b_O, expected, ("query",), size=size, layer=layer)
    return [worst.check() for worst in (*parts.values(), cells, contexts, summed)]


def normed(model: Model, x: Float[np.ndarray, "tokens d_model"], layer: int) -> Float[np.ndarray, "tokens d_model"]:
    """The input of a layer's queries, keys and values in fp64: in pre-norm layers, the norm of the layer's input."""
    role, anatomy = "layer.attention_input_norm", model.anatomy
    if not anatomy.has(f"{role}.weight", layer):
        return x
    if anatomy.family is None or not anatomy.family.rms_norm:
        x = x - x.mean(axis=1, keepdims=True)
    x = x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + anatomy.setting("norm_eps"))
    return x * model.encoder.weight(f"{role}.weight", layer) + model.encoder.bias(role, layer)


def added(terms: Terms, q: np.ndarray, k: np.ndarray, rows: slice, scale: float) -> Float[np.ndarray, "n keys"]:
    """Return what one head's terms add to some rows of scores, cell by cell: MPNet's biases, DeBERTa's products.

    The cell (i, j) takes row delta(i, j) of each table: from all products of the queries, or of the keys, with it.
    """
    at = np.arange(len(q))[rows]
    total = np.zeros((len(at), len(k)))
    if terms.buckets is None:
        return total
    places = terms.buckets[np.arange(len(k))[None, :] - at[:, None] + len(q) - 1]
    if terms.by_distance is not None:
        total += terms.by_distance[0].astype(np.float64)[places]
    if terms.relative_keys is not None:
        total += scale * np.take_along_axis(q[at] @ terms.relative_keys[0].astype(np.float64).T, places, 1)
    if terms.relative_queries is not None:
        total += scale * np.take_along_axis(k @ terms.relative_queries[0].astype(np.float64).T, places.T, 1).T
    return total


def turned(model: Model, x: Float[np.ndarray, "tokens d_head"], turn: np.ndarray) -> Float[np.ndarray, "tokens d_head"]:
    """Queries or keys, each pair as a complex number times e^(i m theta) (Su et al. 2021, eq. 12)."""
    rotary = model.anatomy.family.rotary if model.anatomy.family else None
    half = x.shape[1] // 2
    order = np.arange(2 * half).reshape(half, 2) if rotary and rotary.pairs else np.arange(2 * half).reshape(2, half).T
    pairs = (x[:, order[:, 0]] + 1j * x[:, order[:, 1]]) * turn
    result = np.empty_like(x)
    result[:, order[:, 0]], result[:, order[:, 1]] = pairs.real, pairs.imag
    return result


def _output_bound(record: LayerRecord, W_O: Float[np.ndarray, "width d_model"]) -> float:
    """Upper bound of the sum of the heads' outputs: sum_h max_j |v_j| max_m |W_O[:, m]|, with head h's rows of W_O."""
    assert record.v is not None
    rows = W_O.reshape(len(record.q), -1, W_O.shape[1])
    lengths = [np.sqrt(np.square(part, dtype=np.float64).sum(axis)) for part, axis in ((record.v, -1), (rows, 1))]
    return float((lengths[0].max(-1) * lengths[1].max(-1)).sum())


def transformers_eager(
    trace: Trace, model: Model, states: list[Float[np.ndarray, "tokens d_model"]], limits: Limits
) -> tuple[list[Check], str]:
    """Compare with transformers' eager attentions and hidden states.

    Returns:
        The comparisons; and the reason if they were not possible, else an empty string.
    """
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        return [], f"torch and transformers are not installed: {install('torch')}"
    try:
        attentions, hidden_states = run_eager(model, trace)
    except HeadscopeError as error:
        return [], error.found
    cells = Worst("weights (eager)", "against transformers' eager attentions", limits.weights, limits.reason)
    every = "of the embeddings and every layer, against transformers'"
    hidden = Worst("hidden states", every, limits.fp32, FP32_REASON)
    for layer, attention in enumerate(attentions):
        for head in range(trace.heads):
            for rows in row_blocks(len(trace)):
                ours = trace[layer, head].weights[rows]
                cells.see(ours, attention[head, rows], ("query", "key"), layer=layer, head=head, query=rows.start)
    ours = [*states[:-1], trace.outputs["last_hidden_state"].array]
    for layer, (state, expected) in enumerate(zip(ours, hidden_states, strict=True)):
        hidden.see(state, expected, ("query",), layer=layer)
    return [cells.check(), hidden.check()], ""

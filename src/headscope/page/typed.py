"""The page with a model in it, as one offline file: it answers on whatever is typed, without a server or a network.

The model is packed for web/src/encoder, which runs it: weights by role in half precision, the vocabulary, the sizes. It
runs BERT's layer (post-norm, learned positions, attention over all tokens) and BERT's WordPiece; whatever else a
checkpoint needs is refused here, when the file is made.
"""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.checkpoint import model_name
from headscope.checkpoint.json_text import written
from headscope.checkpoint.safetensors_header import safetensors_bytes
from headscope.checkpoint.tokenizer.wordpiece import described
from headscope.encoder.forward import positions
from headscope.errors import CheckpointError, UnsupportedError
from headscope.page.html import CHUNK, page
from headscope.page.trace import anatomy_of
from headscope.pages import inert_element, script

if TYPE_CHECKING:
    from jaxtyping import Float16

    from headscope.model import Model


LARGEST = 60_000_000
"""Most bytes of weights in half precision: a browser unpacks them in seconds."""
BIASED = ("query", "key", "value", "attention_output", "ffn_in", "ffn_out", "attention_norm", "output_norm")
"""Modules of BERT's layer; each has a weight and a bias."""
LAYER = tuple(f"layer.{module}.{kind}" for module in BIASED for kind in ("weight", "bias"))
EMBEDDINGS = ("embeddings.word.weight", "embeddings.position.weight", "embeddings.norm.weight", "embeddings.norm.bias")
TYPES = "embeddings.token_type.weight"
UNUSED = ("pooler.weight", "pooler.bias")
"""Of the base model, and without influence on attention or on masked words."""
TRANSFORM = tuple(f"masked_lm.{module}.{kind}" for module in ("transform", "norm") for kind in ("weight", "bias"))
ACTIVATIONS = ("gelu", "gelu_python", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh")
"""Those of web/src/encoder/products.ts."""


def packed(model: Model) -> bytes:
    """The model as a compressed safetensors file: tensors by role, in fp16, and what the page must know of it.

    Raises:
        UnsupportedError: the model is not of BERT's form, its tokenizer is not BERT's WordPiece, or it is too large.
        CheckpointError: a weight is not a number, or beyond half precision.
    """
    check_form(model)
    vocabulary = described(model.tokenizer)
    if len(vocabulary["tokens"]) > model.anatomy.known().vocab:
        raise _unsupported(
            model, f"its tokenizer has {len(vocabulary['tokens'])} tokens, its embeddings {model.anatomy.known().vocab}"
        )
    metadata = {"headscope.model": written(_about(model, vocabulary))}
    return gzip.compress(safetensors_bytes(dict(_tensors(model)), metadata), mtime=0)


def check_form(model: Model) -> None:
    """Check that the page can run a model, and reads its texts as every other way in does.

    Raises:
        UnsupportedError: its form isn't BERT's, it has a prompt, or it is too large.
    """
    anatomy, sizes = model.anatomy, model.anatomy.computable()
    family = anatomy.family
    assert family is not None
    known = {*LAYER, *EMBEDDINGS, TYPES, *UNUSED}
    other = [row.role or row.name for row in model.parameters if row.role not in known]
    missing = [role for role in EMBEDDINGS if not anatomy.has(role)]
    missing += [
        f"{role} of layer {layer}" for layer in range(sizes.layers) for role in LAYER if not anatomy.has(role, layer)
    ]
    if other or missing:
        raise _unsupported(model, f"it has {other[0]}" if other else f"it has no {missing[0]}")
    rules = any(rule is not None for rule in (*anatomy.windows, *anatomy.rotation_bases))
    if anatomy.is_pre_norm or family.rms_norm or family.terms or rules or sizes.kv_heads != sizes.heads:
        raise _unsupported(model, "its attention or its norms follow another rule")
    sample = np.full(sizes.positions, next(i for i in range(3) if i != anatomy.config.get("pad_token_id")))
    if positions(anatomy, sample).tolist() != list(range(sizes.positions)):
        raise _unsupported(model, "its positions don't count from 0")
    if model.text_rule.prompt:
        raise _unsupported(model, f"its prompt {model.text_rule.prompt!r} is put before every text")
    for name in {model.encoder.activation, model.tops.masked_lm_activation()} - set(ACTIVATIONS):
        raise _unsupported(model, f"its activation is {name}")
    size = 2 * sum(row.count for row in model.parameters if row.role not in UNUSED)
    if size > LARGEST:
        raise _unsupported(
            model, f"its weights take {size / 1e6:,.0f} MB in half precision, the page takes {LARGEST / 1e6:.0f}"
        )


def _tensors(model: Model) -> Iterator[tuple[str, Float16[np.ndarray, "..."]]]:
    """Weights by role, those of layers with their number."""
    anatomy = model.anatomy
    for layer in range(anatomy.known().layers):
        for role in LAYER:
            yield f"{role}.{layer}", _half(model, role, layer)
    for role in EMBEDDINGS + ((TYPES,) if anatomy.has(TYPES) else ()):
        yield role, _half(model, role)
    if "masked_lm" not in anatomy.tasks:
        return
    bias = model.tops.decoder_bias()
    if bias is not None:
        yield "masked_lm.bias", _half(model, bias)
    tied = anatomy.parameter(EMBEDDINGS[0]).stored
    for role in (*TRANSFORM, "masked_lm.decoder"):
        if anatomy.has(role) and anatomy.parameter(role).stored != tied:
            yield role, _half(model, role)


def _half(model: Model, role: str, layer: int | None = None) -> Float16[np.ndarray, "..."]:
    exact = model.encoder.weight(role, layer)
    with np.errstate(over="ignore"):
        half = np.ascontiguousarray(exact, dtype=np.float16)
    if not np.isfinite(half).all():
        raise CheckpointError(
            f"{model.anatomy.parameter(role, layer).name} holds numbers that half precision can't",
            where=model.checkpoint.where,
            advice="`headscope verify` lists NaN and infinity; `headscope view` shows the model from a server",
        )
    return half


def _about(model: Model, vocabulary: dict[str, Any]) -> dict[str, Any]:
    anatomy, sizes, rule = model.anatomy, model.anatomy.known(), model.text_rule
    vocabulary = {**vocabulary, "lower_first": rule.stated and rule.lowercase}
    return {
        "config": {
            "layers": sizes.layers,
            "heads": sizes.heads,
            "d": sizes.d_model,
            "positions": min(sizes.positions, rule.limit or sizes.positions),
            "types": sizes.types,
            "eps": float(anatomy.setting("norm_eps")),
            "activation": str(anatomy.setting("activation")),
            "transform": model.tops.masked_lm_activation(),
            "pooling": model.pooling.mode,
            "width": model.pooling.width or sizes.d_model,
        },
        "vocabulary": vocabulary,
        "mask": model.tokenizer.mask_id,
        "fills": "masked_lm" in anatomy.tasks,
        "model": model.name,
        "name": model_name(model.name),
        "fingerprint": model.fingerprint,
        "anatomy": anatomy_of(model),
    }


def _unsupported(model: Model, reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"the page can't run {model.anatomy.base_class}: {reason}",
        where=model.checkpoint.where,
        advice="the page runs BERT's layers and WordPiece, up to 60 MB; `headscope view` shows others from a server",
    )


EXAMPLES = (
    "She said to [MASK] father that she was ill.",
    "The horse ran away because [MASK] was afraid.",
    "The boys went to school because [MASK] had to learn.",
)
"""Sentences in which silencing one head of the bundled model changes the guess."""
PLAIN = "The animal didn't cross the street because it was too tired."


def typed_page(model: Model) -> tuple[bytes, str]:
    """Make the page of a model.

    Args:
        model: of BERT's form; headscope.page.typed says what the page runs.

    Returns:
        The file's content, and a line that describes it.

    Raises:
        UnsupportedError: the page can't run the model.
        CheckpointError: a weight is not a number, or beyond half precision.
    """
    bundled = model.name == "-"
    content = packed(model)
    name = model_name(model.name)
    parts = [
        inert_element(f"hs-model-{number}", b64encode(content[at : at + CHUNK]))
        for number, at in enumerate(range(0, len(content), CHUNK))
    ]
    first = EXAMPLES[0] if bundled else PLAIN
    whole = page(
        [],
        home="server",
        title=f"{name} · headscope",
        elements=[*parts, inert_element("hs-encoder", script("encoder"))],
        mask=model.tokenizer.mask_token,
        fills="masked_lm" in model.anatomy.tasks,
        model={"bytes": len(content), "text": first, "examples": EXAMPLES if bundled else ()},
    )
    exact = all(row.dtype == "F16" for row in model.parameters)
    rounded = "" if exact else "; its weights are rounded to half precision"
    return whole, f"{name} in a page, {len(whole) / 1e6:,.1f} MB{rounded}; it needs no network and sends nothing"

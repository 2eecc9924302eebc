"""A live model's answers to padding: the same alone and in a padded batch, whatever stands in the padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headscope.errors import InputError
from headscope.heads.distances import relative
from headscope.live.evaluating import device_of, undisturbed
from headscope.results.report import Check, Report
from headscope.verify.torch_side import TorchSide

if TYPE_CHECKING:
    from headscope.checkpoint.tokenizer import Encoded

ALONE, PADDING = 1e-4, 1e-6


def check_live(model: Any, texts: list[str], tokenizer: Any) -> Report:
    """Run texts alone, in a padded batch, and in one with other padding.

    Raises:
        InputError: there is no tokenizer.
    """
    side = TorchSide(model, tokenizer)
    encoded = [side.encode(text, 64) for text in texts[:8]]
    if any(text is None for text in encoded):
        raise InputError(
            "a live model needs a tokenizer",
            where="tokenizer",
            advice="pass tokenizer=transformers.AutoTokenizer.from_pretrained(…)",
        )
    known = [text for text in encoded if text is not None]
    states: list[np.ndarray] = []
    checks = list(padding_checks(side.inner, known, states))
    finite = [bool(np.isfinite(one).all()) for one in states]
    advice = "the precision overflows: load the model in fp32 or bf16"
    checks.append(Check("numbers", "texts with NaN or infinity", float(finite.count(False)), 0.0, "0", advice=advice))
    return Report(side.name, tuple(checks), side.notes)


def padding_checks(model: Any, texts: list[Encoded], states: list[np.ndarray] | None = None) -> Iterator[Check]:
    """Run texts alone, in a padded batch, and in one with other padding.

    Args:
        model: a transformers model.
        texts: their tokens.
        states: a list to add the last hidden states to, alone and padded.
    """
    pad = getattr(model.config, "pad_token_id", None) or 0
    alone = [_states(model, [text], pad)[0] for text in texts]
    together = _states(model, texts, pad)
    other = _states(model, texts, texts[0].ids[len(texts[0]) // 2])
    if states is not None:
        states += [*alone, *together]
    spacing = max(torch.finfo(next(model.parameters()).dtype).eps, 1e-7)
    for name, what, a, limit, advice in (
        ("alone", "a text's states alone and in a padded batch", alone, max(ALONE, 32 * spacing),
         "the mask isn't used, or positions count padding: check the attention mask and position ids"),
        ("padding", "a text's states with other ids in the padding", other, max(PADDING, spacing),
         "attention looks at padding: check that the mask reaches it"),
    ):  # fmt: skip
        apart = [float(relative(y, x).max()) for x, y in zip(a, together, strict=True)]
        usual = "1e-7" if name == "alone" else "0"
        yield Check(name, what, max(apart), limit, usual, text=int(np.argmax(apart)), advice=advice)


def _states(model: Any, texts: list[Encoded], pad: int) -> list[np.ndarray]:
    """The last hidden states of each text in one padded batch."""
    longest = max(map(len, texts))
    device = device_of(model)
    ids = torch.tensor([[*text.ids, *[pad] * (longest - len(text))] for text in texts], device=device)
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts], device=device)
    with undisturbed(model):
        outputs = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    last = outputs.hidden_states[-1].float().cpu().numpy()
    return [states[: len(text)] for states, text in zip(last, texts, strict=True)]

"""The tokens along a trace's axes: ids that went through a word embedding, patches of an image, or positions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from headscope._capture.calls import Forward
from headscope._trace import TokenAxis
from headscope.errors import InputError

Names = Callable[[int], str]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Vocabulary for decoding ids.

    Attributes:
        name: id -> token.
        special: ids of special tokens.
    """

    name: Names
    special: frozenset[int] = frozenset()


def vocabulary(tokenizer: Any) -> Vocabulary:
    """The vocabulary of a tokenizer.

    Args:
        tokenizer: a transformers tokenizer, a tokenizers.Tokenizer, headscope's own, a sequence of tokens, or a mapping
            from id to token. None decodes each id to its number.

    Raises:
        InputError: `tokenizer` is none of these.
    """
    if tokenizer is None:
        return Vocabulary(str)
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        special = frozenset(getattr(tokenizer, "all_special_ids", ()))
        return Vocabulary(lambda number: str(tokenizer.convert_ids_to_tokens(int(number))), special)
    if hasattr(tokenizer, "id_to_token"):
        added: Mapping[int, Any] = getattr(tokenizer, "get_added_tokens_decoder", dict)()
        special = frozenset(number for number, token in added.items() if token.special)
        return Vocabulary(lambda number: str(tokenizer.id_to_token(int(number))), special)
    if isinstance(tokenizer, Sequence) and not isinstance(tokenizer, str):
        return Vocabulary(lambda number: str(tokenizer[number]) if 0 <= number < len(tokenizer) else str(number))
    if isinstance(tokenizer, Mapping):
        return Vocabulary(lambda number: str(tokenizer.get(number, number)))
    if hasattr(tokenizer, "token"):
        return Vocabulary(lambda number: str(tokenizer.token(int(number))))
    raise InputError(
        f"expected a tokenizer, got {type(tokenizer).__name__}",
        where="tokenizer",
        advice="pass a transformers tokenizer, a tokenizers.Tokenizer, or the list of tokens in the order of their ids",
    )


@dataclass(frozen=True, eq=False)
class Axis:
    """The tokens of a whole batch, padding included.

    Attributes:
        ids: (batch, tokens), or None for tokens without ids.
        names: names of tokens without ids.
        segments: (batch, tokens), or None for all 0.
    """

    ids: np.ndarray | None
    names: tuple[str, ...] = ()
    segments: np.ndarray | None = None

    def row(self, index: int, size: int, kept: np.ndarray | None, vocabulary: Vocabulary) -> TokenAxis:
        """The kept tokens of one row of the batch.

        Args:
            index: the row.
            size: number of tokens, padding included.
            kept: (size,) bool; None keeps all.
            vocabulary: decodes the ids.
        """
        at = np.arange(size) if kept is None else np.flatnonzero(kept)
        if self.ids is None:
            names = self.names or tuple(f"[{place}]" for place in range(size))
            ids: list[int] = [-1] * len(at)
            tokens = [names[place] for place in at]
        else:
            row = self.ids[index if len(self.ids) > 1 else 0]
            ids = [int(row[place]) for place in at]
            tokens = [vocabulary.name(token) for token in ids]
        segments = [0] * len(at)
        if self.segments is not None:
            segments = [int(self.segments[index][place]) for place in at]
        return TokenAxis(
            tokens=tuple(tokens),
            ids=tuple(ids),
            segments=tuple(segments),
            special=tuple(token in vocabulary.special for token in ids),
            words=(None,) * len(at),
            spans=(None,) * len(at),
        )


def part(axis: TokenAxis, start: int, stop: int) -> TokenAxis:
    """The tokens of an axis from `start` to `stop`."""
    return TokenAxis(**{name: getattr(axis, name)[start:stop] for name in axis.__dataclass_fields__})


def joined(axes: Sequence[TokenAxis]) -> TokenAxis:
    """Concatenate axes."""
    if len(axes) == 1:
        return axes[0]
    names = TokenAxis.__dataclass_fields__
    return TokenAxis(**{name: tuple(value for axis in axes for value in getattr(axis, name)) for name in names})


def with_extras(axis: TokenAxis, extras: tuple[str, ...]) -> TokenAxis:
    """Append keys that are not tokens to a key axis."""
    n = len(extras)
    return TokenAxis(
        tokens=axis.tokens + extras,
        ids=axis.ids + (-1,) * n,
        segments=axis.segments + (0,) * n,
        special=axis.special + (True,) * n,
        words=axis.words + (None,) * n,
        spans=axis.spans + (None,) * n,
    )


def axis_of(forward: Forward, before: int, batch: int, size: int, cross: bool) -> Axis:
    """The tokens that an axis of a forward pass stands for.

    Args:
        forward: the forward pass.
        before: number of attention calls before the stack's first one: the stack's own tokens are the last that went
            through an embedding before it.
        batch: number of rows.
        size: number of tokens along the axis.
        cross: True to prefer the first matching tokens, for the keys of cross-attention.
    """
    fits = [ids for at, ids in forward.embedded if at <= before and _fits(ids, batch, size)]
    fits = fits[::-1] if not cross else fits
    ids = fits[0] if fits else _ids_among_arguments(forward, batch, size)
    if ids is not None:
        if ids.dim() == 1:
            ids = ids[None]
        if ids.shape != (len(ids), size) and ids.shape[0] == size:
            ids = ids.t()
        return Axis(ids.cpu().numpy(), segments=_segments(forward, tuple(ids.shape)))
    return Axis(None, _patches(forward, size))


def _fits(ids: torch.Tensor, batch: int, size: int) -> bool:
    shape = tuple(ids.shape)
    return shape in ((batch, size), (1, size), (size, batch)) or (batch == 1 and shape == (size,))


def _arguments(forward: Forward) -> list[torch.Tensor]:
    return [value for value in (*forward.args, *forward.kwargs.values()) if isinstance(value, torch.Tensor)]


def _ids_among_arguments(forward: Forward, batch: int, size: int) -> torch.Tensor | None:
    """The first integer argument of this shape that isn't named like a mask, positions, types or labels."""
    named = [value for name, value in forward.kwargs.items() if not re.search("mask|position|type|segment|label", name)]
    for value in (*forward.args, *named):
        if isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32) and _fits(value, batch, size):
            return value
    return None


def _segments(forward: Forward, shape: tuple[int, ...]) -> np.ndarray | None:
    types = forward.kwargs.get("token_type_ids")
    if isinstance(types, torch.Tensor) and tuple(types.shape) == shape:
        segments: np.ndarray = types.cpu().numpy()
        return segments
    return None


def _patches(forward: Forward, size: int) -> tuple[str, ...]:
    """Names of an image's patches, row by row, after the learned tokens before them; () if there is no image."""
    side = _patch_side(forward.module)
    images = [value for value in _arguments(forward) if value.dim() == 4 and value.is_floating_point()]
    if side is None or not images:
        return ()
    rows, columns = images[0].shape[-2] // side, images[0].shape[-1] // side
    before = _tokens_before_patches(forward.module)
    if size != len(before) + rows * columns:
        return ()
    return (*before, *(f"patch {row},{column}" for row in range(rows) for column in range(columns)))


def _tokens_before_patches(module: nn.Module) -> tuple[str, ...]:
    """Names of the learned tokens before the patches, in the order of transformers' vision models."""
    parameters = {name.rpartition(".")[2]: parameter for name, parameter in module.named_parameters()}
    names = []
    if "cls_token" in parameters or "class_embedding" in parameters:
        names.append("[CLS]")
    if "distillation_token" in parameters:
        names.append("[DIST]")
    if "register_tokens" in parameters:
        names += [f"[register {index}]" for index in range(parameters["register_tokens"].shape[1])]
    return tuple(names)


def _patch_side(module: nn.Module) -> int | None:
    """Side of a patch in pixels, from the convolution that cuts an image into patches; None if there is none."""
    for part in module.modules():
        if (
            isinstance(part, nn.Conv2d)
            and part.kernel_size == part.stride
            and part.kernel_size[0] == part.kernel_size[1] > 1
        ):
            return int(part.kernel_size[0])
    return None

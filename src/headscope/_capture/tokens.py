"""The tokens along a trace's axes: ids that went through an embedding, patches of an image, or positions."""

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
    """How ids are spelled.

    Attributes:
        name: id -> piece.
        special: ids that the tokenizer adds by itself.
    """

    name: Names
    special: frozenset[int] = frozenset()


def vocabulary(tokenizer: Any) -> Vocabulary:
    """How a tokenizer spells ids.

    Args:
        tokenizer: a transformers tokenizer, a tokenizers.Tokenizer, headscope's own, a sequence of pieces, or a mapping
            from id to piece. None spells an id as its number.

    Raises:
        InputError: it is none of these.
    """
    if tokenizer is None:
        return Vocabulary(str)
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        special = frozenset(getattr(tokenizer, "all_special_ids", ()))
        return Vocabulary(lambda one: str(tokenizer.convert_ids_to_tokens(int(one))), special)
    if hasattr(tokenizer, "id_to_token"):
        added: Mapping[int, Any] = getattr(tokenizer, "get_added_tokens_decoder", dict)()
        special = frozenset(one for one, token in added.items() if token.special)
        return Vocabulary(lambda one: str(tokenizer.id_to_token(int(one))), special)
    if isinstance(tokenizer, Sequence) and not isinstance(tokenizer, str):
        return Vocabulary(lambda one: str(tokenizer[one]) if 0 <= one < len(tokenizer) else str(one))
    if isinstance(tokenizer, Mapping):
        return Vocabulary(lambda one: str(tokenizer.get(one, one)))
    if hasattr(tokenizer, "token"):
        return Vocabulary(lambda one: str(tokenizer.token(int(one))))
    raise InputError(
        f"{type(tokenizer).__name__} is no tokenizer that capture can ask for pieces",
        where="tokenizer",
        advice="pass a transformers tokenizer, a tokenizers.Tokenizer, or the list of pieces in the order of their ids",
    )


@dataclass(frozen=True, eq=False)
class Axis:
    """The tokens of a whole batch before padding is cut.

    Attributes:
        ids: (batch, tokens), or None for tokens that have none.
        names: what tokens without ids are called.
        segments: (batch, tokens) or None for all 0.
    """

    ids: np.ndarray | None
    names: tuple[str, ...] = ()
    segments: np.ndarray | None = None

    def row(self, index: int, size: int, kept: np.ndarray | None, vocabulary: Vocabulary) -> TokenAxis:
        """The tokens of one row of the batch, those that are kept."""
        at = np.arange(size) if kept is None else np.flatnonzero(kept)
        if self.ids is None:
            names = self.names or tuple(f"[{place}]" for place in range(size))
            ids: list[int] = [-1] * len(at)
            tokens = [names[place] for place in at]
        else:
            one = self.ids[index if len(self.ids) > 1 else 0]
            ids = [int(one[place]) for place in at]
            tokens = [vocabulary.name(token) for token in ids]
        segments = [0] * len(at)
        if self.segments is not None:
            segments = [int(self.segments[index][place]) for place in at]
        return TokenAxis(
            tokens=tuple(tokens),
            ids=tuple(ids),
            segments=tuple(segments),
            special=tuple(one in vocabulary.special for one in ids),
            words=(None,) * len(at),
            spans=(None,) * len(at),
        )


def part(axis: TokenAxis, start: int, stop: int) -> TokenAxis:
    """Some neighbouring tokens of an axis."""
    return TokenAxis(**{name: getattr(axis, name)[start:stop] for name in axis.__dataclass_fields__})


def joined(axes: Sequence[TokenAxis]) -> TokenAxis:
    """Axes one after the other."""
    if len(axes) == 1:
        return axes[0]
    names = TokenAxis.__dataclass_fields__
    return TokenAxis(**{name: tuple(one for axis in axes for one in getattr(axis, name)) for name in names})


def with_extras(axis: TokenAxis, extras: tuple[str, ...]) -> TokenAxis:
    """A key axis with keys that are no tokens at its end."""
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
    """The tokens that an axis of this size stands for.

    Args:
        before: how many calls of attention had been made when the stack was first called: its own tokens went
            through the embedding last before that.
        cross: whether to look for tokens that went through an embedding earlier than that.
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
    return [one for one in (*forward.args, *forward.kwargs.values()) if isinstance(one, torch.Tensor)]


def _ids_among_arguments(forward: Forward, batch: int, size: int) -> torch.Tensor | None:
    """Integer arguments of that shape that are not called masks, positions, types or labels: what a model embeds."""
    named = [one for name, one in forward.kwargs.items() if not re.search("mask|position|type|segment|label", name)]
    for one in (*forward.args, *named):
        if isinstance(one, torch.Tensor) and one.dtype in (torch.int64, torch.int32) and _fits(one, batch, size):
            return one
    return None


def _segments(forward: Forward, shape: tuple[int, ...]) -> np.ndarray | None:
    found = forward.kwargs.get("token_type_ids")
    if isinstance(found, torch.Tensor) and tuple(found.shape) == shape:
        segments: np.ndarray = found.cpu().numpy()
        return segments
    return None


def _patches(forward: Forward, size: int) -> tuple[str, ...]:
    """Names of an image's patches, row by row, after the tokens that stand before them; () where it is no image."""
    side = _patch_side(forward.module)
    images = [one for one in _arguments(forward) if one.dim() == 4 and one.is_floating_point()]
    if side is None or not images:
        return ()
    rows, columns = images[0].shape[-2] // side, images[0].shape[-1] // side
    before = _tokens_before_patches(forward.module)
    if size != len(before) + rows * columns:
        return ()
    return (*before, *(f"patch {row},{column}" for row in range(rows) for column in range(columns)))


def _tokens_before_patches(module: nn.Module) -> tuple[str, ...]:
    """The learned tokens that stand before the patches, in the order of transformers' vision models."""
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
    for one in module.modules():
        if (
            isinstance(one, nn.Conv2d)
            and one.kernel_size == one.stride
            and one.kernel_size[0] == one.kernel_size[1] > 1
        ):
            return int(one.kernel_size[0])
    return None

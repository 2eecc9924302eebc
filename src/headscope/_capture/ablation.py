"""Silence heads of a live model: `with hs.ablate(model, {(3, 5): "zero"}): model(**inputs)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from headscope._capture.calls import Call, Forward, Stack
from headscope._capture.captured import Watching
from headscope.errors import InputError

WAYS = ("zero", "mean")


class Silencer:
    """A session's listener that records nothing and silences heads of one stack."""

    def __init__(self, stack: str, heads: Mapping[tuple[int, int], str]) -> None:
        self.stack = stack
        self.heads = heads
        self.met: set[int] = set()

    def begin(self, forward: Forward) -> None:
        """A forward begins."""
        self.met.clear()

    def end(self, forward: Forward) -> None:
        """A forward is over: every layer must have been there.

        Raises:
            InputError: a layer never ran.
        """
        missing = sorted({layer for layer, _ in self.heads} - self.met)
        if missing:
            raise InputError(
                f"layer {missing[0]} did not run: nothing was silenced there",
                where=f"ablate, stack {self.stack}",
                advice=f"the layers that ran are {sorted(self.met)}",
            )

    def drop(self, forward: Forward) -> None:
        """It raised."""

    def wants(self, stack: Stack, layer: int) -> bool:
        """Nothing is recorded."""
        return False

    def take(self, forward: Forward, call: Call) -> None:
        """Nothing is recorded."""

    def silences(self, stack: Stack, layer: int) -> dict[int, str]:
        """The heads of this layer, and how."""
        if self.stack not in (stack.name, stack.base, f"{stack.base}.{stack.call + 1}"):
            return {}
        self.met.add(layer)
        return {head: way for (at, head), way in self.heads.items() if at == layer}


class Ablation(Watching):
    """Heads silenced while the block is open.

    Attributes:
        heads: (layer, head) -> zero or mean.
        stack: which attention of the model they are in.
    """

    def __init__(self, model: nn.Module, stack: str | None, heads: Mapping[tuple[int, int], str]) -> None:
        self._silencer = Silencer("", heads)
        super().__init__(model, self._silencer, strict=False)
        self.heads = heads
        self.stack = self._silencer.stack = self._choose(stack)
        self._check()

    def _choose(self, stack: str | None) -> str:
        names = self.plan.names
        if stack is None and len(names) == 1:
            return names[0]
        if stack in names or (stack or "").rpartition(".")[0] in names:
            return str(stack)
        raise InputError(
            f"{type(self.model).__name__} has {len(names)} stacks of attention: {', '.join(names)}"
            + ("" if stack is None else f"; there is none called {stack!r}"),
            where="ablate",
            advice=f'say which: hs.ablate(model, heads, stack="{names[0]}")',
        )

    def _check(self) -> None:
        base = self.stack if self.stack in self.plan.names else self.stack.rpartition(".")[0]
        of = {self.plan.number(module): module for module in self.plan.members(base)}
        layers = sorted(of)
        repeated = len(of) < (_setting(of[layers[0]], self.model, "num_hidden_layers") or 0)
        for layer, head in self.heads:
            if layer < 0 or (layer not in layers and not repeated):
                raise InputError(
                    f"there is no layer {layer}: stack {self.stack} has layers {layers[0]} to {layers[-1]}",
                    where="ablate",
                    advice="layers count from 0",
                )
            heads = heads_of(of.get(layer, of[layers[0]]), self.model)
            if head < 0 or (heads is not None and head >= heads):
                raise InputError(
                    f"there is no head {head}: layer {layer} has {heads}",
                    where="ablate",
                    advice=f"heads count from 0, so the last one is {(heads or 0) - 1}",
                )


def heads_of(module: nn.Module, model: nn.Module) -> int | None:
    """How many query heads an attention module has, as far as it or its config says."""
    for name in ("num_heads", "num_attention_heads", "n_heads", "n_head"):
        found = getattr(module, name, None)
        if isinstance(found, int):
            return found
    return _setting(module, model, "num_attention_heads")


def _setting(module: nn.Module, model: nn.Module, name: str) -> int | None:
    for owner in (module, model):
        found = getattr(getattr(owner, "config", None), name, None)
        if isinstance(found, int):
            return found
    return None


def ablate(
    model: nn.Module,
    heads: Mapping[tuple[int, int], str] | Iterable[tuple[int, int]],
    *,
    stack: str | None = None,
) -> Ablation:
    """Silence heads of a live model while the block is open; traces captured in it say so in `trace.ablated`.

    Args:
        model: as in hs.capture.
        heads: (layer, head) -> "zero": the head's context is 0; or "mean": every query gets the mean of the head's
            contexts over the text, padding left out. Without ways, zero.
        stack: which attention, where the model has several: encoder, decoder, cross, …. Where a layer attends more than
            once each time it runs, `self` is all of its calls and `self.2` the second.

    Raises:
        InputError: a layer, head or stack that isn't there, or another way.
        UnsupportedError: attention that can't be seen.
    """
    ways = dict(heads) if isinstance(heads, Mapping) else dict.fromkeys(heads, "zero")
    for place, way in ways.items():
        if not (isinstance(place, tuple) and len(place) == 2 and all(isinstance(one, int) for one in place)):
            raise InputError(f"{place!r:.40} names no head", where="ablate", advice="name (layer, head): {(3, 5)}")
        if way not in WAYS:
            raise InputError(f"a head can't be silenced by {way!r}", where=f"head {place}", advice="use zero or mean")
    if not ways:
        raise InputError("no head to silence", where="ablate", advice='name some: {(3, 5): "zero"}')
    return Ablation(model, stack, ways)

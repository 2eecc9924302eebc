"""Silence heads of a live model, or give them maps: `with hs.ablate(model, {(3, 5): "zero"}): model(**inputs)`."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from headscope.attention.patterns import Heads, Way, by_head, checked_way, name_of
from headscope.checkpoint.json_text import few
from headscope.errors import InputError
from headscope.live.calls import Consumer, Forward
from headscope.live.captured import Watching
from headscope.live.plan.stacks import Stack
from headscope.live.sessions import MOST_LISTED
from headscope.settings import named


class _Silencer(Consumer):
    """Silences heads of one stack, or gives them other maps, and records nothing.

    Attributes:
        stack: the stack's name.
        heads: (layer, head) -> way.
        reads: True if the masks of self-attention are read, too: a mean in cross-attention leaves out padding.
    """

    silencing = True

    def __init__(self, heads: Mapping[tuple[int, int], Way]) -> None:
        self.stack = ""
        self.heads = heads
        self.follows = any(name_of(way) != "zero" for way in heads.values())  # tokens tell which queries are padding
        self.reads = False
        self.met: set[int] = set()

    def wants(self, stack: Stack, layer: int) -> bool:
        """Return True if it needs to know what is padding there; it records nothing."""
        return self.reads and not stack.cross

    def begin(self, forward: Forward) -> None:
        """Start a forward pass."""
        self.met.clear()

    def end(self, forward: Forward) -> None:
        """Check that every layer with silenced heads ran.

        Raises:
            InputError: a layer didn't run.
        """
        missing = sorted({layer for layer, _ in self.heads} - self.met)
        if missing:
            raise InputError(
                f"layer {missing[0]} did not run, so none of its heads were silenced",
                where=f"ablate, stack {self.stack}",
                advice=f"name layers that run: {sorted(self.met)}",
            )

    def silences(self, stack: Stack, layer: int) -> dict[int, Way]:
        """The silenced heads of a layer: head -> way."""
        if self.stack not in (stack.name, stack.base, f"{stack.base}.{stack.call + 1}"):
            return {}
        self.met.add(layer)
        return {head: way for (at, head), way in self.heads.items() if at == layer}


class Ablation(Watching):
    """Silences heads, or gives them other maps, while its block is open.

    Attributes:
        heads: (layer, head) -> way.
        stack: name of the stack that the heads belong to.
    """

    def __init__(self, model: nn.Module, stack: str | None, heads: Mapping[tuple[int, int], Way]) -> None:
        self._silencer = _Silencer(heads)
        super().__init__(model, self._silencer, strict=False)
        self.heads = heads
        self.stack = self._silencer.stack = self._choose(stack)
        crosses = any(self.plan.stacks[id(module)].cross for module in self._modules().values())
        self._silencer.reads = crosses and "mean" in map(name_of, heads.values())
        self._check()

    def __repr__(self) -> str:
        heads = [f"{layer}.{head} ({name_of(way)})" for (layer, head), way in sorted(self.heads.items())]
        return f"ablation of {type(self.model).__name__}, stack {self.stack}: {few(heads, MOST_LISTED)}"

    def _choose(self, stack: str | None) -> str:
        names = self.plan.names
        if stack is None and len(names) == 1:
            return names[0]
        if stack in names or (stack or "").rpartition(".")[0] in names:
            return str(stack)
        raise InputError(
            f"{type(self.model).__name__} has {len(names)} stacks of attention: {', '.join(names)}"
            if stack is None
            else f"there is no stack {stack!r}: the stacks of {type(self.model).__name__} are {', '.join(names)}",
            where="ablate",
            advice=f'name one of them: hs.ablate(model, heads, stack="{names[0]}")',
        )

    def _modules(self) -> dict[int, nn.Module]:
        """The attention modules of the stack, by layer."""
        base = self.stack if self.stack in self.plan.names else self.stack.rpartition(".")[0]
        modules = [module for _, module in self.plan.modules if id(module) in self.plan.stacks]
        return {self.plan.number(x): x for x in modules if self.plan.stacks[id(x)].name == base}

    def every_head(self) -> list[tuple[int, int]]:
        """All heads of the stack.

        Raises:
            InputError: neither a module nor its config says how many heads it has.
        """
        counts = {layer: heads_of(module, self.model) for layer, module in sorted(self._modules().items())}
        if not all(counts.values()):
            raise InputError(
                "the attention modules don't say how many heads they have",
                where=type(self.model).__name__,
                advice="name the heads: heads=[(0, 0), …]",
            )
        return [(layer, head) for layer, count in counts.items() for head in range(count or 0)]

    def _check(self) -> None:
        modules = self._modules()
        layers = sorted(modules)
        looped = {attention for readers in self.plan.looped.values() for attention, _ in readers}
        repeated = len(modules) < (_setting(modules[layers[0]], self.model, "num_hidden_layers") or 0)
        repeated |= any(id(module) in looped for module in modules.values())  # how often is known when it has run
        for layer, head in self.heads:
            if layer < 0 or (layer not in layers and not repeated):
                raise InputError(
                    f"there is no layer {layer}: stack {self.stack} has layers {layers[0]} to {layers[-1]}",
                    where="ablate",
                    advice="layers count from 0",
                )
            heads = heads_of(modules.get(layer, modules[layers[0]]), self.model)
            if head < 0 or (heads is not None and head >= heads):
                raise InputError(
                    f"there is no head {head}: layer {layer} has {heads} heads",
                    where="ablate",
                    advice=f"heads count from 0, so the last one is {(heads or 0) - 1}",
                )


def heads_of(module: nn.Module, model: nn.Module) -> int | None:
    """Number of query heads of an attention module, from its attributes or its config; None if neither has it."""
    for name in ("num_heads", "num_attention_heads", "n_heads", "n_head"):
        heads = getattr(module, name, None)
        if isinstance(heads, int):
            return heads
    return _setting(module, model, "num_attention_heads")


def _setting(module: nn.Module, model: nn.Module, name: str) -> int | None:
    for owner in (module, model):
        value = getattr(getattr(owner, "config", None), name, None)
        if isinstance(value, int):
            return value
    return None


@named
def ablate(model: nn.Module, heads: Heads, *, stack: str | None = None) -> Ablation:
    """Silence heads of a live model, or give them another map, while the block is open.

        with hs.ablate(model, {(3, 5)}), hs.capture(model) as captured:
            model(**inputs)
        captured.trace.ablated          # frozenset({(3, 5)})

        with hs.ablate(model, {(3, 5): "uniform"}), hs.capture(model) as captured:
            model(**inputs)
        captured.trace.swapped          # {(3, 5): "uniform"}

    Args:
        model: a live model, as in hs.capture.
        heads: the heads, as (layer, head) counted from 0, or a mapping from each to its way. "zero" (the default) sets
            the head's context to 0; "mean" gives every query the mean of the head's contexts over the text, without
            padding: in cross-attention, what the self-attention over the same queries hides. The others replace the
            head's weights, and its context is map @ V: "uniform", the same weight on every key that a query sees;
            "shuffle", its weights permuted over these keys ("shuffle:1", "shuffle:2", … are other permutations);
            "identity", each query at itself; an array of (queries, keys) for the text without padding; or a callable,
            which is given the head's weights of one text and returns such an array. See
            headscope.attention.patterns.
        stack: the stack that the heads belong to, required if the model has several: encoder, decoder, cross, …. If a
            layer attends more than once each time it runs, `self` means all of its calls and `self.2` the second.

    Returns:
        A context manager; traces captured in its block list the heads in `trace.ablated` and `trace.swapped`.

    Raises:
        InputError: a layer, head or stack doesn't exist, or there is no such way; when the model runs, a map that
            doesn't fit the text.
        UnsupportedError: the model's attention can't be captured.
    """
    ways = by_head(heads)
    if not ways:
        raise InputError("no heads to silence", where="ablate", advice='name at least one: {(3, 5): "zero"}')
    return Ablation(model, stack, {place: checked_way(way, f"head {place}") for place, way in ways.items()})

"""Follow tokens through a forward pass, operator by operator, from the lookup of their ids to queries and keys.

While a pass is followed, its thread carries a second dispatch key (headscope.live.seeing.operators explains the first).
Operators that have a rule in `sources` have a kernel under it. It runs them as before; then the tokens
in their results are worked out from those in their arguments. So a token has the name of the id that was looked up for
it, wherever the model has moved it since, and a place that can't be followed has no name.

Blocks of library models are followed once, and known from then on: the classes of PyTorch and transformers move tokens
in the same way whenever they get arguments of the same kind. So all that matters of a block is noted when it is
followed: the tokens of its attention's queries and keys, and those in its output. When it runs again with the same
tokens, in tensors of the same shapes, its operators are not followed. A block that has anybody else's code in it, as a
class, a function or a hook, is always followed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from headscope.live.genuine import globally_hooked, has_foreign_hooks, own_settings, run_as_shipped, undisturbed
from headscope.live.names.lookups import named_tensors
from headscope.live.names.sources import NOTHING, Calls, Operator, Sources, followed_operators
from headscope.live.plan.classes import LIBRARIES
from headscope.live.progress import is_plain
from headscope.live.seeing.operators import FOLLOW_KEY, FOLLOW_KEY_NAME, Kernels, Unwatched, follow, followed

if TYPE_CHECKING:
    from headscope.live.calls import Forward
    from headscope.live.names.axes import Followed
    from headscope.live.names.facts import Follower
    from headscope.live.names.lookups import Tables
    from headscope.live.plan.stacks import Plan


BELOW: Any = torch._C._dispatch_keyset_full_after(FOLLOW_KEY)


class _Following(threading.local):
    """The forward pass that is followed in this thread, what is known of its tensors, and the block that runs in it."""

    forward: Forward | None = None
    follower: Follower | None = None
    run: _BlockRun | None = None


STATE = _Following()

FOLLOWED = Kernels(FOLLOW_KEY_NAME)


def install() -> None:
    """Let the tokens be followed through each operator registered so far."""
    FOLLOWED.install(lambda names: [(one.op, partial(_run_and_note, one)) for one in followed_operators(names)])


def _run_and_note(operator: Operator, keys: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator, and note the tokens in its result."""
    follower = STATE.follower
    if follower is None or not followed():
        follow(False)  # on in a thread that another one started while it was followed
        return _run(operator, keys, args, kwargs)
    follow(False)
    try:
        before = follower.before_writing(args) if operator.writes else None
        result = _run(operator, keys, follower.replaced(operator, args), kwargs)
        follower.note(operator, args, result, before)
    finally:
        follow(not follower.closed)
    return result


def _run(operator: Operator, keys: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator as it would have run."""
    for at in operator.tensors:
        if at < len(args) and isinstance(args[at], (int, float, complex)):
            with torch._C.DisableTorchFunction():
                return operator.op._op(*args, **kwargs)  # unlike a redispatch, a call takes numbers for tensors
    return operator.op.redispatch(keys & BELOW, *args, **kwargs)


def begin(forward: Forward, tables: Tables, follower: Follower) -> None:
    """Follow a forward pass from here on, or the one that it is part of."""
    with Unwatched():
        if STATE.follower is None:
            STATE.forward, STATE.follower = forward, follower
            follower.begin(forward, tables)
        else:
            STATE.follower.join(forward, tables)
    forward.tokens = STATE.follower.tokens
    follow(True)


def end(forward: Forward, *, remember: bool) -> None:
    """Stop following a forward pass that has ended, and remember its output if a later one may attend to it."""
    if STATE.forward is forward:
        follow(False)
        if STATE.follower is not None:
            with Unwatched():
                STATE.follower.end(forward.output if remember else None)
        STATE.forward = STATE.follower = STATE.run = None


def tokens_of(query: torch.Tensor, key: torch.Tensor | None, batch: int | None = 0, tokens: int = 2) -> Followed:
    """The tokens of a call's queries and of its keys.

    Args:
        query, key: the queries and keys, or what they were made of; None for keys of which nothing is known.
        batch, tokens: their axes of rows, None if they have none, and of tokens.
    """
    follower, run = STATE.follower, STATE.run
    if follower is None:
        return None, None
    if run is not None and run.known is not None:
        return run.call(0 if key is None else key.shape[tokens])
    with Unwatched():
        of_keys = None if key is None else follower.numbers(key, batch, tokens)
        numbers = follower.numbers(query, batch, tokens), of_keys
    if run is not None:
        run.calls.append(numbers)
    return numbers


def attended(output: torch.Tensor, query: torch.Tensor, axes: Sequence[int]) -> None:
    """Note that an attention's output stands for the tokens of its queries. See Follower.attended."""
    if STATE.follower is not None and (STATE.run is None or STATE.run.known is None):
        with Unwatched():
            STATE.follower.attended(output, query, axes)


CONSTANTS = (bool, int, float, str, torch.dtype, type(None))


@dataclass(eq=False)
class _BlockRun:
    """A block that is running.

    Attributes:
        module: the block.
        key: all that its way with tokens depends on.
        inputs: its arguments that have tokens, with their sources.
        lookups: number of times that ids had been looked up before.
        valued: what the follower's `valued` was before.
        known: its way with tokens, if it is known; else None.
        cached: True if it was given a cache.
        calls: the tokens of its calls so far.
    """

    module: nn.Module
    key: Any
    inputs: list[tuple[torch.Tensor, Sources]]
    lookups: int
    valued: bool
    known: tuple[Calls, list[Sources | None]] | None
    cached: bool
    calls: list[Followed] = field(default_factory=list)

    def call(self, keys: int) -> Followed:
        """The tokens of the next call in a known block, with this number of keys."""
        assert self.known is not None
        at, calls = len(self.calls), self.known[0]
        queries, of_keys = calls[at] if at < len(calls) else (None, None)
        if isinstance(of_keys, bool):
            assert queries is not None
            of_keys = np.pad(queries, ((0, 0), (keys - queries.shape[1], 0)), constant_values=NOTHING)
        self.calls.append((queries, of_keys))
        return queries, of_keys

    def learned(self, follower: Follower, output: Any) -> tuple[Calls, list[Sources | None]] | None:
        """The block's way with tokens, after it has been followed; None if it depends on more than its arguments."""
        if len(follower.lookups) > self.lookups or any(follower.known(x) is not was for x, was in self.inputs):
            return None
        outputs = [follower.known(x) for _, x in named_tensors("", output, 1)]
        if follower.valued:  # the block may do so, as long as it leaves the tokens at their places
            before = [None, *(sources for _, sources in self.inputs)]
            places = [follower.numbers(x, 0, 1) for x, _ in self.inputs if x.dim() == 3]
            asked = [numbers for call in self.calls for numbers in call if numbers is not None and (numbers >= 0).any()]
            if not all(any(sources is known for known in before) for sources in outputs) or not all(
                any(known is not None and np.array_equal(numbers, known) for known in places) for numbers in asked
            ):
                return None
        calls: Calls = []
        for queries, keys in self.calls:
            grown = 0 if queries is None or keys is None else keys.shape[1] - queries.shape[1]
            if queries is None or keys is None or not grown or not self.cached:
                calls.append((queries, keys))
            elif grown > 0 and np.array_equal(keys[:, grown:], queries) and (keys[:, :grown] == NOTHING).all():
                calls.append((queries, True))
            else:
                return None
        return calls, outputs


Blocks = dict[nn.Module, list[nn.Module]]
"""Each block of a model with its modules, itself first."""


def begin_block(blocks: Blocks, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note that a block begins to run, and don't follow its operators if they are known (a forward pre-hook)."""
    follower = STATE.follower
    if follower is None or follower.replace is not None or STATE.run is not None or not followed():
        return
    if globally_hooked() or not undisturbed():
        return
    if module not in follower.settings:
        follower.settings[module] = _settings(blocks[module], follower.shipped)
    settings = follower.settings[module]
    if settings is None or any(map(has_foreign_hooks, blocks[module])):
        return
    inputs: list[tuple[torch.Tensor, Sources]] = []
    try:
        key = settings, *(_key(x, follower, inputs) for x in (args, kwargs))
    except LookupError:
        return
    cached = any(hasattr(x, "get_seq_length") for x in (*args, *kwargs.values()))
    known = follower.memory.blocks.get(key)
    STATE.run = _BlockRun(module, key, inputs, len(follower.lookups), follower.valued, known, cached)
    follower.valued = False
    follow(known is None)


def end_block(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """Note that a block has run (a forward hook)."""
    run, follower = STATE.run, STATE.follower
    if run is None or run.module is not module or follower is None:
        return
    STATE.run = None
    follow(True)
    if output is not None and run.known is not None:
        for (_, x), sources in zip(named_tensors("", output, 1), run.known[1], strict=False):
            if sources is not None:
                follower.put(x, sources)
    elif output is not None and (learned := run.learned(follower, output)) is not None:
        follower.memory.blocks[run.key] = learned
        follower.valued = False
    follower.valued |= run.valued


def _settings(modules: list[nn.Module], shipped: dict[tuple[type, ...], bool]) -> tuple[Any, ...] | None:
    """A block's modules with their classes and all settings; None if anybody else's code may run in it.

    That can be a method, a function or an object.

    Args:
        modules: the modules.
        shipped: the classes of blocks of this pass, and whether they run as shipped.
    """
    settings: list[tuple[Any, ...]] = []
    for inside in modules:
        if (own := own_settings(inside)) is None:
            return None
        settings.append((weakref.ref(inside), type(inside), *own))
    classes = tuple(dict.fromkeys(map(type, modules)))
    if classes not in shipped:
        shipped[classes] = run_as_shipped(*classes)
    return tuple(settings) if shipped[classes] else None


def blocks_of(plan: Plan) -> Blocks:
    """The blocks of a model with attention.

    A block is an element of a list of modules, the outermost one, if all in it are of PyTorch or transformers.
    """
    found: Blocks = {}
    modules, after = plan.modules, 0
    for at, (path, block) in enumerate(modules):
        if at < after or not path.rpartition(".")[2].isdigit():
            continue
        prefix = path + "."
        stop = next((n for n in range(at + 1, len(modules)) if not modules[n][0].startswith(prefix)), len(modules))
        inside = [module for _, module in modules[at:stop]]
        libraries = all(type(module).__module__.startswith(LIBRARIES) for module in inside)
        if libraries and any(id(module) in plan.paths for module in inside):
            found[block] = inside
            after = stop
    return found


def _key(x: Any, follower: Follower, inputs: list[tuple[torch.Tensor, Sources]]) -> Any:
    """The facts of an argument on which a block's way with tokens depends.

    Raises:
        LookupError: it can't be told.
    """
    if isinstance(x, torch.Tensor):
        if not is_plain(x) or type(x) not in (torch.Tensor, nn.Parameter):
            raise LookupError
        sources = follower.known(x)
        if sources is None:
            return x.shape, x.dtype
        inputs.append((x, sources))
        return id(sources), x.shape, x.dtype
    if isinstance(x, CONSTANTS):
        return x
    if isinstance(x, (list, tuple)):
        return tuple([_key(part, follower, inputs) for part in x])
    if isinstance(x, Mapping):
        return tuple([(name, _key(part, follower, inputs)) for name, part in x.items()])
    if hasattr(x, "get_seq_length"):
        return type(x), bool(x.get_seq_length())
    raise LookupError

"""transformers: every attention function of the interface, looked on while it runs.

Models look their attention function up by the name in their config: sdpa, flash_attention_2, …, or use the
`eager_attention_forward` of their modeling file. While a capture is open, each of these is replaced in its table by one
that calls it with exactly the same arguments and hands over what it saw. Configs, masks and the choice of
implementation are the model's own and are not touched.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache, wraps
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from headscope.capture.calls import Call, Forward, Stack
from headscope.capture.masks import Given, Rules
from headscope.capture.sessions import LOCK, Session, covering, silence, silenced_heads
from headscope.errors import UnsupportedError
from headscope.kernels import KernelWatch, attend_with_lse

OWN_SOFTMAX = {
    "softmax",
    "Softmax",
    "logsumexp",
    "scaled_dot_product_attention",
    "multi_head_attention_forward",
    "_flash_attention_forward",
}
"""Names that code refers to when it computes attention by itself."""

WAY_OUT = (
    "capture a part of it that goes through transformers' attention interface (hs.capture(model.that_part)), use a "
    "relative that does, or ask the model itself: model(..., output_attentions=True)"
)


@cache
def names_used(cls: type) -> frozenset[str]:
    """The names that a class's own code refers to, that of its parents included where it isn't overridden."""
    names: set[str] = set()
    for attribute in {name for base in cls.__mro__ if base not in (nn.Module, object) for name in vars(base)}:
        function = inspect.unwrap(value) if callable(value := getattr(cls, attribute, None)) else None
        function = getattr(function, "__func__", function)
        if isinstance(function, FunctionType) and not function.__module__.startswith("torch.nn"):
            names |= set(_names_of(function.__code__))
    return frozenset(names)


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)


def _is_model(cls: type) -> bool:
    transformers = sys.modules.get("transformers")
    return transformers is not None and issubclass(cls, transformers.PreTrainedModel)


def uses_interface(cls: type) -> bool:
    """Whether a module's class looks its attention function up in the interface."""
    return not _is_model(cls) and "ALL_ATTENTION_FUNCTIONS" in names_used(cls)


def _may_be_attention(cls: type) -> bool:
    named = re.search("att(ention|n)", cls.__name__, re.IGNORECASE) is not None
    return named and not cls.__module__.startswith("torch.") and not _is_model(cls)


def computes_its_own(cls: type) -> bool:
    """Whether a module's class computes attention by itself, out of sight."""
    if not _may_be_attention(cls):
        return False
    return not uses_interface(cls) and not calls_sdpa(cls) and bool(OWN_SOFTMAX & names_used(cls))


def calls_sdpa(cls: type) -> bool:
    """Whether an attention class calls PyTorch's scaled_dot_product_attention by itself, as BERT's did in 4.57."""
    if not _may_be_attention(cls):
        return False
    return not uses_interface(cls) and "scaled_dot_product_attention" in names_used(cls)


class SdpaWatch(TorchFunctionMode):
    """While a module runs, looks on at its calls of scaled_dot_product_attention."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not scaled_dot_product_attention:
            return func(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        seats = covering(self.module) if given["query"].dim() == 4 else []
        if not seats:
            return func(*args, **kwargs)

        def run(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **_: Any) -> tuple[Any, None]:
            return func(*args, **kwargs).transpose(1, 2), None

        result = look_on(
            run,
            "scaled_dot_product_attention",
            seats,
            self.module,
            *(given[name] for name in names[:3]),
            given.get("attn_mask"),
            dropout=given.get("dropout_p", 0.0),
            scaling=given.get("scale"),
            is_causal=bool(given.get("is_causal", False)),
        )
        return result[0].transpose(1, 2)


def watch_sdpa(module: nn.Module) -> list[RemovableHandle]:
    """Hooks that keep an SdpaWatch active while this module runs, in each thread its own."""
    active: dict[int, list[SdpaWatch]] = {}

    def enter(module: nn.Module, args: Any) -> None:
        watch = SdpaWatch(module)
        active.setdefault(threading.get_ident(), []).append(watch)
        watch.__enter__()  # type: ignore[no-untyped-call]

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        watch = active[threading.get_ident()].pop()
        watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave, always_call=True)]


def refuse_what_cannot_be_read(model: nn.Module) -> None:
    """Refuse, by name and before anything runs, attention that capture can't see or can't put into a trace.

    Raises:
        UnsupportedError: attention off the interface, soft caps, sinks.
    """
    name = type(model).__name__
    for path, module in model.named_modules():
        cls = type(module)
        if computes_its_own(cls):
            raise UnsupportedError(
                f"{name} can't be captured: {cls.__name__} computes its attention by itself, off transformers' "
                "attention interface",
                where=path or name,
                advice=WAY_OUT,
            )
        if not uses_interface(cls):
            continue
        cap = getattr(module, "attn_logit_softcapping", None)
        if cap is not None:
            _refuse_softcap(name, path, cap)
        if getattr(module, "sinks", None) is not None:
            _refuse_sinks(name, path)


def _refuse_softcap(name: str, path: str, cap: Any) -> None:
    raise UnsupportedError(
        f"{name} can't be captured: it caps its scores softly (at {cap}), and a trace's scores are scale * q . k",
        where=path,
        advice="ask the model itself: eager attention with output_attentions=True",
    )


def _refuse_sinks(name: str, path: str) -> None:
    raise UnsupportedError(
        f"{name} can't be captured: its softmax has attention sinks, so that a row of weights sums to less than 1",
        where=path,
        advice="ask the model itself: eager attention with output_attentions=True",
    )


def models_in(model: nn.Module) -> list[nn.Module]:
    """The modules that are transformers models: the model itself, its towers."""
    return [module for module in model.modules() if _is_model(type(module))]


def word_embeddings(model: nn.Module) -> list[nn.Embedding]:
    """The embeddings whose ids are tokens."""
    found: dict[int, nn.Embedding] = {}
    for one in models_in(model):
        try:
            embedding = one.get_input_embeddings()  # type: ignore[operator]
        except NotImplementedError:
            continue
        if isinstance(embedding, nn.Embedding):
            found[id(embedding)] = embedding
    return list(found.values())


class Installed:
    """The attention functions that have been replaced, and how to put them back. One for the whole process."""

    def __init__(self) -> None:
        self._users = 0
        self._undo: list[Callable[[], None]] = []
        self._modeling: set[str] = set()

    def enter(self, model: nn.Module) -> None:
        """Replace the interface's functions, and the eager ones of this model's modeling files."""
        with LOCK:
            self._users += 1
            try:
                if self._users == 1:
                    self._replace_in_tables()
                for module in {type(one).__module__ for one in model.modules() if uses_interface(type(one))}:
                    self._replace_in_file(sys.modules.get(module))
            except BaseException:
                self.leave()
                raise

    def leave(self) -> None:
        """Put everything back when the last capture closes."""
        with LOCK:
            self._users -= 1
            if self._users == 0:
                for undo in reversed(self._undo):
                    undo()
                self._undo.clear()
                self._modeling.clear()

    def _replace_in_tables(self) -> None:
        from transformers import AttentionInterface

        table = AttentionInterface._global_mapping
        for key in list(table):
            self._swap(table, key)

    def _replace_in_file(self, module: ModuleType | None) -> None:
        if module is None or module.__name__ in self._modeling:
            return
        self._modeling.add(module.__name__)
        space = vars(module)
        for name in [name for name in space if name.endswith("eager_attention_forward")]:
            self._swap(space, name)
        local = getattr(space.get("ALL_ATTENTION_FUNCTIONS"), "_local_mapping", {})
        for key in list(local):
            self._swap(local, key)

    def _swap(self, table: dict[str, Any], key: str) -> None:
        original = table[key]
        replacement = watched(original, key)
        table[key] = replacement

        def undo() -> None:
            if table.get(key) is replacement:
                table[key] = original

        self._undo.append(undo)


INSTALLED = Installed()


def watched(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """An attention function that does what `original` does, and hands over what it saw."""

    @wraps(original)
    def attention(
        module: nn.Module, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        seats = covering(module)
        if not seats:
            return original(module, query, key, value, attention_mask, *args, **kwargs)
        return look_on(original, name, seats, module, query, key, value, attention_mask, *args, **kwargs)

    if "torch._dynamo" not in sys.modules:
        return attention
    untraced: Callable[..., Any] = torch.compiler.disable(attention)  # type: ignore[no-untyped-call]
    return untraced


def look_on(
    original: Callable[..., Any],
    name: str,
    seats: list[tuple[Session, Forward, Stack, int]],
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run the model's own attention function, silence what is to be silenced, and hand over."""
    path = seats[0][0].plan.paths[id(module)]
    if kwargs.get("softcap") is not None:
        _refuse_softcap(type(seats[0][0].model).__name__, path, kwargs["softcap"])
    if kwargs.get("s_aux") is not None:
        _refuse_sinks(type(seats[0][0].model).__name__, path)
    wanted = [seat for seat in seats if seat[0].listener.wants(seat[2], seat[3])]
    silenced = silenced_heads(seats)
    for _, forward, _, _ in seats:
        forward.calls += 1
    if not wanted and not silenced:
        return original(module, query, key, value, attention_mask, *args, **kwargs)
    watch = KernelWatch()
    with watch:
        result = original(module, query, key, value, attention_mask, *args, **kwargs)
    with torch.no_grad():
        batch = max(len(query), len(key))
        context = result[0].detach().transpose(1, 2)
        given, used = given_mask(name, module, query, key, attention_mask, kwargs)
        own = not seats[0][2].cross and query.shape[2] <= used
        tokens = slice(used - query.shape[2], used) if own else None
        rules = seats[0][1].analyst.rules(given, batch, query.shape[2], used, tokens)
        if wanted:
            scaling = kwargs.get("scaling")
            scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
            q = query.detach().expand(batch, -1, -1, -1)
            k, v = (x.detach()[:, :, :used].expand(batch, -1, -1, -1) for x in (key, value))
            lse = log_sum_exps(watch, q, k, v, scale, rules)
            weights = result[1] if len(result) > 1 and isinstance(result[1], torch.Tensor) else None
            for session, forward, stack, layer in wanted:
                session.listener.take(
                    forward,
                    Call(
                        module=module,
                        path=session.plan.paths[id(module)],
                        stack=stack,
                        layer=layer,
                        q=q,
                        k=k,
                        v=v,
                        lse=lse,
                        context=context,
                        scale=scale,
                        rules=rules,
                        stage=stage_of(module, scale, query.shape[-1]),
                        own=own,
                        weights=weights,
                        silenced=frozenset(silenced),
                        dropout=float(kwargs.get("dropout") or 0.0),
                    ),
                )
    if not silenced:
        return result
    kept = kept_queries(rules, batch, query)
    changed = silence(result[0].transpose(1, 2), silenced, kept).transpose(1, 2).contiguous()
    return (changed, *result[1:])


def kept_queries(rules: Rules, batch: int, like: torch.Tensor) -> torch.Tensor | None:
    """(batch, queries) bool: positions that are not padding; None where all are."""
    if all(row.queries is None for row in rules.rows):
        return None
    rows = [rules.row(index).queries for index in range(batch)]
    kept = [
        torch.ones(like.shape[2], dtype=torch.bool) if row is None else torch.from_numpy(row.copy()) for row in rows
    ]
    return torch.stack(kept).to(like.device)


def log_sum_exps(
    watch: KernelWatch, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, rules: Rules
) -> torch.Tensor:
    """(batch, heads, queries): what the model's own kernel computed, else one more fused call or blocks."""
    batch, heads, queries, _ = q.shape
    lse = watch.lse(batch, heads, queries)
    if lse is None:
        with torch.autocast(q.device.type, enabled=False):
            if rules.shared:
                _, lse = attend_with_lse(q, k, v.to(q.dtype), scale=scale, mask=rules.row(0).mask)
            else:
                lse = torch.stack(
                    [
                        attend_with_lse(q[i], k[i], v[i].to(q.dtype), scale=scale, mask=rules.row(i).mask)[1]
                        for i in range(batch)
                    ]
                )
    if any(row.unseen is not None for row in rules.rows):
        unseen = [rules.row(i).unseen for i in range(batch)]
        rows = [
            torch.zeros(queries, dtype=torch.bool) if one is None else torch.from_numpy(one.copy()) for one in unseen
        ]
        lse = lse.masked_fill(torch.stack(rows).to(lse.device)[:, None], float("-inf"))
    return lse


def given_mask(
    name: str, module: nn.Module, query: torch.Tensor, key: torch.Tensor, mask: Any, kwargs: dict[str, Any]
) -> tuple[Given, int]:
    """The mask that an attention function applies when it is called so, and how many of the keys it looks at.

    Raises:
        UnsupportedError: the function's masks are of a kind that can't be read.
    """
    queries, keys = query.shape[2], key.shape[2]
    bias = kwargs.get("position_bias")
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if mask is not None and not isinstance(mask, torch.Tensor):
        raise UnsupportedError(
            f"{name} masks by {type(mask).__name__}, which capture can't read",
            where=type(module).__name__,
            advice='switch first: model.set_attn_implementation("sdpa")',
        )
    if name.startswith("flash"):
        width = kwargs.get("sliding_window")
        window = None if width is None or keys <= width else (int(width) - 1, None if causal else int(width) - 1)
        return Given(keys=mask, causal=bool(causal) and queries > 1, window=window, bias=bias), keys
    if name.endswith(("eager_attention_forward", "eager")):
        return Given(mask=mask, bias=bias), keys
    if mask is None and bool(causal) and queries > 1:
        used = min(queries, keys)
        return Given(causal=True, bias=None if bias is None else bias[..., :used]), used
    return Given(mask=mask, bias=bias), keys


@cache
def _stage_names(cls: type) -> bool:
    return any(re.search("rotary|rotate|rope", name, re.IGNORECASE) for name in names_used(cls))


@cache
def _scales_queries(cls: Any) -> bool:
    try:
        source = inspect.getsource(inspect.unwrap(cls.forward))
    except (OSError, TypeError):
        return False
    return re.search(r"\*\s*self\.scal|_scale_query|\*\*\s*-0\.5", source) is not None


def stage_of(module: nn.Module, scale: float, d_head: int) -> str:
    """What q and k are when they reach the attention function: projected, scaled or rotated."""
    switched_off = any(
        getattr(module, name, True) in (None, False) for name in ("rotary_embeddings", "use_rope", "rotary_emb")
    )
    kind = getattr(module, "position_embedding_type", "rotary")
    cls: type = type(module)
    if _stage_names(cls) and not switched_off and "rot" in str(kind):
        return "rotated"
    if scale == 1.0 and d_head != 1 and _scales_queries(cls):
        return "scaled"
    return "projected"

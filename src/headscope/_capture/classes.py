"""What the code of a transformers class tells before anything runs: how it attends, what its queries and keys are."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from types import CellType, CodeType, FunctionType
from typing import Any

from torch import nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn.functional import scaled_dot_product_attention

SDPA_NAME = "scaled_dot_product_attention"

OWN_SOFTMAX = {
    "softmax",
    "Softmax",
    "logsumexp",
    SDPA_NAME,
    "multi_head_attention_forward",
    "_flash_attention_forward",
}
"""Names that code refers to when it computes attention by itself."""

ATTENTION = re.compile("att(ention|n)", re.IGNORECASE)
"""What names of attention contain."""

OPERATOR = (OpOverload, OpOverloadPacket)

LIBRARIES = ("torch.", "transformers.")
"""Where functions are known by their names."""


@dataclass(frozen=True)
class Kind:
    """What a module's class is to a capture.

    Attributes:
        is_model: a transformers model, whose parts do the work.
        uses_interface: it looks its attention function up in transformers' interface.
        calls_sdpa: it calls PyTorch's scaled_dot_product_attention by itself, as many a hand-written attention does.
        also_otherwise: its code has another way to compute attention too.
        computes_its_own: an attention, by its name, that computes by itself, out of sight.
        rotates: its code rotates queries and keys.
        may_attend: its name or its code speaks of attention or of a softmax.
    """

    is_model: bool
    uses_interface: bool
    calls_sdpa: bool
    also_otherwise: bool
    computes_its_own: bool
    rotates: bool
    may_attend: bool


def kind_of(cls: type) -> Kind:
    """What a class is, by its code. Known classes cost a look-up, until somebody gives one another forward."""
    return _kind_of(cls, getattr(cls, "forward", None))


@cache
def _kind_of(cls: type, forward: object) -> Kind:
    transformers = sys.modules.get("transformers")
    is_model = transformers is not None and issubclass(cls, transformers.PreTrainedModel)
    used = names_used(cls)
    named = ATTENTION.search(cls.__name__) is not None
    own = not is_model and not cls.__module__.startswith("torch.")
    uses_interface = not is_model and "ALL_ATTENTION_FUNCTIONS" in used
    calls_sdpa = own and not uses_interface and (SDPA_NAME in used or _leads_to_sdpa(cls))
    return Kind(
        is_model=is_model,
        uses_interface=uses_interface,
        calls_sdpa=calls_sdpa,
        also_otherwise=calls_sdpa and len(OWN_SOFTMAX & used) > 1,
        computes_its_own=own and named and not uses_interface and not calls_sdpa and bool(OWN_SOFTMAX & used),
        rotates=any(re.search("rotary|rotate|rope", name, re.IGNORECASE) for name in used),
        may_attend=own and (named or bool(OWN_SOFTMAX & used) or any(map(ATTENTION.search, used))),
    )


def names_used(cls: type) -> frozenset[str]:
    """The names that a class's own code refers to, that of its parents included where it isn't overridden."""
    return frozenset(name for function in _functions_of(cls) for name in _names_of_function(function))


def _functions_of(cls: type) -> Iterator[FunctionType]:
    """The functions of a class and of its parents, but for PyTorch's own."""
    for attribute in {name for base in cls.__mro__ if base not in (nn.Module, object) for name in vars(base)}:
        function = inspect.unwrap(value) if callable(value := getattr(cls, attribute, None)) else None
        function = getattr(function, "__func__", function)
        if isinstance(function, FunctionType) and not function.__module__.startswith("torch.nn"):
            yield function


def _leads_to_sdpa(cls: type) -> bool:
    """Whether a class that is no library's can reach PyTorch's attention under another name.

    An alias, a table of functions, a partial, a string for getattr, or any chain of functions that are no library's.
    """
    if cls.__module__.startswith(LIBRARIES):
        return False
    waiting: list[Any] = list(_functions_of(cls))
    met: dict[int, Any] = {}
    while waiting:
        thing = waiting.pop()
        if id(thing) in met:
            continue
        met[id(thing)] = thing
        if thing is scaled_dot_product_attention or _names_sdpa(thing):
            return True
        if isinstance(thing, dict):
            waiting += thing.values()
        elif isinstance(thing, (list, tuple, set, frozenset)):
            waiting += thing
        elif isinstance(thing, partial):
            waiting.append(thing.func)
        elif isinstance(thing, CodeType):
            waiting += thing.co_consts
        elif isinstance(thing, FunctionType) and not thing.__module__.startswith(LIBRARIES):
            waiting += [thing.__globals__[name] for name in set(_names_of(thing.__code__)) & thing.__globals__.keys()]
            waiting += [cell.cell_contents for cell in thing.__closure__ or () if cell != CellType()]
            waiting += [*thing.__code__.co_consts, *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
            if SDPA_NAME in _names_of(thing.__code__):
                return True
        elif (
            isinstance(thing, type) and not issubclass(thing, nn.Module) and not thing.__module__.startswith(LIBRARIES)
        ):
            waiting += [getattr(one, "__func__", one) for one in vars(thing).values()]
    return False


def _names_sdpa(thing: Any) -> bool:
    """Whether it is the name of PyTorch's attention, or that as an operator: torch.ops.aten.…."""
    return thing == SDPA_NAME if isinstance(thing, str) else isinstance(thing, OPERATOR) and SDPA_NAME in str(thing)


def _names_of_function(function: FunctionType) -> Iterator[str]:
    """A function's names, and those of the functions that it calls, where these may be attention.

    In transformers that is a function of the same file that goes by PyTorch's name or stands in a table; elsewhere any
    that is no library's.
    """
    anybodys = not function.__module__.startswith(LIBRARIES)
    for name in _names_of(function.__code__):
        found = function.__globals__.get(name)
        named = found if isinstance(found, dict) else {name: found} if anybodys or name in OWN_SOFTMAX else {}
        own = [
            one
            for one in named.values()
            if isinstance(one, FunctionType)
            and (one.__module__ == function.__module__ or (anybodys and not one.__module__.startswith(LIBRARIES)))
        ]
        for one in own:
            yield from _names_of(one.__code__)
        if not own or name not in OWN_SOFTMAX:
            yield name


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)


def models_in(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules that are transformers models: the model itself, its towers."""
    return [module for module in modules if kind_of(type(module)).is_model]


def word_embeddings(models: Iterable[nn.Module]) -> list[nn.Embedding]:
    """The embeddings of transformers models whose ids are tokens."""
    found: dict[int, nn.Embedding] = {}
    for one in models:
        try:
            embedding = one.get_input_embeddings()  # type: ignore[operator]
        except NotImplementedError:
            continue
        if isinstance(embedding, nn.Embedding):
            found[id(embedding)] = embedding
    return list(found.values())


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
    if kind_of(cls).rotates and not switched_off and "rot" in str(kind):
        return "rotated"
    if scale == 1.0 and d_head != 1 and _scales_queries(cls):
        return "scaled"
    return "projected"

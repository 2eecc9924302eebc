"""Parts of a trace: records of layers, the cut of the batch, outputs, and the interface of its model.

Also which rows of a layer's weights are NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from headscope.attention.scores import EVERYTHING, Mask, log_sum_exps
from headscope.attention.terms import NO_TERMS, Terms
from headscope.errors import InputError
from headscope.results.arrays import Arrays, Named

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@dataclass(frozen=True, eq=False, repr=False)
class LayerRecord:
    """The attention of one layer in one forward pass.

    Layers of a trace are read through `trace[layer]`; this is the record behind it.

    Attributes:
        q: (heads, queries, d_head), fp32 or fp16.
        k: (kv_heads, keys, d_head); kv_heads divides heads, and query head h uses key head h // (heads / kv_heads).
        v: (kv_heads, keys, d_value); None if values were not kept.
        lse: (heads, queries), log-sum-exp of each query's scores, in nats; -inf for a query that sees no key. If it is
            created with None, it is computed from q and k, in fp64, on first access.
        scale: factor of q . k.
        mask: the rule for which keys a query may look at.
        stage: state of q and k: `projected` (X W + b), `scaled` (q is already scaled) or `rotated` (RoPE).
        name: the attention module's name in a live model; empty if the trace is not of a live model.
        number: the layer's number in the model; None if all were kept, and it is the layer's position in the trace.
        numbers: the heads' numbers in the layer, if not all were kept; k and v then have one head for each. None if
            all were kept.
        terms: what the model adds to scale * q . k: see headscope.attention.terms.
    """

    q: Float[np.ndarray, "heads queries d_head"]
    k: Float[np.ndarray, "kv_heads keys d_head"]
    v: Float[np.ndarray, "kv_heads keys d_value"] | None
    lse: Float[np.ndarray, "heads queries"]
    scale: float
    mask: Mask = EVERYTHING
    stage: str = "projected"
    name: str = ""
    number: int | None = None
    numbers: tuple[int, ...] | None = None
    terms: Terms = NO_TERMS

    def __post_init__(self) -> None:
        if self.lse is None:
            del vars(self)["lse"]

    def __getattr__(self, name: str) -> Any:
        if name != "lse":
            raise AttributeError(name)
        lse = log_sum_exps(self.q, self.k, scale=self.scale, mask=self.mask, terms=self.terms)
        return vars(self).setdefault("lse", lse)

    def __repr__(self) -> str:
        shapes = ", ".join(
            f"{name} {part.shape}"
            for name, part in zip("qkv", (self.q, self.k, self.v), strict=True)
            if part is not None
        )
        return f"record of {self.name or 'a layer'}: {shapes}"

    @property
    def has_lse(self) -> bool:
        """True if reading `lse` computes nothing."""
        return "lse" in vars(self)

    def of_heads(self, places: Sequence[int]) -> LayerRecord:
        """The record of some heads by their places, with a key head for each; `lse` if it is known."""
        heads, numbers, bias = list(places), self.numbers or range(len(self.q)), self.mask.bias
        shared = [head * len(self.k) // len(self.q) for head in heads]
        return replace(
            self,
            q=self.q[heads],
            k=self.k[shared],
            v=None if self.v is None else self.v[shared],
            lse=self.lse[heads] if self.has_lse else None,  # type: ignore[arg-type]  # computed when it is read
            mask=replace(self.mask, bias=bias if bias is None or len(bias) == 1 else bias[heads]),
            terms=self.terms.of_heads(heads),
            numbers=tuple(numbers[head] for head in heads),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of q, k, v, the terms and lse, also if lse is yet to be computed."""
        size = self.lse.nbytes if self.has_lse else 8 * self.q.shape[0] * self.q.shape[1]
        return size + self.terms.nbytes + sum(part.nbytes for part in (self.q, self.k, self.v) if part is not None)


def misfit(record: LayerRecord, queries: int, keys: int) -> str | None:
    """Describe the arrays of a layer that don't match in shape; None if all match."""
    q, k, v, lse, mask = record.q, record.k, record.v, vars(record).get("lse"), record.mask
    if q.ndim != 3 or k.ndim != 3 or q.shape[2] != k.shape[2] or not len(q) or not len(k) or len(q) % len(k):
        return f"q {q.shape} and k {k.shape}: not (heads, queries, d_head) and (kv_heads, keys, d_head)"
    if (q.shape[1], k.shape[1]) != (queries, keys):
        return f"{q.shape[1]} queries and {k.shape[1]} keys for {queries} and {keys} tokens"
    if v is not None and (v.ndim != 3 or v.shape[:2] != k.shape[:2]):
        return f"v {v.shape} beside k {k.shape}"
    if lse is not None and lse.shape != q.shape[:2]:
        return f"lse {lse.shape} beside q {q.shape}"
    if mask.keys is not None and np.shape(mask.keys) != (keys,):
        return f"a mask of {np.shape(mask.keys)} for {keys} keys"
    if mask.bias is not None and np.shape(mask.bias) not in ((1, queries, keys), (len(q), queries, keys)):
        return f"a bias {np.shape(mask.bias)} for {len(q)} heads, {queries} queries and {keys} keys"
    mismatch = record.terms.misfit(len(q), queries, keys, q.shape[2])
    if mismatch is not None:
        return mismatch
    numbers = record.numbers
    if numbers is not None and (len(numbers) != len(q) or len(set(numbers)) != len(q) or min(numbers) < 0):
        return f"{len(q)} heads with the numbers {', '.join(map(str, numbers))}"
    return None


def beyond_half(layer: int, name: str) -> InputError:
    """The error for numbers that were to be kept in fp16, which is too narrow for them."""
    found = f"layer {layer}: {name} has numbers beyond 65,504, the largest of fp16"
    return InputError(found, where="dtype", advice='keep them in fp32, the default: dtype="fp32"')


@dataclass(frozen=True)
class Cut:
    """The row of a batch that a trace holds, without the padding around it.

    Of an array that the model computed for a whole batch, `cells` (batch, heads, queries, keys), the trace holds
    `cells[row][:, queries][:, :, keys]`.

    Attributes:
        row: the row of the batch, counted from 0.
        queries: the kept positions along the query axis.
        keys: the kept positions along the key axis.
        sizes: lengths of these axes, padding included.
    """

    row: int
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    sizes: tuple[int, int]

    @classmethod
    def none(cls, queries: int, keys: int) -> Cut:
        """The cut of a batch with one row and no padding."""
        return cls(0, tuple(range(queries)), tuple(range(keys)), (queries, keys))


class ModelWeights(Protocol):
    """The interface of the model that a trace came from."""

    def W_O(self, layer: int, head: int) -> Float[np.ndarray, "d_head d_model"]:
        """(d_head, d_model): the head's rows of W_O."""

    def late_output(
        self, name: str, last_hidden_state: Float[np.ndarray, "tokens d_model"], prompt: int = 0
    ) -> Named | None:
        """Compute an output from the last hidden state, less a prompt's tokens; None if there is no such output."""

    def late_outputs(self) -> tuple[str, ...]:
        """The names of the outputs that `late_output` computes."""


class Outputs(Arrays, Mapping[str, Named]):
    """The model's outputs by name: last_hidden_state, pooler_output, logits, ….

    Outputs that follow from the last hidden state are computed on first access.
    """

    def __init__(self, kept: Mapping[str, Named], source: ModelWeights | None = None, prompt: int = 0) -> None:
        self._kept = dict(kept_outputs(kept))
        self._source, self._prompt = source, prompt

    def __getitem__(self, name: str) -> Named:
        name = name if isinstance(name, str) else repr(name)
        if name not in self._kept and self._source is not None and "last_hidden_state" in self._kept:
            output = self._source.late_output(name, self._kept["last_hidden_state"].array, self._prompt)
            if output is not None:
                self._kept[name] = output
        if name not in self._kept:
            raise MissingOutputError(
                f"there is no output {name!r}; the outputs are {', '.join(self) or 'none'}",
                where="trace.outputs",
                advice="if the trace was read from a file, pass its model: hs.load(file, model=hs.open(…))"
                if self._source is None
                else "use one of these: the model has no such output head",
            )
        return self._kept[name]

    def __iter__(self) -> Iterator[str]:
        late = self._source.late_outputs() if self._source is not None else ()
        return iter([*self._kept, *(name for name in late if name not in self._kept)])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return "outputs: " + ", ".join(str(self._kept.get(name, name)).split("\n")[0] for name in self)


def kept_outputs(outputs: Mapping[str, Named]) -> Mapping[str, Named]:
    """The outputs that are in memory already."""
    return outputs._kept if isinstance(outputs, Outputs) else outputs


class MissingOutputError(InputError, KeyError):
    """There is no such output. Also a KeyError, as mappings require."""


def broken_rows(record: LayerRecord) -> Bool[np.ndarray, "heads queries"]:
    """Return True for each row of a layer's weights that contains NaN.

    A query that contains NaN or infinity has such a row, and so has every query that sees such a key. A query that sees
    no key doesn't, unless its keys are infinite: then its scores are -inf for another reason than the mask.
    """
    keys = finite_heads(record.k, len(record.q))[:, None]
    lse = record.lse
    return ~np.isfinite(record.q).all(-1) | np.where(np.isneginf(lse), ~keys, ~np.isfinite(lse))


def is_broken(record: LayerRecord) -> Bool[np.ndarray, " heads"]:
    """Return True for each head of a layer with such a row."""
    return np.asarray(broken_rows(record).any(-1))


def finite_heads(part: Float[np.ndarray, "heads tokens d"], heads: int | None = None) -> Bool[np.ndarray, " heads"]:
    """Return True for each head whose numbers are all finite; key heads are repeated for the heads that share them."""
    finite = np.isfinite(part).all((1, 2))
    return np.repeat(finite, (heads or len(part)) // len(part))

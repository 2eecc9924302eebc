"""`hs.parity(a, b, texts)`: where two sides that should compute the same first part, which heads change, what it costs.

For a token's vector x in a step of a pass, the difference is |x_b - x_a| / |x_a|. A step agrees if no token of any text
differs by more than the tolerance. The steps of layer l are its attention, x + Attention(x), and its feed-forward, the
layer's output.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.checkpoint import called
from headscope.errors import InputError
from headscope.heads.distances import jensen_shannon, relative
from headscope.model import Model, open_model
from headscope.results.explained import Pooling
from headscope.results.measure import WEIGHT, HeadValues, Measure, Unit
from headscope.results.parity import Cost, Move, Parity
from headscope.results.report import Check
from headscope.results.table import HeadTable, stacked
from headscope.settings import TIMEOUT, TOLERANCE
from headscope.verify.endpoint import Endpoint
from headscope.verify.report import Worst
from headscope.verify.sides import CheckpointSide, Reading, Side
from headscope.verify.vectors import REASON, against_vectors, cost_of, read_vectors

if TYPE_CHECKING:
    from headscope.checkpoint.tokenizer import Encoded

_LONG = (
    "The animal didn't cross the street because it was too tired, and the street was too wide for it. ",
    "On Tuesday the committee in Geneva published 47 pages about water, bread and the price of paper. ",
    "Rain fell all night on the old harbour, and by the morning every boat had a hand's breadth of water in it. ",
    "She counted the coins twice, wrote the sum into the book, and closed the shop before the others came. ",
)

PROBES = (
    "The animal didn't cross the street because it was too tired.",
    "A cat sat on the mat.",
    "Hello!",
    "How do I reset my password?",
    "I forgot my login details and can't sign in.",
    "NASA LAUNCHED A NEW TELESCOPE ON MONDAY.",
    "Paris is the capital of France; Berlin is the capital of Germany.",
    "The bank raised its interest rates by 0.25 per cent.",
    "They sat on the bank of the river and watched the boats.",
    "Who wrote Moby-Dick, and when was it published?",
    "Herman Melville's novel about a white whale appeared in 1851.",
    "The patient was given 20 mg twice a day for two weeks.",
    "def add(a, b): return a + b",
    "Is there a train from Tokyo to Osaka after nine?",
    "Nobody likes waiting in the rain without an umbrella, least of all the dog.",
    "The committee hasn't decided yet whether the meeting will be held in March or in April.",
    *(sentence * times for sentence, times in zip(_LONG, (7, 8, 7, 8), strict=True)),
)
"""The texts that are read by default: of mixed lengths, with upper case, four of them longer than 128 tokens."""

DIVERGENCE = Measure(
    "divergence",
    meaning="Jensen-Shannon divergence of a query's weights in the two sides, mean over queries",
    unit=Unit("nats, 0 to log 2", high=math.log(2)),
)
WEIGHT_CHANGE = Measure("weight_change", meaning="largest change of a weight in a text", unit=WEIGHT)


def parity(
    a: Any,
    b: Any,
    texts: Iterable[str] | None = None,
    *,
    tolerance: float = TOLERANCE,
    max_length: int | None = None,
    tokenizer: Any = None,
    served: str | None = None,
    timeout: int = TIMEOUT,
) -> Parity:
    """Compare two sides that should compute the same: a checkpoint and its copy, or what serves it.

        report = hs.parity("my-model", live_model, tokenizer=tokenizer)
        report.agrees, report.sentence(), report.cost.cosines

    Each side is the name of a checkpoint, what `hs.open` returned, a live transformers model in any precision, on any
    device, compiled or not, a SentenceTransformer, or an ONNX file (the extra `onnx`). The other side may also be
    vectors, an array or a .npy file with one for each text, or the address of an endpoint (OpenAI's form, or
    text-embeddings-inference's), which gets the texts one by one and in a batch. If vectors differ, named faults of
    implementations are tried, and the answer is the one that reproduces them. See headscope.verify.diagnosis.

    Args:
        a: the side that is right; differences are relative to its numbers.
        b: the other.
        texts: the texts to read; by default twenty of mixed lengths. Each is read alone, so that nothing is padded.
        tolerance: the largest relative difference of a token's vector that is accepted.
        max_length: cut texts to this many tokens; a side's own limit counts too.
        tokenizer: for live models and ONNX files: a transformers tokenizer, or the name of a checkpoint that has one.
            Without it they read the other side's ids.
        served: the name of the model at an endpoint of OpenAI's form; by default the first side's.
        timeout: seconds to wait for an endpoint's answer.

    Raises:
        InputError: the sides have other sizes, neither has a tokenizer, or there is no text.
        UnsupportedError: a side can't be read.
    """
    checked = check_texts(texts, tolerance)
    side_a = side_of(a, tokenizer)
    if isinstance(b, str) and b.startswith(("http://", "https://")):
        endpoint = Endpoint(b, served=called(side_a.name) if served is None else served, timeout=timeout)
        batch, alone = (endpoint.vectors(checked, together=together) for together in (True, False))
        options: dict[str, Any] = {"tolerance": tolerance, "max_length": max_length, "alone": alone}
        return against_vectors(side_a, b, batch, checked, **options)
    if (vectors := vectors_of(b)) is not None:
        name = os.fspath(b) if isinstance(b, (str, os.PathLike)) else "the vectors"
        return against_vectors(side_a, name, vectors, checked, tolerance=tolerance, max_length=max_length)
    return _by_states(side_a, side_of(b, tokenizer), checked, tolerance, max_length)


def _by_states(side_a: Side, side_b: Side, texts: list[str], tolerance: float, max_length: int | None) -> Parity:
    """Compare two sides that give their states."""
    check_shapes(side_a, side_b)
    pooling_a, pooling_b = poolings(side_a, side_b)
    steps = Steps(side_a, side_b, tolerance)
    for text in texts:
        read_a, read_b = tokens_of(side_a, side_b, text, max_length)
        same = read_a.ids == read_b.ids and read_a.segments == read_b.segments
        steps.see(read_a, read_b, side_a.read(read_a, pooling_a), side_b.read(read_b, pooling_b), states=same)
        steps.cut += is_cut(read_a, pooling_a.prompt + text)
    return steps.result(texts)


def vectors_of(side: Any) -> np.ndarray | None:
    """The vectors of a side that gives nothing else: an array, or a .npy file; None for other sides."""
    if is_file(side, ".npy"):
        return read_vectors(side)
    return side if isinstance(side, np.ndarray) else None


def is_file(side: Any, suffix: str) -> bool:
    """Return True if a side is the name of a file of this kind."""
    return isinstance(side, (str, os.PathLike)) and os.fspath(side).endswith(suffix)


def check_texts(texts: Iterable[str] | None, tolerance: float) -> list[str]:
    """The texts, or the default ones.

    Raises:
        InputError: no text, something else than texts, or a tolerance that is not a number from 0 on.
    """
    if not isinstance(tolerance, (int, float)) or not 0 <= tolerance < math.inf:
        raise InputError(
            f"tolerance is {tolerance!r:.40}", where="tolerance", advice="use a number of at least 0, such as 1e-3"
        )
    if isinstance(texts, (str, bytes)):
        raise InputError("`texts` is a single text", where="texts", advice="pass a list of texts")
    checked = list(PROBES if texts is None else texts)
    wrong = next((text for text in checked if not isinstance(text, str)), None)
    if not checked or wrong is not None:
        found = "there is no text" if wrong is None else f"a text is a {type(wrong).__name__}"
        raise InputError(found, where="texts", advice="pass at least one text, or leave texts out")
    return checked


def side_of(side: Any, tokenizer: Any) -> Side:
    """A side from what names it.

    Raises:
        InputError: it is nothing that headscope reads.
    """
    if isinstance(side, np.ndarray) or is_file(side, ".npy"):
        raise InputError(
            "the first side is vectors", where="parity", advice="pass the checkpoint first and the vectors second"
        )
    if is_file(side, ".onnx"):
        from headscope.verify.onnx_side import OnnxSide

        return OnnxSide(side, tokenizer)
    if isinstance(side, (str, os.PathLike)):
        side = open_model(side)
    if isinstance(side, Model):
        return CheckpointSide(side)
    if type(side).__module__.partition(".")[0] in ("builtins", "numpy"):
        raise InputError(
            f"expected a checkpoint or a model, got {type(side).__name__}",
            where="parity",
            advice="pass a name, what hs.open returned, or a live model",
        )
    from headscope.verify.torch_side import TorchSide

    return TorchSide(side, tokenizer)


def check_shapes(a: Side, b: Side) -> None:
    """Check that two sides have the same sizes.

    Raises:
        InputError: they differ; the message has both.
    """
    nouns = {"layers": "layers", "heads": "heads", "d_model": "numbers to a token", "vocabulary": "ids"}
    for field, noun in nouns.items():
        first, other = getattr(a.shape, field), getattr(b.shape, field)
        if first is not None and other is not None and first != other:
            raise InputError(
                f"{called(a.name)} has {first:,} {noun}, {called(b.name)} {other:,}",
                where="parity",
                advice="compare a model with a copy of itself: an export, a quantised or a fine-tuned one",
            )


def poolings(a: Side, b: Side) -> tuple[Pooling, Pooling]:
    """The pooling of each side; a side that doesn't say takes the other's."""
    stated = [side.pooling for side in (a, b) if side.pooling is not None]
    default = stated[0] if stated else Pooling()
    return a.pooling or default, b.pooling or default


def tokens_of(a: Side, b: Side, text: str, max_length: int | None) -> tuple[Encoded, Encoded]:
    """The text as each side cuts it into tokens; a side without a tokenizer takes the other's.

    Raises:
        InputError: neither has a tokenizer.
    """
    first, other = a.encode(text, max_length), b.encode(text, max_length)
    known = first if first is not None else other
    if known is None:
        raise InputError(
            "neither side has a tokenizer",
            where="tokenizer",
            advice="pass tokenizer= (--set tokenizer=NAME): a checkpoint that has it, or a transformers tokenizer",
        )
    return first or known, other or known


def is_cut(encoded: Encoded, text: str) -> bool:
    """Return True if letters or digits of a text stand behind its last token, as far as its tokens have spans."""
    stops = [span[1] for span in encoded.spans if span is not None]
    return bool(stops) and any(map(str.isalnum, text[max(stops) :]))


class Steps:
    """The comparison of all steps, text by text.

    Args:
        a: the side that is right.
        b: the side that should compute the same.
        tolerance: of a relative difference.

    Attributes:
        cut: how many of the texts are longer than the window.
    """

    def __init__(self, a: Side, b: Side, tolerance: float) -> None:
        self._a, self._b = a, b
        layers = range(a.shape.layers)

        def worst(name: str, compared: str) -> Worst:
            return Worst(name, compared, tolerance, REASON, relative=True)

        self._embeddings = worst("embeddings", "the first layer's input")
        self._attention = [worst("attention", "x + Attention(x), before a norm") for _ in layers]
        self._feed_forward = [worst("feed-forward", "the layer's output") for _ in layers]
        self._vector = worst("vector", "the text's vector, as it is pooled")
        self._tables: list[HeadTable] = []
        self._differences: list[np.ndarray] = []
        self._vectors: list[tuple[np.ndarray, np.ndarray]] = []
        self._tokens: list[tuple[str, ...]] = []
        self._parted: list[tuple[int, int]] = []
        self.cut = 0
        self._move: Move | None = None
        self._predictions = self._flips = 0
        self._skips: dict[str, str] = {}

    def see(self, text_a: Encoded, text_b: Encoded, a: Reading, b: Reading, *, states: bool) -> None:
        """Compare one text; its states only if both sides read the same ids."""
        text = len(self._tokens)
        self._tokens.append(text_a.tokens)
        self._vectors.append((a.vector, b.vector))
        self._see(self._vector, a.vector[None], b.vector[None], text)
        if len(a.predicted) == len(b.predicted):
            self._predictions += len(a.predicted)
            self._flips += int((a.predicted != b.predicted).sum())
        if not states:
            pairs = zip(text_a.ids, text_b.ids, strict=False)
            at = next((at for at, (x, y) in enumerate(pairs) if x != y), min(len(text_a), len(text_b)))
            self._parted.append((text, at))
            self._differences.append(np.zeros((1 + 2 * self._a.shape.layers, 0)))
            return
        steps: list[tuple[Worst, np.ndarray | None, np.ndarray | None]] = [
            (self._embeddings, a.base.layers[0].into, b.base.layers[0].into)
        ]
        for layer in range(self._a.shape.layers):
            summed = [side.base.layers[layer].summed for side in (a, b)]
            steps.append((self._attention[layer], summed[0], summed[1]))
            after = [_output(side, layer) for side in (a, b)]
            steps.append((self._feed_forward[layer], after[0], after[1]))
        rows = [
            np.full(len(text_a), np.nan) if x is None or y is None else self._see(check, x, y, text)
            for check, x, y in steps
        ]
        self._differences.append(np.stack(rows))
        self._see_heads(text_a, a, b, text)

    @staticmethod
    def _see(check: Worst, a: np.ndarray, b: np.ndarray, text: int) -> np.ndarray:
        """(tokens,): relative differences of the tokens' vectors."""
        differences = relative(a, b)
        check.see(differences, np.zeros_like(differences), ("query",) if len(a) > 1 else (), text=text)
        return differences

    def _see_heads(self, text: Encoded, a: Reading, b: Reading, number: int) -> None:
        divergences, changes = [], []
        for layer in range(self._a.shape.layers):
            p, q = a.weights(layer).astype(np.float64), b.weights(layer).astype(np.float64)
            divergences.append(jensen_shannon(p, q).mean(-1))
            moved = np.abs(q - p)
            changes.append(moved.max((-1, -2)))
            head, query, key = (int(at) for at in np.unravel_index(np.argmax(moved), moved.shape))
            if self._move is None or moved[head, query, key] > abs(self._move.b - self._move.a):
                tokens = text.tokens[query], text.tokens[key]
                cell = float(p[head, query, key]), float(q[head, query, key])
                self._move = Move(layer, head, number, query, key, *tokens, *cell)
        columns = {
            measure.name: HeadValues.of(measure, np.stack(values))
            for measure, values in ((DIVERGENCE, divergences), (WEIGHT_CHANGE, changes))
        }
        numbers = range(self._a.shape.layers), range(self._a.shape.heads)
        self._tables.append(
            HeadTable(columns, tuple(numbers[0]), (tuple(numbers[1]),) * len(numbers[0]), source="parity")
        )

    def result(self, texts: Sequence[str]) -> Parity:
        """The record of all texts."""
        vectors = [np.stack([pair[at] for pair in self._vectors]) for at in (0, 1)]
        cost = cost_of(*vectors)
        return Parity(
            model=f"{self._a.name} and {self._b.name}",
            checks=tuple(self._checks()),
            notes=tuple(self._notes(texts)),
            skipped=tuple(self._skips.items()),
            a=called(self._a.name),
            b=called(self._b.name),
            texts=tuple(texts),
            heads=stacked(self._tables, "texts").over("texts") if self._tables else None,
            move=self._move,
            differences=tuple(self._differences),
            tokens=tuple(self._tokens),
            cost=Cost(**{**vars(cost), "predictions": self._predictions, "flips": self._flips}),
        )

    def _checks(self) -> Iterable[Check]:
        share = len(self._parted) / len(self._tokens)
        text, query = self._parted[0] if self._parted else (None, None)
        what = "share of texts that the sides cut into other tokens"
        yield Check("tokens", what, share, 0.0, "other tokens are other input", text=text, query=query)
        if self._tables:
            yield self._embeddings.check()
            for layer, (attention, feed_forward) in enumerate(zip(self._attention, self._feed_forward, strict=True)):
                if attention.seen:
                    yield attention.check(layer=layer)
                else:
                    self._skips["attention"] = "no single Linear of the live model is known to be W_O"
                yield feed_forward.check(layer=layer)
        yield self._vector.check()

    def _notes(self, texts: Sequence[str]) -> Iterable[str]:
        yield from (*self._a.notes, *self._b.notes)
        if self.cut:
            yield f"{self.cut} of {len(texts)} texts are longer than the window: only their beginnings are compared"
        if self._parted:
            yield f"{len(self._parted)} of {len(texts)} texts are cut into other tokens: their states aren't compared"
        if len(texts) < 2:
            yield "one text gives no interval"


def _output(side: Reading, layer: int) -> np.ndarray:
    """A layer's output; the last layer's after the norm that follows it, if there is one."""
    layers = side.base.layers
    return layers[layer + 1].into if layer + 1 < len(layers) else side.base.last

"""Copies of the model at work: documents in, the bytes of a part out. One in this process, or one per Ray actor.

The one in this process is here; Ray's are in on_ray.py, and the interface of both in job.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from headscope.atlas.documents import CorpusPart, Document, Refused
from headscope.atlas.examples import Read, RowReader
from headscope.atlas.job import Batch, ModelDescription, Task, Workers
from headscope.atlas.loading import ModelSource, config_record, load, running_record, token_vectors, tokenizer_record
from headscope.atlas.observe import Observed, Observer
from headscope.atlas.sample import Cut, by_lot, lot
from headscope.atlas.store import part_bytes, part_name
from headscope.atlas.survey_data import Owner
from headscope.atlas.survey_settings import Settings
from headscope.atlas.words import cut_trees, words_of_text
from headscope.atlas.writes import check_writer, gains
from headscope.errors import HeadscopeError, UnsupportedError, first_line
from headscope.heads.catalog import CATALOG, chosen, need_values
from headscope.heads.head_distances import head_distances
from headscope.heads.on_live import StatisticsConsumer
from headscope.heads.reference import gram_of
from headscope.heads.windows import Cutter, Window, batches, inputs_of, takes_segments, window_length
from headscope.live import capture
from headscope.live.calls import Consumer
from headscope.live.captured import feed
from headscope.live.hooks import evaluating
from headscope.model import Model
from headscope.runs.window_readouts import WindowReader, checkpoint_digest, readout_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.results.head_values import Head

PROBE = "one two three."
"""A first text for the model, so that a model that can't be read is refused before the corpus is opened."""


def limit_threads(count: int | None) -> Callable[[], None]:
    """Limit PyTorch and NumPy's BLAS to so many threads, by default to their own; return what restores these."""
    before = ExitStack()
    before.callback(torch.set_num_threads, torch.get_num_threads())
    before.enter_context(threadpool_limits(count, user_api="blas"))
    torch.set_num_threads(count or torch.get_num_threads())
    return before.close


class Replica:
    """A model, loaded and checked.

    Raises:
        HeadscopeError: the model can't be loaded, or its attention can't be read.
    """

    def __init__(self, source: ModelSource, settings: Settings) -> None:
        self.settings = settings
        self.loaded = load(source, device=settings.device, dtype=settings.dtype)
        tokenizer = self.loaded.tokenizer
        length = window_length(self.loaded.model, tokenizer, settings.length)
        own = self.loaded.opened is not None and settings.length is None and self.loaded.opened.text_rule.limit
        self.cutter = Cutter(tokenizer, min(own or length, length))
        self._unknown: int | None = getattr(tokenizer, "unk_token_id", None)
        self._grams: dict[int, torch.Tensor] = {}
        self._segments_wanted = takes_segments(self.loaded.model, tokenizer)
        # Taken before the model runs for the first time: some models keep state from a run.
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        self._identity = {
            "config": config_record(model),
            "tokenizer": tokenizer_record(tokenizer),
            "running": running_record(model, settings.device),
            **({} if source.segments == "own" else {"segments": source.segments}),
        }
        self._reader = None
        if (opened := self.loaded.opened) is not None:
            if settings.effects:
                self._reader = WindowReader(
                    opened, readout_of(opened, settings.effects_output), settings.effects_method
                )
            if settings.writes:
                check_writer(opened)
        self.described = self._describe(source)

    def run(self, part: CorpusPart, owner: Owner) -> tuple[bytes, dict[str, Any]]:
        """Return a part as Parquet, and its record."""
        windows, without = self._windows(part.documents)
        cut = {window.document for window in windows}
        refused = list(part.refused)
        refused += [Refused(part.documents[at].name, "no window", problem) for at, _, problem in without]
        for at, document in enumerate(part.documents):
            if at not in cut and not document.sentences:
                refused.append(Refused(document.name, "empty", "the tokenizer makes no token of it", document.weight))
        description = self.described
        values = self._measure(windows)
        record = {
            "texts": part.texts,
            "documents": len(cut),
            "windows": len(windows),
            "tokens": sum(len(window) for window in windows),
            "unknown": sum(int((window.ids == self._unknown).sum()) for window in windows),
            "refused": [document.record() for document in refused],
        }
        names = [part.documents[at].name for at in sorted(cut)]
        number = {at: index for index, at in enumerate(sorted(cut))}
        data = part_bytes(
            documents=names,
            windows=[(number[window.document], window.number, len(window)) for window in windows],
            heads=description.heads,
            values=values,
            statistics=description.statistics,
            label=owner.label(part_name(part.index)),
            record=record,
        )
        return data, record

    def _windows(
        self, documents: Sequence[Document], *, words: bool = False
    ) -> tuple[list[Window], list[tuple[int, int, str]]]:
        """All windows, and (document, number, reason) of each sentence of a treebank that has none."""
        if not any(document.sentences for document in documents):
            texts = [document.text for document in documents]
            return self.cutter.cut(texts, words=words_of_text if words else None), []
        return cut_trees(
            self.cutter,
            [
                (at, number, sentence)
                for at, document in enumerate(documents)
                for number, sentence in enumerate(document.sentences)
            ],
        )

    def vectors(self, ids: Sequence[int]) -> Float[np.ndarray, "ids d_model"]:
        """Input embeddings of some tokens: see token_vectors."""
        return token_vectors(self.loaded.model, ids)

    def cut(self, part: CorpusPart) -> Cut:
        """The windows of documents that a sample needs, by lot, with their words."""
        digests = [document.digest for document in part.documents]
        windows, _ = self._windows(part.documents, words=True)
        return by_lot(((lot(digests[window.document], window.number), window) for window in windows), self.settings)

    def observe(self, batch: Batch) -> Observed:
        """Behaviour of the heads over a batch of the sample."""
        observer = Observer(self.described.heads, batch, choices=self.settings.choices)
        self._pass(batch.windows, observer)
        return observer.seen

    def compare(self, batch: Batch) -> Float[np.ndarray, "heads_total heads_total"]:
        """The Jensen-Shannon distances between all pairs of heads over one window, in fp32."""
        model = self.loaded.model
        with evaluating(model), torch.inference_mode(), capture(model, values=False) as captured:
            model(**self._inputs(batch.windows))
        return head_distances(captured.trace).array.astype(np.float32)

    def effects(self, batch: Batch, silenced: frozenset[Head]) -> Float[np.ndarray, "windows heads_and_one"]:
        """The numbers of a batch: see WindowReader.numbers."""
        assert self._reader is not None
        return self._reader.numbers(batch.windows, silenced, batch.heads)

    def writes(self, batch: Batch, *of: Any) -> Float[np.ndarray, "rows columns"]:
        """The gains of a batch: see headscope.atlas.writes."""
        assert self.loaded.opened is not None
        return gains(self.loaded.opened, batch.windows, *of)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Tokens as the vocabulary spells them."""
        assert self.loaded.opened is not None
        return [self.loaded.opened.tokenizer.token(index) for index in ids]

    def read(self, batch: Batch) -> Read:
        """Some rows of weights of one window, and a text that gives it."""
        (window,) = batch.windows
        reader = RowReader(window, batch.rows)
        self._pass([window], reader)
        text = " ".join(window.words.forms)
        again = self.loaded.tokenizer(text, verbose=False)["input_ids"]
        rows = tuple(reader.rows[row] for row in batch.rows)
        special = (window.words.of_token[:1] < 0, window.roles.sep)
        ids = [window.ids[: len(of)][of][:1].tolist() for of in special]
        first, sep = ((self.loaded.tokenizer.convert_ids_to_tokens(of) or [None])[0] for of in ids)
        return Read(rows, first, sep, text if again == window.ids.tolist() else None)

    def _measure(self, windows: list[Window]) -> Float[np.ndarray, "windows heads_total statistics"]:
        description = self.described
        values = np.empty((len(windows), len(description.heads), len(description.statistics)), dtype=np.float32)
        measure = StatisticsConsumer(description.statistics, self._gram)
        model = self.loaded.model
        with evaluating(model), torch.inference_mode(), feed(model, measure):
            for batch in batches(windows, self.settings.batch_tokens):
                rows = [windows[at] for at in batch]
                measure.roles = [window.roles for window in rows]
                model(**self._inputs(rows))
                values[batch] = measure.table().numpy()
        values[np.isinf(values)] = np.nan  # of norms beyond fp32
        return values

    def _pass(self, windows: Sequence[Window], consumer: Consumer) -> None:
        """Run windows of one length side by side, and have their layers read."""
        model = self.loaded.model
        with evaluating(model), torch.inference_mode(), feed(model, consumer):
            model(**self._inputs(windows))

    def _inputs(self, windows: Sequence[Window]) -> dict[str, torch.Tensor]:
        return inputs_of(windows, next(self.loaded.model.parameters()).device, segments=self._segments_wanted)

    def _gram(self, layer: int) -> torch.Tensor | None:
        """(heads, d_value, d_value) in fp32 on the model's device, computed once; None if no statistic needs it."""
        if not need_values(self.described.statistics):
            return None
        if layer not in self._grams:
            W_O = np.stack(
                [self._projections.W_O(layer, head) for other, head in self.described.heads if other == layer]
            )
            with np.errstate(over="ignore"):  # `_measure` has NaN there
                gram = gram_of(W_O.astype(np.float64)).astype(np.float32)
            self._grams[layer] = torch.from_numpy(gram).to(next(self.loaded.model.parameters()).device)
        return self._grams[layer]

    def _describe(self, source: ModelSource) -> ModelDescription:
        model = self.loaded.model
        window = next(iter(self.cutter.cut([PROBE])), None)
        if window is None:
            advice = "use the tokenizer that was saved with this model"
            raise UnsupportedError(f"the tokenizer makes no token of {PROBE!r}", where=source.name, advice=advice)
        try:
            with evaluating(model), torch.inference_mode(), capture(model, values=False) as captured:
                model(**self._inputs([window]))
        except HeadscopeError:
            raise
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
            raise UnsupportedError(
                f"{type(model).__name__} fails on token ids alone: {first_line(error)}",
                where=source.name,
                advice="a survey calls model(input_ids=…): pass the encoder or the decoder of a model that has both, "
                "or wrap a model that takes its tokens in another way",
            ) from error
        trace = captured.trace
        assert trace.source is not None
        self._projections = trace.source
        heads = {layer: trace.head_numbers(layer) for layer in trace.numbers}
        names, left_out = self._statistics(heads)
        record = {
            "name": source.public_name,
            "class": type(model).__name__,
            "sha256": self.loaded.sha256,
            "parameters": self.loaded.parameters,
            "layers": list(heads),
            "heads": [list(numbers) for numbers in heads.values()],
            **self._identity,
        }
        read = {} if self._reader is None else self._reader.record()
        if self._reader is not None:
            record["effects"] = read
            self._check_heads("effects", self._reader.model, heads)
        if self.settings.writes and (opened := self.loaded.opened) is not None:
            record["writes"] = {"sha256": read.get("sha256") or checkpoint_digest(opened), "unknown": self._unknown}
            self._check_heads("writes", opened, heads)
        return ModelDescription(
            model=record,
            length=self.cutter.length,
            statistics=names,
            left_out=left_out,
            heads=tuple((layer, head) for layer, numbers in heads.items() for head in numbers),
        )

    @staticmethod
    def _check_heads(setting: str, model: Model, heads: dict[int, tuple[int, ...]]) -> None:
        """Check that both ways to run the model number its heads alike.

        Raises:
            UnsupportedError: they don't; heads were pruned.
        """
        sizes = model.anatomy.known()
        if heads != dict.fromkeys(range(sizes.layers), tuple(range(sizes.heads))):
            found = f"{setting} need {sizes.layers} layers of {sizes.heads} heads, and the model has others"
            advice = f"survey without {setting} (in Python {setting}=0)"
            raise UnsupportedError(found, where=model.checkpoint.where, advice=advice)

    def _statistics(self, heads: dict[int, tuple[int, ...]]) -> tuple[tuple[str, ...], dict[str, str]]:
        """The statistics to measure, and the reason for each that is left out."""
        requested = self.settings.statistics
        if not need_values(requested or CATALOG):
            return requested or (), {}
        try:
            for layer, numbers in heads.items():
                self._projections.W_O(layer, numbers[0])
        except UnsupportedError as error:
            if requested is not None:
                raise
            return chosen(None, values=False), dict.fromkeys(need_values(CATALOG), error.found)
        return chosen(requested), {}


class LocalWorkers(Workers):
    """One replica in this process; numbers of threads are restored on exit."""

    def __init__(self, source: ModelSource, settings: Settings, *, threads: int | None) -> None:
        self._restore_threads = limit_threads(threads)
        try:
            self._replica = Replica(source, settings)
        except BaseException:
            self.__exit__()
            raise
        self.described = self._replica.described

    def __exit__(self, *error: object) -> None:
        self._restore_threads()

    def each(self, method: str, tasks: Iterable[Task], *others: Any) -> Iterator[tuple[Task, Any]]:
        """See Workers; the order is that of the tasks."""
        for task in tasks:
            yield task, getattr(self._replica, method)(task, *others)

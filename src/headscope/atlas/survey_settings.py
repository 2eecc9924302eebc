"""Settings of a survey: everything that its numbers depend on, checked before anything is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from headscope.errors import InputError
from headscope.settings import Declared, Setting, Statistics

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""headscope's name of a dtype -> torch's."""

BATCH_TOKENS = {"cpu": 2048}
"""Kind of device -> most tokens per batch. On CPUs larger batches gain nothing and cost memory."""

BATCH_TOKENS_ELSEWHERE = 65536
"""Most tokens per batch on any other device."""

PART_SIZE = 500_000
"""Characters per part: about a minute's work for BERT-base on two cores."""

MAX_DOCUMENT = 10_000_000
"""Most characters per document. The limit bounds memory."""

SAMPLE = 40_000
"""Words of the sample."""

METHODS = ("zero", "mean")
"""Ways to silence a head."""


Field = Annotated[str, Setting("Field or column that holds the text, in tables.", metavar="NAME", option="--field")]
"""A setting that comparisons have, too."""


@dataclass(frozen=True)
class Settings:
    """Everything that the numbers depend on, except model and corpus. Fields are those of SurveySettings, resolved.

    Attributes:
        length: None until the model is known.
        statistics: in the order of CATALOG; None for all that the model supports.
        effects_output: None for the model's default.
    """

    length: int | None = None
    statistics: tuple[str, ...] | None = None
    head_distances: int = 0
    device: str = "cpu"
    dtype: str = "fp32"
    field: str = "text"
    batch_tokens: int = BATCH_TOKENS["cpu"]
    part_size: int = PART_SIZE
    max_document: int = MAX_DOCUMENT
    pieces: int = 1
    sample: int = SAMPLE
    labels: bool = False
    examples: int = 0
    effects: int = 0
    effects_output: str | None = None
    effects_method: str = METHODS[0]
    writes: int = 0

    @property
    def choices(self) -> bool:
        """True if the choices of words are kept, for labels and examples."""
        return self.labels or bool(self.examples)

    @property
    def windows(self) -> int:
        """The most windows that effects, writes or distances are measured over."""
        return max(self.effects, self.writes, self.head_distances)

    def record(self) -> dict[str, Any]:
        """The settings as the manifest records them. Some only if used, or if they are not as usual."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        off = {name for name in ("labels", "examples", "effects", "writes") if not fields[name]}
        off |= {"effects_output", "effects_method"} if "effects" in off else set()
        off |= {name for name, usual in (("pieces", 1), ("sample", SAMPLE)) if fields[name] == usual}
        fields = {name: value for name, value in fields.items() if name not in off}
        return {**fields, "statistics": None if self.statistics is None else list(self.statistics)}


@dataclass(frozen=True, kw_only=True)
class SurveySettings(Declared):
    """Settings of `hs.survey` beside a model and documents, and of `headscope survey` as options.

    Each annotation says what a setting means. Values that the model or the device decides are None.
    """

    out: Annotated[
        str | os.PathLike[str] | None,
        "The folder to write to; the same call resumes an interrupted survey. By default a temporary folder, removed "
        "together with the result.",
    ] = None
    tokenizer: Annotated[Any, "Required with a live model."] = None
    revision: Annotated[str | None, "A branch, tag or commit of a hub id."] = None
    field: Field = "text"
    length: Annotated[
        int | None,
        Setting(
            "Tokens per window, special tokens included. By default 512, or the model's limit if that is lower.",
            metavar="N",
            least=1,
        ),
    ] = None
    statistics: Statistics = None
    head_distances: Annotated[
        int,
        Setting(
            "Also compare all pairs of heads over N windows. Slow: quadratic in heads and tokens.", metavar="N", least=0
        ),
    ] = 0
    labels: Annotated[
        bool, Setting("Also label every head: its behaviour among words, with how sure it is.", option="--labels")
    ] = False
    examples: Annotated[
        int, Setting("Also keep each head's N most telling pairs of words.", metavar="N", least=0, option="--examples")
    ] = 0
    effects: Annotated[
        int,
        Setting(
            "Also silence each head over N windows; a survey also removes heads one by one.",
            metavar="N",
            least=0,
            option="--effects",
        ),
    ] = 0
    effects_output: Annotated[
        str | None,
        Setting(
            "With effects: the number that they change: loss (masked-LM), class (the predicted one's logit), "
            "embedding_distance, embedding, or a class by name or number. By default the first that the model has.",
            metavar="NAME",
        ),
    ] = None
    effects_method: Annotated[
        str,
        Setting(
            "With effects: how to silence a head: zero, or mean, its mean context in the window.",
            metavar="zero|mean",
            choices=METHODS,
        ),
    ] = METHODS[0]
    writes: Annotated[
        int,
        Setting(
            "Also name the tokens that each head writes, over N windows with masks. For models with a masked-LM head.",
            metavar="N",
            least=0,
        ),
    ] = 0
    report: Annotated[bool, Setting("Write the site at the end: the folder site/.")] = True
    device: Annotated[
        str | None, Setting("Device: cpu, cuda, cuda:1, mps. A live model stays on its own.", metavar="NAME")
    ] = None
    dtype: Annotated[
        str | None,
        Setting("Precision of the model. A live model keeps its own.", metavar="fp32|fp16|bf16", choices=(*DTYPES,)),
    ] = None
    batch_tokens: Annotated[int | None, Setting("Most tokens per batch.", metavar="N", least=1)] = None
    part_size: Annotated[
        int | None, Setting("Characters per part; each part is saved when it is finished.", metavar="N", least=1)
    ] = None
    max_document: Annotated[
        int | None, Setting("Refuse documents with more than N characters.", metavar="N", least=1, most=1 << 40)
    ] = None
    pieces: Annotated[
        int,
        Setting(
            "Cut each document into N pieces, at paragraphs, and count them as documents: for one book.",
            metavar="N",
            least=1,
        ),
    ] = 1
    sample: Annotated[
        int,
        Setting(
            "Measure labels, examples, relations, effects, writes and distances over documents with N words in all.",
            metavar="N",
            least=1,
        ),
    ] = SAMPLE
    threads: Annotated[
        int | None,
        Setting("Threads per replica. By default torch's choice, on Ray 1.", metavar="N", least=1, most=4096),
    ] = None
    ray: Annotated[
        bool | str,
        Setting(
            "Run on Ray: on a running cluster, or started on this machine; as a setting, a cluster's address or auto.",
            option="--ray",
        ),
    ] = False
    workers: Annotated[
        int | None,
        Setting("Replicas on Ray. By default one per GPU, or per `threads` CPUs.", metavar="N", least=1, most=4096),
    ] = None
    progress: Annotated[
        Callable[[Any], None] | None, "Called after each part, with a Tally; by default a bar in notebooks."
    ] = None

    def __post_init__(self) -> None:
        """Check everything that needs neither the model nor the corpus.

        Raises:
            InputError: a number is too small, or a value is not one that the setting takes.
        """
        from headscope.atlas.documents import spelled

        super().__post_init__()
        if self.field != spelled(self.field):
            advice = "use the name of a field or column"
            raise InputError(f"the name {spelled(self.field)!r} is not valid UTF-8", where="field", advice=advice)
        if not self.effects and (self.effects_output is not None or self.effects_method != METHODS[0]):
            found = "effects_output and effects_method say how effects are measured, and none are requested"
            raise InputError(found, where="effects", advice="add --effects N (in Python effects=N), for N windows")

    def resolved(self, device: str = "cpu", dtype: str = "fp32") -> Settings:
        """Return what the numbers depend on.

        Args:
            device: the model's own device, where none is set.
            dtype: the model's own dtype, where none is set.

        Raises:
            InputError: there is no such statistic.
        """
        from headscope.heads.catalog import chosen

        device = self.device or device
        elsewhere = BATCH_TOKENS.get(device.partition(":")[0], BATCH_TOKENS_ELSEWHERE)
        given = {name: value for name, value in vars(self).items() if name in Settings.__dataclass_fields__}
        given |= {"statistics": None if self.statistics is None else chosen(self.statistics)}
        given |= {"device": device, "dtype": self.dtype or dtype, "batch_tokens": self.batch_tokens or elsewhere}
        sizes = {"part_size": self.part_size or PART_SIZE, "max_document": self.max_document or MAX_DOCUMENT}
        return Settings(**given | sizes)


@dataclass(frozen=True, kw_only=True)
class PairSettings(Declared):
    """Settings of a search for heads that see marked pairs."""

    by: Annotated[
        str,
        Setting(
            "cells: the document's strongest pairs are predicted; row: each marked word's strongest word, both ways.",
            "cells|row",
            choices=("cells", "row"),
        ),
    ] = "cells"
    directed: Annotated[
        bool, Setting("A pair goes from its first word to its second; otherwise scores are symmetrised and corrected.")
    ] = False
    apart: Annotated[
        int, Setting("Fewest words from one word of a pair to the other; closer pairs count nowhere.", "N", least=1)
    ] = 1
    chosen_on: Annotated[
        int | None,
        Setting(
            "Choose on the first N documents, report on the rest; by default each fifth is held out.", "N", least=1
        ),
    ] = None
    relations: Annotated[
        str | Iterable[str] | None,
        Setting("Of a treebank, the relations whose arcs are pairs; by default all but punctuation.", "NAME,NAME…"),
    ] = None
    progress: Annotated[
        Callable[[int, int], None] | None,
        "called with the number of traced documents and of all, each traced twice; by default a bar in notebooks.",
    ] = None

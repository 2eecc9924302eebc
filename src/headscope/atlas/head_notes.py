"""A survey beside a trace of the same model: what each head does over a corpus, in sentences for the page's inspector.

The label and its score are those of labels.parquet, effects those of effects.parquet; ranks count by the effect's size.
Names of corpora, models and outputs are untrusted: they are made printable here, and are never markup in the page.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headscope.atlas.labels.names import NONE, RELATIONS
from headscope.atlas.labels.search import LEARNED
from headscope.atlas.result import Survey
from headscope.atlas.site import SITE, Site
from headscope.atlas.site_data import Tables, effects_data, labels_data
from headscope.atlas.wording import counted
from headscope.checkpoint import called
from headscope.errors import HeadscopeWarning, InputError
from headscope.model import Model
from headscope.pages import printable
from headscope.results.head_values import LANGUAGES
from headscope.traces import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping

Said = dict[str, str]
"""Language -> a sentence."""

LINK: Said = {"en": "in the atlas", "ja": "アトラスで見る", "zh": "在图谱中查看"}
NO_LABEL: Said = {"en": "no label", "ja": "ラベルなし", "zh": "无标签"}
MOST_GROUPS = 6
SHARED = {**RELATIONS, LEARNED: ("words such as …", "…のような語", "……之类的词")}
"""A relation, or the sign of a learned class -> its words in LANGUAGES."""
OUTPUTS: dict[str, tuple[str, str, str]] = {
    "loss": ("masked-LM loss", "マスク言語モデルの損失", "掩码语言模型的损失"),
    "embedding": ("1 − cosine", "1 − コサイン", "1 − 余弦"),
}


class OtherModelWarning(HeadscopeWarning):
    """The atlas beside a trace is of another model with heads of the same numbers."""


@dataclass(frozen=True)
class HeadNotes:
    """A survey that stands beside a trace.

    Attributes:
        survey: the survey.
        model: the trace's model, by the name that the trace has.
        notice: a sentence if it is of another model, or may be; else None.
        heads: `layer.head` -> language -> the label, the numbers behind it, the head's page in the site, and its link.
    """

    survey: Survey
    model: str
    notice: str | None
    heads: Mapping[str, Mapping[str, tuple[str, str, str, str]]]

    def data(self, site: str | None) -> dict[str, Any]:
        """The data that the page has of it.

        Args:
            site: the address of the survey's site, up to the last slash; None for no links.
        """
        return {"model": self.model, "heads": self.heads, "site": site}

    def site_from(self, folder: Path | None) -> str | None:
        """The address of the survey's site from a file in `folder`; None if it has no site.

        It is absolute where the folder is None, or on another drive.
        """
        site = (self.survey.folder / SITE).resolve()
        if not (site / "index.html").is_file():
            return None
        try:
            path = None if folder is None else quote(Path(os.path.relpath(site, folder.resolve())).as_posix())
        except ValueError:
            path = None
        return f"{path or site.as_uri()}/"

    def groups(self) -> list[tuple[Said, list[tuple[int, int]]]]:
        """Relations and classes that labels of several heads have in common, with these heads: the largest MOST_GROUPS.

        A survey of another model has none.
        """
        if self.notice is not None:
            return []
        found: dict[str, list[tuple[int, int]]] = {}
        tables = Tables(self.survey)
        for row in tables.rows("labels") or ():
            names = {*row["relation"], *(key[:1] for key in row["key"])} & SHARED.keys()
            for name in sorted(names if (row["layer"], row["head"]) in tables.cells else ()):
                found.setdefault(name, []).append((row["layer"], row["head"]))
        largest = sorted((name for name in found if len(found[name]) > 1), key=lambda name: -len(found[name]))
        return [(dict(zip(LANGUAGES, SHARED[name], strict=True)), found[name]) for name in largest[:MOST_GROUPS]]

    @cached_property
    def _site(self) -> Site:
        return Site(self.survey)

    def page(self, name: str) -> bytes | None:
        """A file of the survey's site, made from its tables: what lies in a stranger's folder is never served."""
        return self._site.content(name) if name in self._site.names else None


def head_notes(folder: str | os.PathLike[str], trace: Trace) -> HeadNotes:
    """Read a survey to show it beside a trace of the same model.

    Args:
        folder: of a finished survey with labels or effects.
        trace: of the surveyed model.

    Raises:
        InputError: the folder has no finished survey, the survey has neither labels nor effects, or its model has
            other layers, heads or sizes.
        MissingExtraError: pyarrow is not installed.
    """
    survey = Survey(folder, parts=False)
    _check_sizes(survey.folder, survey.manifest["model"], trace)
    tables = Tables(survey)
    labels, effects = labels_data(tables), effects_data(tables)
    if labels is None and effects is None:
        found = "the survey has neither labels nor effects, so there is nothing to say of a head"
        advice = "survey with --labels, with --effects 100, or with both"
        raise InputError(found, where=str(survey.folder), advice=advice)
    other = _other(survey.manifest, trace)
    heads = {
        f"{layer}.{head}": {
            of: (label[of], numbers[of], f"head-{layer}-{head}.html#lang={of}", LINK[of])
            for label, numbers in [_head(survey, labels, effects, cell, other)]
            for of in LANGUAGES
        }
        for (layer, head), cell in tables.cells.items()
    }
    notice = None if other is None else f"the atlas is of {other}, not of this model ({called(trace.model)})"
    return HeadNotes(survey, trace.model, notice, heads)


def _check_sizes(folder: Path, surveyed: Mapping[str, Any], trace: Trace) -> None:
    """Raise InputError unless the surveyed model has the trace's layers and heads, and its model's sizes."""
    ours = {number: tuple(trace.head_numbers(number)) for number in trace.numbers}
    theirs = {number: tuple(heads) for number, heads in zip(surveyed["layers"], surveyed["heads"], strict=True)}
    differences = []
    if ours != theirs:
        differences.append(f"{_shape(theirs)}, and the trace {_shape(ours)}")
    if isinstance(trace.source, Model):
        config, own = surveyed.get("config") or {}, trace.source.checkpoint.config
        differences += [
            f"{printable(name)} {value}, and the trace's model {own[name]}"
            for name, value in config.items()
            if not name.endswith("_id") and type(value) is type(own.get(name)) is int and value != own[name]
        ]
    if differences:
        found = f"the atlas is of {printable(called(str(surveyed['name'])))}, which has {'; '.join(differences)}"
        raise InputError(found, where=str(folder), advice="name the folder of a survey of the trace's own model")


def _shape(heads: Mapping[int, tuple[int, ...]]) -> str:
    """`6 layers × 12 heads`; the numbers of layers and heads where they aren't the usual ones."""
    if list(heads) == list(range(len(heads))) and len({*heads.values()}) == 1:
        numbers = next(iter(heads.values()))
        if list(numbers) == list(range(len(numbers))):
            return f"{len(heads)} layers × {len(numbers)} heads"
    return "the heads " + ", ".join(f"{layer}.{head}" for layer, row in heads.items() for head in row)[:200]


def _other(manifest: Mapping[str, Any], trace: Trace) -> str | None:
    """The surveyed model's name if it isn't the trace's model's, or None."""
    name = str(manifest["model"]["name"])
    ours = Path(trace.model).resolve().name if trace.model != "-" and os.path.exists(trace.model) else trace.model
    owners, names = zip(*(one.rpartition("/")[::2] for one in (name, ours)), strict=True)
    same = names[0] == names[1] and (owners[0] == owners[1] or not all(owners))
    return None if same else printable(called(name))


def _head(
    survey: Survey,
    labels: list[dict[str, Any] | None] | None,
    effects: dict[str, Any] | None,
    cell: int,
    other: str | None,
) -> tuple[Said, Said]:
    """A head's label, and its score, its effect and what both were measured on."""
    label = None if labels is None else labels[cell]
    title = dict.fromkeys(LANGUAGES, "") if label is None else label["says"]
    if label is not None and label["label"] == NONE:
        title = NO_LABEL
    if other is not None:
        title = {
            "en": f"in {other}, not this model: {title['en']}",
            "ja": f"このモデルではなく {other}：{title['ja']}",
            "zh": f"并非此模型，而是 {other}：{title['zh']}",
        }
    parts = [part for part in (_score(label), _effect(effects, cell)) if part is not None]
    corpus, documents = printable(str(survey.manifest["corpus"]["name"])), survey.manifest["counts"]["documents"]
    over = {
        "en": f"{corpus}, {counted(documents, 'document')}.",
        "ja": f"{corpus}、{documents:,} 文書。",
        "zh": f"{corpus}，{documents:,} 个文档。",
    }
    joints = {"en": "; ", "ja": "。", "zh": "；"}
    ends = {"en": ". ", "ja": "。", "zh": "。"}
    starts = {of: "· " if title[of] else "" for of in LANGUAGES}
    return title, {
        of: starts[of] + joints[of].join(part[of] for part in parts) + (ends[of] if parts else "") + over[of]
        for of in LANGUAGES
    }


def _score(label: dict[str, Any] | None) -> Said | None:
    """The share of strongest pairs that a label explains, its interval, and the share by chance."""
    if label is None or label["score"] is None:
        return None
    score, low, high, chance = (_percent(label[name]) for name in ("score", "low", "high", "baseline"))
    low = low.removesuffix("%")
    return {
        "en": f"explains {score} of its strongest pairs ({low}–{high}, by chance {chance})",
        "ja": f"最も強い組の {score} を説明（{low}–{high}、偶然では {chance}）",
        "zh": f"解释其最强词对的 {score}（{low}–{high}，随机为 {chance}）",
    }


def _effect(effects: dict[str, Any] | None, cell: int) -> Said | None:
    """The change of the output when the head is silenced, and its rank by size."""
    if effects is None or effects["change"][cell] is None:
        return None
    change = effects["change"][cell]
    sizes = [abs(value) for value in effects["change"] if value is not None]
    rank, of, windows = 1 + sum(size > abs(change) for size in sizes), len(sizes), effects["windows"]
    name = effects["output"]
    output = next((names for start, names in OUTPUTS.items() if start in name), (name,) * 3)
    number = f"{change:{'+.3f' if abs(change) >= 0.01 or change == 0 else '+.2g'}}".replace("-", "−")
    return {
        "en": f"silenced in the survey: {output[0]} {number} ({counted(windows, 'window')}), rank {rank} of {of}",
        "ja": f"調査全体で無効化すると{output[1]} {number}（{windows:,} ウィンドウ）、{of} ヘッド中 {rank} 番目",
        "zh": f"在调查中屏蔽后{output[2]} {number}（{windows:,} 个窗口），{of} 个头中排第 {rank}",
    }


def _percent(share: float | None) -> str:
    """A share as the page writes it."""
    return "–" if share is None else f"{100 * share:.{1 if share < 0.1 else 0}f}%"

"""A survey as a small site that opens from disk: a home page and one page per head.

`report_data` is its data as JSON, with the names of `Survey` in web/src/report/data.ts. Heads are numbered by their
cells of the grid: row * columns + column. Untrusted text is made printable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from headscope.atlas.layout_2d import layer_ticks, plane_of, round_up
from headscope.atlas.result import Survey
from headscope.atlas.site_data import (
    Tables,
    effects_data,
    extremes,
    heads_data,
    labels_data,
    middle_data,
    special_data,
    syntax_data,
)
from headscope.atlas.survey_data import FIELDS
from headscope.checkpoint import called
from headscope.files import make_folder, write_if_new
from headscope.heads import CATALOG
from headscope.pages import filled, json_element, printable, shared
from headscope.results.head_values import HeadDistances

SITE = "site"
"""The folder of the site, in the survey's."""

HOME_ONLY = ("standing", "figures", "plane", "settings", "versions")
"""Data that heads' pages don't show."""

OF_OTHERS = ("kind", "short", "score", "coverage", "part", "clauses", "alone")
"""Of other heads' labels, what a head's page shows."""

FIGURES: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    (
        "Weight on [CLS], on [SEP] and on punctuation",
        "mean weight",
        "Clark et al. 2019, figure 2",
        {"cls": "[CLS]", "sep": "[SEP]", "punctuation": "punctuation"},
    ),
    (
        "Weight on the previous token, the same and the next",
        "mean weight",
        "Clark et al. 2019, section 3.1",
        {"previous": "previous token", "same": "same token", "next": "next token"},
    ),
    ("Entropy of every head", "mean entropy (nats)", "Clark et al. 2019, figure 4", {"entropy": "entropy"}),
)
"""Figures after Clark et al. 2019, “What Does BERT Look At?”: title, axis, source; statistic -> title of its panel."""


def write_site(folder: Path, *, parts: bool = True) -> Path:
    """Write site/ into a finished survey's folder: index.html, and a page for each head.

    Links are relative; no page needs the network. The same survey gives the same bytes. Names of models and documents
    and the texts of the corpus are untrusted: they are data, never markup, in pages whose policy allows only the
    scripts beside them.

    Args:
        folder: of the survey.
        parts: check every part against its hash first.

    Returns:
        The path of the site's home page.

    Raises:
        InputError: the folder has no finished survey, or a file can't be written.
    """
    site = Path(folder) / SITE
    made = Site(Survey(folder, parts=parts))
    make_folder(site)
    for name in made.names:
        write_if_new(site / name, made.content(name))
    for other in site.glob("head-*.html"):
        if other.name not in made.names:
            with suppress(OSError):
                other.unlink()
    return site / "index.html"


class Site:
    """The pages of a survey's site, made from its tables one by one."""

    def __init__(self, survey: Survey) -> None:
        self._shared, self._title = shared("report"), _title(survey)
        tables = Tables(survey)
        self._data = report_data(tables)
        self._others = _of_others(self._data)
        self._heads = heads_data(tables)
        self._cells = {
            f"head-{layer}-{head}.html": (f"{layer}.{head}", at) for (layer, head), at in tables.cells.items()
        }

    @property
    def names(self) -> list[str]:
        """The names of its files."""
        return [*self._shared, "index.html", *self._cells]

    def content(self, name: str) -> bytes:
        """The bytes of one of its files."""
        if name in self._shared:
            return self._shared[name]
        title, data, heads = self._title, self._data, []
        if name != "index.html":
            label, cell = self._cells[name]
            title, data, heads = f"{label} · {title}", _of_head(data, self._others, cell), [self._heads[cell]]
        elements = [json_element("hs-survey", data), json_element("hs-heads", heads)]
        return filled("report", title=title, elements=elements, beside=True)


def _of_others(data: dict[str, Any]) -> dict[str, Any]:
    """The data that all heads' pages share: rounded means, labels in short, and syntax by the head's cell."""
    syntax: dict[int, list[dict[str, Any]]] = {}
    for row in data["syntax"] or ():
        syntax.setdefault(row["cell"], []).append(row)
    rounded = [
        {**statistic, "mean": [None if mean is None else float(f"{mean:.4g}") for mean in statistic["mean"]]}
        for statistic in data["statistics"]
    ]
    said = [(data["effects"] or {}).get("output"), *(statistic["meaning"] for statistic in data["statistics"])]
    return {
        **data,
        "words": {text: others for text, others in data["words"].items() if text in said},
        **{name: None if data[name] is None or name == "plane" else [] for name in HOME_ONLY},
        "corpus": {**data["corpus"], "files": []},
        "refused": {"count": 0, "reasons": [], "documents": []},
        "statistics": rounded,
        "nearest": data["nearest"] and [[]] * len(data["nearest"]),
        "labels": data["labels"] and [label and {name: label[name] for name in OF_OTHERS} for label in data["labels"]],
        "syntax": data["syntax"] and syntax,
    }


def _of_head(data: dict[str, Any], others: dict[str, Any], cell: int) -> dict[str, Any]:
    """The data that a head's page needs: `others`, with all that there is of the head itself."""

    def own(every: list[Any], brief: list[Any]) -> list[Any]:
        return every and [*brief[:cell], every[cell], *brief[cell + 1 :]]

    statistics = [
        {
            **brief,
            "mean": own(statistic["mean"], brief["mean"]),
            **{field: {str(cell): statistic[field][cell]} for field in (*FIELDS, "count") if field != "mean"},
        }
        for statistic, brief in zip(data["statistics"], others["statistics"], strict=True)
    ]
    syntax = others["syntax"] and others["syntax"].get(cell, [])
    lists = {name: own(data[name], others[name]) for name in ("nearest", "labels")}
    return {**others, "statistics": statistics, "syntax": syntax, **lists}


def _title(survey: Survey) -> str:
    model, corpus = called(str(survey.manifest["model"]["name"])), survey.manifest["corpus"]["name"]
    return printable(f"{model} over {corpus} · headscope survey")


SAID = """
weight, 0 to 1 · 重み、0〜1 · 权重，0 至 1
0 to 1 · 0〜1 · 0 至 1
share, 0 to 1 · 割合、0〜1 · 比例，0 至 1
length, as hidden states · 長さ、隠れ状態と同じ尺度 · 长度，与隐藏状态同一尺度
tokens; negative looks back · トークン。負は前方 · 词元；负值为向前看
masked-LM loss · マスク言語モデルの損失 · 掩码语言模型的损失
logit of the predicted class · 予測されたクラスのロジット · 预测类别的 logit
embedding (share of its length) · 埋め込み（長さに対する割合） · 嵌入（占其长度的比例）
embedding (1 - cosine) · 埋め込み（1 − コサイン） · 嵌入（1 − 余弦）
1 - cosine · 1 − コサイン · 1 − 余弦
share · 割合 · 比例
Weight on [CLS], on [SEP] and on punctuation · [CLS]、[SEP]、句読点への重み · [CLS]、[SEP] 和标点上的权重
Weight on the previous token, the same and the next · 直前、同じ、直後のトークンへの重み · 前一、同一与后一词元的权重
Entropy of every head · 各ヘッドのエントロピー · 每个头的熵
mean weight · 重みの平均 · 平均权重
mean entropy (nats) · エントロピーの平均（ナット） · 平均熵（奈特）
Heads that look alike lie together · 似ているヘッドは近くにある · 相似的头彼此靠近
damaged · 破損 · 已损坏
empty · 空 · 空文档
no field · フィールドなし · 没有字段
no text · テキストなし · 没有文本
no window · ウィンドウなし · 没有窗口
not Arrow · Arrow でない · 不是 Arrow
not CSV · CSV でない · 不是 CSV
not JSON · JSON でない · 不是 JSON
not Parquet · Parquet でない · 不是 Parquet
not UTF-8 · UTF-8 でない · 不是 UTF-8
not text · テキストでない · 不是文本
packed · 圧縮 · 已压缩
too long · 長すぎる · 过长
unreadable · 読み込み不可 · 无法读取
"""
"""Texts of the data in English, Japanese and Chinese: units, outputs, figures, why documents are refused."""

NEAREST = 5
"""Most similar heads listed for each head."""
FILES = 1000
"""Most files of the corpus that are listed."""


def report_data(tables: Tables) -> dict[str, Any]:
    """All data but those of single heads' pages, which `heads_data` has."""
    survey = tables.survey
    manifest, near = survey.manifest, survey.similarity if survey.has("similarity") else None
    model, corpus, settings, counts = (manifest[part] for part in ("model", "corpus", "settings", "counts"))
    return {
        "model": {
            "name": printable(called(str(model["name"]))),
            "class": _plain(model["class"]),
            "file": _plain(model["name"]),
            "sha256": _plain(model["sha256"]),
            "parameters": model["parameters"],
        },
        "corpus": {
            "name": printable(str(corpus["name"])),
            "kind": printable(str(corpus["kind"])),
            "count": len(corpus["files"]),
            "files": [[printable(str(file["name"])), file["bytes"]] for file in corpus["files"][:FILES]],
        },
        "settings": _pairs(settings),
        "versions": _pairs(manifest["versions"]),
        "counts": {name: counts[name] for name in ("documents", "windows", "tokens")},
        "run": {
            "length": settings["length"],
            "dtype": printable(str(settings["dtype"])),
            "device": printable(str(settings["device"])),
            "examples": settings.get("examples", 0),
        },
        "layers": survey.layers,
        "heads": survey.across,
        "named": list(tables.cells.values()),
        "ticks": layer_ticks(survey.layers),
        "statistics": [statistic_words(name) | _fields(survey, name) for name in survey.aggregates["statistics"]],
        "standing": [standing for name in survey.aggregates["statistics"] for standing in _standing(tables, name)],
        "figures": _figures(survey),
        "plane": None if near is None else _plane(near, tables),
        "nearest": None if near is None else _nearest(near, tables),
        "labels": labels_data(tables),
        "syntax": syntax_data(tables),
        "middle": middle_data(tables),
        "effects": effects_data(tables),
        "special": special_data(tables),
        "compared": len(manifest.get("similarity", {}).get("windows", [])),
        "leftOut": _pairs(manifest["left_out"]),
        "words": site_words(),
        "refused": {
            "count": counts["refused"],
            "reasons": [[printable(reason), number] for reason, number in manifest["refused"]["reasons"].items()],
            "documents": [
                [_plain(of[name]) for name in ("document", "detail")] for of in manifest["refused"]["documents"]
            ],
        },
    }


def statistic_words(name: str) -> dict[str, Any]:
    """A statistic's name, meaning and unit, as the report shows them."""
    statistic = CATALOG[name]
    short = statistic.units[0] if statistic.units else ""
    return {
        "name": name,
        "names": statistic.record()["names"],
        "meaning": statistic.described,
        "unit": statistic.unit,
        "short": short if short in ("nats", "tokens") else "",
        "signed": statistic.signed,
    }


def _fields(survey: Survey, name: str) -> dict[str, list[Any]]:
    """Every field of a statistic, layer by layer, null for a missing value."""
    return {
        **{field: [_number(value) for value in survey.measure(name, field).ravel()] for field in FIELDS},
        "count": [0 if np.isnan(count) else int(count) for count in survey.measure(name, "count").ravel()],
    }


def _number(value: float) -> float | None:
    """A number with nine digits, more than the report shows, so that rounding twice makes no difference."""
    return float(f"{value:.9g}") if np.isfinite(value) else None


def _standing(tables: Tables, statistic: str) -> list[dict[str, Any]]:
    return [
        {
            "statistic": statistic,
            "says": extreme.says,
            "heads": [[tables.cells[layer, head], _number(value)] for layer, head, value in extreme.heads],
            "low": _number(extreme.low),
            "high": _number(extreme.high),
            "middle": _number(extreme.middle),
        }
        for extreme in extremes(tables.survey, statistic)
    ]


def _figures(survey: Survey) -> list[dict[str, Any]]:
    """The figures that show a measured statistic."""
    figures = []
    for title, axis, source, panels in FIGURES:
        values = [survey[name].ravel() for name in panels if name in survey]
        if not values:
            continue
        every = np.concatenate(values)
        highest = np.max(every, initial=0.0, where=np.isfinite(every))
        figures.append(
            {
                "title": title,
                "axis": axis,
                "source": source,
                "panels": list(panels.items()),
                "highest": round_up(float(highest)),
            }
        )
    return figures


def _plane(near: HeadDistances, tables: Tables) -> dict[str, Any]:
    return {
        "title": "Heads that look alike lie together",
        "source": "Clark et al. 2019, figure 6",
        "windows": len(tables.survey.manifest.get("similarity", {}).get("windows", [])),
        **plane_of(near.array, near.labels or (), list(tables.cells.values())),
    }


def _nearest(near: HeadDistances, tables: Tables) -> list[list[tuple[int, float | None]]]:
    """For each cell, the cells of the most similar heads, with their distances."""
    cells = list(tables.cells.values())
    nearest: list[list[tuple[int, float | None]]] = [[] for _ in range(tables.width * len(tables.survey.layers))]
    for at, cell in enumerate(cells):
        others = [other for other in np.argsort(near[at], kind="stable") if other != at][:NEAREST]
        nearest[cell] = [(cells[other], _number(near[at, other])) for other in others]
    return nearest


def _pairs(table: Mapping[str, Any]) -> list[list[str]]:
    return [[printable(str(name)), _plain(value)] for name, value in table.items()]


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True))


def site_words() -> dict[str, tuple[str, ...]]:
    """A text of the data -> the same in Japanese and in Chinese."""
    words = {english: tuple(others) for english, *others in (line.split(" · ") for line in SAID.split("\n") if line)}
    for statistic in CATALOG.values():
        own = (statistic.names, statistic.units, statistic.most, statistic.least)
        words |= {said[0]: said[1:] for said in own if said}
        units = words[statistic.unit]
        both = [f"{meaning}（{unit}）" for meaning, unit in zip(statistic.meanings, units, strict=True)]
        words[statistic.described] = statistic.meanings if statistic.described == statistic.meaning else tuple(both)
    return words

"""Effects, attributions, similarities and comparisons of the golden models: what Python returns, what is printed."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import headscope as hs
from golden.keeping import KEPT, keep, printed
from golden.models import TEXTS
from headscope.cli import app

MASKED = "the queen liked the big [MASK] ."
OTHER = "the mouse found the red horse ."
CHANGES: dict[str, dict[str, Any]] = {
    "zero": {},
    "mean": {"method": "mean"},
    "patch": {"patch_from": OTHER},
    "edge": {"edge": (6, 2)},
    "word": {"target": "horse"},
    "number": {"target": ("word", 7, 6)},
    "embedding": {"target": ("embedding",)},
    "similarity": {"target": ("similarity", OTHER), "method": "mean"},
    "pair": {"pair": "the tiger heard the mouse ."},
}
"""Name -> what `model.effects` is called with beside the text."""
FACTS = ("text", "target", "method", "change", "base", "aside", "base_aside", "axis", "pair", "patch_from", "edge")
"""What is kept of effects."""

SCREENS = {
    "effects": ("effects", "base", MASKED, "--top", "4"),
    "effects-patch": ("effects", "base", MASKED, "--set", f"patch_from={OTHER}", "--target", "horse", "--at", "6"),
    "attribute": ("attribute", "base", MASKED),
    "predict": ("predict", "classifier", OTHER),
    "match": ("match", "base", OTHER, *TEXTS[:2], "--top", "3"),
    "why": ("why", "base", TEXTS[0], "1.0", "2", "3", "--top", "3"),
    "compare": ("compare", "base", "tuned", "--top", "3"),
    "compare-texts": ("compare", "base", "tuned", "texts", "--statistic", "entropy,previous,next", "--top", "3"),
    "compare-surveys": ("compare", "survey-base", "survey-tuned", "--top", "3"),
    "verify": ("verify", "base", MASKED),
    "pairs": ("pairs", "base", "known.conllu", "--set", "chosen_on=10", "--top", "3"),
    "attend-heads": ("attend", "base", MASKED, "--statistic", "previous"),
}
"""Name -> a command, whose screen and JSON are kept."""

ROUNDING = {"worst", "layer", "head", "query", "key", "text", "ours", "theirs", "tolerance", "gap"}
"""Of a check, where the greatest rounding error is, and its size."""


CHECKED = ("verify",)
"""Commands whose screens show the sizes of rounding errors, or their places."""


def record(value: Any) -> Any:
    """A result: as text, and its fields; a text's tokens as texts."""
    if hasattr(value, "__dataclass_fields__"):
        parts = {field.name: record(getattr(value, field.name)) for field in fields(value)}
        return parts["tokens"] if "spans" in parts else {"text": str(value), **parts}
    return [record(item) for item in value] if isinstance(value, tuple) else value


@pytest.fixture(scope="module")
def model(place: Path) -> hs.Model:
    return hs.open(place / "base")


@pytest.mark.parametrize("name", CHANGES)
def test_effects(name: str, model: hs.Model, request: pytest.FixtureRequest) -> None:
    given = dict(CHANGES[name])
    text = MASKED if name not in ("embedding", "similarity") else TEXTS[1]
    result = model.effects(text, given.pop("target", None), **given)
    facts = {fact: record(getattr(result, fact)) for fact in FACTS}
    keep(request, f"effects-{name}", {**facts, "strongest": result.strongest(4)})


@pytest.mark.parametrize("method", ["zero", "mean", "patch"])
def test_effects_over_texts(method: str, model: hs.Model, request: pytest.FixtureRequest) -> None:
    texts = [MASKED, "the tiger heard the red [MASK] .", "the sheep often found the [MASK] ."]
    how: dict[str, Any] = {"patch_from": [OTHER] * len(texts)} if method == "patch" else {"method": method}
    result = model.effects(texts, "horse", **how)
    value = {"mean": result.array, "low": result.low, "high": result.high}
    keep(request, f"effects-over-texts-{method}", {"repr": repr(result), **value, "strongest": result.strongest(4)})


def test_attributions(model: hs.Model, request: pytest.FixtureRequest) -> None:
    keep(request, "attribution-decompx", record(model.attribute(MASKED)))


@pytest.mark.parametrize("name", ["weights", "texts", "surveys"])
def test_comparisons(name: str, surveyed: Path, model: hs.Model, request: pytest.FixtureRequest) -> None:
    if name == "surveys":
        result = hs.compare(surveyed / "survey-base", surveyed / "survey-tuned")
    else:
        result = hs.compare(model, surveyed / "tuned", TEXTS if name == "texts" else None)
    value = {
        "repr": repr(result).replace(str(surveyed), "FOLDER").replace(surveyed.as_posix(), "FOLDER"),
        "rows": columns(result.rows()),
        "parts": result.parts,
        "outside": result.outside,
        "left_out": result.left_out,
        "notes": result.notes,
        "documents": result.documents,
        "differs": result.differs,
        "strongest": result.strongest(4),
        "strongest_statistic": result.strongest_statistic(),
        "schema": {field.name: str(field.type) for field in result.arrow().schema},
    }
    keep(request, f"comparison-{name}", value)


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """A list of rows, by column."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_the_json_of_every_command_is_kept() -> None:
    """Here, in test_golden.py or in test_golden_surveys.py."""
    group: Any = get_command(app)
    context = group.context_class(group, info_name="headscope")
    kept = {path.stem.removeprefix("answer-") for path in KEPT.glob("*.json")}
    for name in group.list_commands(context):
        if any("--json" in one.opts for one in group.get_command(context, name).params):
            assert name in kept


@pytest.mark.parametrize("name", SCREENS)
def test_screens(name: str, surveyed: Path, request: pytest.FixtureRequest) -> None:
    machine = json.loads(printed(surveyed, *SCREENS[name], "--json"))
    if name in CHECKED:
        for check in machine["checks"]:
            for field in ROUNDING & check.keys():
                del check[field]
    screen = {} if name in CHECKED else {"screen": printed(surveyed, *SCREENS[name])}
    keep(request, f"answer-{name}", {**screen, "json": machine})

"""Two models, a treebank and texts in a folder, and surveys of both models: made once for all goldens."""

from __future__ import annotations

from pathlib import Path

import pytest

from explain.tops import readable
from golden.keeping import printed
from golden.models import MORE, OPTIONS, TEXTS, golden_model
from known_heads import known_treebank


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models `base`, `tuned` and `classifier`, the treebank known.conllu and the folder texts/."""
    folder = tmp_path_factory.mktemp("golden")
    golden_model(folder / "base")
    golden_model(folder / "tuned", tuned=True)
    readable(folder / "classifier", "Bert", "ForSequenceClassification")
    known_treebank(folder / "known.conllu", documents=9)
    (folder / "texts").mkdir()
    for number, text in enumerate(TEXTS):
        (folder / "texts" / f"{number}.txt").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def surveyed(place: Path) -> Path:
    """The same folder, with `survey-base`, which has everything that a survey can have, and `survey-tuned`.

    survey-base.json is what the first of them prints.
    """
    machine = printed(place, "survey", "base", "known.conllu", "--out", "survey-base", *OPTIONS, *MORE, "--json")
    (place / "survey-base.json").write_text(machine, encoding="utf-8")
    printed(place, "survey", "tuned", "known.conllu", "--out", "survey-tuned", *OPTIONS, "--set", "report=false")
    return place

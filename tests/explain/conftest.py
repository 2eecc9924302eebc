"""Random BERTs that can be read, made once: no test changes one."""

from __future__ import annotations

import pytest

import headscope as hs
from explain.tops import readable
from random_models import Made


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A masked LM."""
    return readable(tmp_path_factory.mktemp("words"), "Bert", "ForMaskedLM")


@pytest.fixture
def model(words: Made) -> hs.Model:
    """The masked LM, opened anew."""
    return hs.open(words.folder)


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A classifier of three named classes."""
    return readable(tmp_path_factory.mktemp("classes"), "Bert", "ForSequenceClassification")

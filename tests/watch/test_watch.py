"""`hs.watch`: the statistics are those of the model at that step, and training is the same with it as without."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet

import headscope as hs
from headscope.errors import InputError, install
from headscope.heads import CATALOG
from watch.training import TEXTS, Examples, classifier, tokenizer


@pytest.fixture
def spelled(tmp_path: Path) -> Any:
    return tokenizer(tmp_path / "tokenizer")


def train(spelled: Any, steps: int, watch: Any = None) -> tuple[Any, list[float]]:
    """AdamW with dropout, two gradients accumulated for each step; the watch looks in the midst of an accumulation."""
    model = classifier()
    rows = Examples(spelled).rows
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    torch.manual_seed(1)
    opened = watch(model) if watch is not None else None
    if opened is not None:
        opened.__enter__()
    for step in range(steps):
        for half in range(2):
            batch = torch.utils.data.default_collate(rows[(2 * step + half) % len(rows) :][:2])
            loss = model(**batch).loss
            loss.backward()
            losses.append(loss.item())
            if opened is not None and half == 0:
                opened.step(step)
        optimiser.step()
        optimiser.zero_grad()
    if opened is not None:
        opened.__exit__(None, None, None)
    return model, losses


def test_training_is_bit_by_bit_what_it_is_without(spelled: Any) -> None:
    plain, losses = train(spelled, 6)
    drawn = torch.rand(3), random.getstate()
    watched, same = train(spelled, 6, lambda model: hs.watch(model, TEXTS, tokenizer=spelled, every=2))
    assert losses == same
    for (name, tensor), other in zip(plain.state_dict().items(), watched.state_dict().values(), strict=True):
        assert torch.equal(tensor, other), name
    assert torch.equal(drawn[0], torch.rand(3))
    assert drawn[1] == random.getstate()


def test_nothing_is_left_in_the_model(spelled: Any) -> None:
    model = classifier()
    model.bert.encoder.layer[0].eval()  # modes that differ from module to module, as with frozen layers
    model.bert.pooler.requires_grad_(False)
    loss = model(**torch.utils.data.default_collate(Examples(spelled).rows[:2])).loss
    loss.backward()

    def state() -> dict[str, Any]:
        return {
            "modes": [module.training for module in model.modules()],
            "hooks": [
                (len(module._forward_hooks), len(module._forward_pre_hooks), len(module._backward_hooks))
                for module in model.modules()
            ],
            "forwards": ["forward" in vars(module) for module in model.modules()],
            "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
            "wanted": [p.requires_grad for p in model.parameters()],
            "buffers": {name: buffer.clone() for name, buffer in model.named_buffers()},
            "attention": model.config._attn_implementation,
            "random": torch.get_rng_state(),
        }

    before = state()
    with hs.watch(model, TEXTS, tokenizer=spelled, every=1) as watch:
        assert watch.step(0)
    after = state()
    for name in ("modes", "hooks", "forwards", "wanted", "attention"):
        assert before[name] == after[name], name
    for name in ("gradients", "random"):
        torch.testing.assert_close(before[name], after[name], rtol=0, atol=0)
    torch.testing.assert_close(before["buffers"], after["buffers"], rtol=0, atol=0)


def test_autocast_around_a_step_changes_neither_gradients_nor_numbers(spelled: Any) -> None:
    model = classifier(dropout=0.0)
    batch = torch.utils.data.default_collate(Examples(spelled).rows[:2])
    gradients = []
    for looks in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if looks:
                (watch := hs.watch(model, TEXTS, tokenizer=spelled)).measure(0)
            loss = model(**batch).loss
        loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(gradient is not None for gradient in gradients[1])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    (plain := hs.watch(model, TEXTS, tokenizer=spelled)).measure(0)
    np.testing.assert_array_equal(watch["entropy"], plain["entropy"])


def test_statistics_are_those_of_eager_attention(spelled: Any) -> None:
    """Entropy and the weight on the token before, from the weights that transformers' eager attention returns."""
    model = classifier()
    with hs.watch(model, TEXTS, tokenizer=spelled, every=1) as watch:
        watch.step(0)
    model.set_attn_implementation("eager")
    model.eval()
    entropy, previous = [], []
    for text in TEXTS:
        with torch.no_grad():
            attentions = model(**spelled(text, return_tensors="pt"), output_attentions=True).attentions
        weights = torch.cat(attentions).double().numpy()  # (layers, heads, queries, keys)
        entropy.append(-(weights * np.log(weights)).sum(-1).mean(-1))
        previous.append(np.diagonal(weights, -1, 2, 3).mean(-1))
    np.testing.assert_allclose(watch["entropy"][0], np.mean(entropy, axis=0), atol=2e-5)
    np.testing.assert_allclose(watch["previous"][0], np.mean(previous, axis=0), atol=2e-6)


def test_every_so_many_steps_and_the_last_one(spelled: Any) -> None:
    model = classifier()
    with hs.watch(model, TEXTS, tokenizer=spelled, every=3) as watch:
        assert "nothing measured yet" in repr(watch)
        assert [step for step in range(8) if watch.step(step)] == [0, 3, 6]
        assert not watch.step(7)
        with pytest.raises(InputError, match="step 2 comes after step 7"):
            watch.step(2)
    assert watch.steps == (0, 3, 6, 7)
    assert watch["first"].shape == (4, 2, 2)
    assert 0 < watch.share <= 1
    assert watch.seconds > 0
    assert "4 heads in 2 layers at 4 steps, 0 to 7" in repr(watch)
    assert len(watch.rows()) == 16
    assert watch.rows()[5] == {
        "step": 3,
        "layer": 0,
        "head": 1,
        **{name: pytest.approx(float(watch[name][1, 0, 1]), nan_ok=True) for name in watch.statistics},
    }


def test_without_torch_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import headscope as hs; hs.watch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtraError: watching a model while it trains needs torch" in done.stderr
    assert install("survey") in done.stderr


def test_a_block_that_fails_measures_nothing_more(spelled: Any) -> None:
    watch = hs.watch(classifier(), TEXTS, tokenizer=spelled, every=5)

    def diverge() -> None:
        with watch:
            watch.step(0)
            watch.step(3)
            raise FloatingPointError

    with pytest.raises(FloatingPointError):
        diverge()
    assert watch.steps == (0,)


def test_the_file_has_a_row_per_step_layer_and_head(spelled: Any, tmp_path: Path) -> None:
    path = tmp_path / "heads.parquet"
    with hs.watch(classifier(), TEXTS, tokenizer=spelled, every=2, out=path, statistics=["entropy", "sep"]) as watch:
        watch.step(0)
        assert parquet.read_table(path).num_rows == 4  # written as soon as it is measured
        watch.step(2)
    table = parquet.read_table(path)
    assert watch.arrow().equals(table)
    with pytest.warns(DeprecationWarning, match=r"Watch.table\(\) is now Watch.arrow\(\)"):
        assert watch.table().equals(table)
    assert table.column_names == ["step", "layer", "head", "entropy", "sep"]
    assert table["step"].to_pylist() == [0] * 4 + [2] * 4
    assert table["layer"].to_pylist() == [0, 0, 1, 1] * 2
    np.testing.assert_array_equal(table["sep"].to_numpy(), watch["sep"].array.ravel().astype(np.float32))
    assert [path.name] == [file.name for file in tmp_path.glob("*.parquet*")]
    again = hs.watch(classifier(), TEXTS, tokenizer=spelled, every=2, out=path, statistics=["entropy", "sep"])
    again.resume(1)
    assert again.steps == (0,)
    np.testing.assert_allclose(again["sep"], watch["sep"][:1], rtol=1e-6)
    other = hs.watch(classifier(), TEXTS, tokenizer=spelled, out=path)
    with pytest.raises(InputError, match="has the columns step, layer, head, entropy, sep"):
        other.resume(1)
    path.write_bytes(b"no table")
    with pytest.raises(InputError, match="not one that a watch wrote: the hash written with it is missing"):
        again.resume(1)


def test_patterns_count_every_head_by_where_most_of_its_weight_is(spelled: Any) -> None:
    model = classifier()
    with hs.watch(model, TEXTS, tokenizer=spelled, every=1) as watch:
        watch.step(0)
    means = {name: watch[name][0] for name in watch.statistics}
    wanted: Counter[str] = Counter()
    for place in np.ndindex(2, 2):
        best = max(("previous", "same", "next", "first", "sep"), key=lambda name: means[name][place])
        even = means["normalised_entropy"][place] >= 0.9
        wanted[best if means[best][place] >= 0.4 else "even" if even else "mixed"] += 1
    assert watch.patterns() == [dict(wanted)]
    with pytest.raises(InputError, match="no 'previous': it is not watched"):
        hs.watch(model, TEXTS, tokenizer=spelled, statistics="entropy").patterns()


@pytest.mark.parametrize("ending", ["svg", "pdf", "png"])
def test_a_picture(spelled: Any, tmp_path: Path, ending: str) -> None:
    with hs.watch(classifier(), TEXTS, tokenizer=spelled, every=1) as watch:
        watch.step(0)
        watch.step(1)
    begins = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}[ending]
    first = watch.plot(tmp_path / f"one.{ending}").read_bytes()
    assert first.startswith(begins)
    assert watch.plot(tmp_path / f"two.{ending}").read_bytes() == first
    assert watch.plot(tmp_path / f"three.{ending}", "entropy").read_bytes() != first
    with pytest.raises(InputError, match=r"as \.gif"):
        watch.plot(tmp_path / "one.gif")
    with pytest.raises(InputError, match="nothing was measured"):
        hs.watch(classifier(), TEXTS, tokenizer=spelled).plot(tmp_path / "none.svg")


def test_long_texts_are_cut_into_windows(spelled: Any) -> None:
    long = " ".join(TEXTS * 4)
    with hs.watch(classifier(), [long], tokenizer=spelled, every=1, length=16, statistics="first") as watch:
        watch.step(0)
    assert len(watch._texts.windows) > 1
    assert all(len(window) <= 16 for window in watch._texts.windows)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"texts": []}, "a list of texts"),
        ({"texts": "one text"}, "a list of texts"),
        ({"texts": [" "]}, "no token"),
        ({"tokenizer": None}, "tokenizer"),
        ({"every": 0}, "every 0 steps"),
        ({"every": 1.5}, "every 1.5 steps"),
        ({"statistics": ["entropy", "norm"]}, "norm can't be watched"),
        ({"statistics": "banana"}, "unknown statistic 'banana'"),
        ({"model": "bert"}, "str is not an nn.Module"),
    ],
)
def test_what_cannot_be_watched_is_refused(spelled: Any, given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        hs.watch(**{"model": classifier(), "texts": TEXTS, "tokenizer": spelled, **given})


def test_all_statistics_of_weights_are_watched_by_default(spelled: Any) -> None:
    watch = hs.watch(classifier(), TEXTS, tokenizer=spelled)
    assert watch.statistics == tuple(
        name for name in CATALOG if not name.startswith("norm") or name == "normalised_entropy"
    )
    with pytest.raises(InputError, match="is not a step"):
        watch.step(-1)

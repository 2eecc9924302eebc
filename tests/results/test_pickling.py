"""Whatever `hs` returns can be pickled and copied with the standard library, or says why not."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

import headscope as hs
from commands import python
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import CheckpointError, InputError

WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda answer: pickle.loads(pickle.dumps(answer)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
TEXT = "The cat sat on the mat."
MASKED = "The [MASK] sat on the mat."
PAIRS = [(["The", "cat", "sat", "on", "the", "mat"], [(1, 2), (4, 5)])] * 6


@pytest.fixture(scope="module")
def classifier() -> BertForSequenceClassification:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=hs.open().tokenizer.size, **sizes)).eval()


@pytest.fixture(scope="module")
def answers(classifier: BertForSequenceClassification, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    bert, held = hs.open(), hs.open(classifier, tokenizer=AutoTokenizer.from_pretrained(BUNDLED))
    trace = bert.trace(TEXT, hidden_states=True)
    corpus = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    corpus.write_text("\n".join(["The cat sat on the mat.", "A dog ran to the park.", "We went home."] * 8))
    with hs.capture(classifier) as captured:
        classifier(torch.arange(1, 7)[None])
    live = captured.trace
    return {
        "model": bert,
        "its layer": bert.layers[0],
        "its head": bert.layers[0].heads[1],
        "checkpoint": bert.checkpoint,
        "tokenizer": bert.tokenizer,
        "parameters": bert.parameters,
        "config": bert.config,
        "tree": bert.tree(),
        "fit": bert.fit("BertModel"),
        "model in memory": held,
        "trace": trace,
        "layer": trace[1],
        "head": trace[1, 2],
        "outputs": trace.outputs,
        "statistics": trace.statistics(),
        "statistic": trace.statistics()["entropy"],
        "report": trace.verify(),
        "findings": trace.findings(),
        "rollout": trace.rollout(to=2),
        "mixing": trace.mixing_ratio(),
        "distances": trace.head_distances(),
        "promoted": trace[1, 2].promotes(2),
        "why": trace[1, 2].why(2, 3),
        "live trace": live,
        "live head": live[1, 2],
        "live statistics": live.statistics(),
        "description": hs.describe(classifier),
        "filled": bert.fill(MASKED),
        "prediction": held.predict(TEXT),
        "effects": bert.effects(MASKED),
        "effects over texts": bert.effects([MASKED, MASKED]),
        "attribution": bert.attribute(MASKED),
        "matches": hs.match(bert, "a cat", ["a dog", "the cat sat"]),
        "comparison": hs.compare(bert, bert),
        "pair heads": hs.pair_heads(bert, PAIRS),
        "survey": hs.survey(bert, corpus, out=corpus.parent / "survey"),
    }


@pytest.mark.parametrize("way", WAYS)
def test_every_answer_can_be_pickled_and_copied(answers: dict[str, Any], way: str) -> None:
    again = {name: WAYS[way](answer) for name, answer in answers.items()}
    assert again.pop("tokenizer").encode(TEXT) == answers["tokenizer"].encode(TEXT)
    assert {name: repr(answer) for name, answer in again.items()} == {name: repr(answers[name]) for name in again}
    trace, numbers = answers["trace"], answers["statistics"]
    assert np.array_equal(again["trace"][1, 2].weights, trace[1, 2].weights)
    assert np.array_equal(again["trace"][1, 2].output, trace[1, 2].output)
    assert np.array_equal(again["outputs"]["logits"], trace.outputs["logits"])
    assert np.array_equal(again["statistics"]["entropy"], numbers["entropy"], equal_nan=True)
    assert np.array_equal(again["its head"].W_Q, answers["its head"].W_Q)
    assert np.array_equal(again["model"].trace(TEXT)[1, 2].q, trace[1, 2].q)


def test_a_model_is_read_from_its_files_in_another_process(
    classifier: BertForSequenceClassification, tmp_path: Path
) -> None:
    classifier.save_pretrained(tmp_path / "model")
    model = hs.open(tmp_path / "model")
    trace = model.trace(ids=[2, 7, 9])
    logits = trace.outputs["logits"].array
    (tmp_path / "pickle").write_bytes(pickle.dumps({"trace": model.trace(ids=[2, 7, 9]), "model": model}))
    program = (
        "import pickle, sys; both = pickle.load(open(sys.argv[1], 'rb')); "
        "print(both['trace'].outputs['logits'].array.tolist()); "
        "print(both['model'].trace(ids=[2, 7, 9]).outputs['logits'].array.tolist())"
    )
    lines = python(program, tmp_path / "pickle").splitlines()
    assert all(np.allclose(json.loads(line), logits, atol=1e-5) for line in lines)
    assert len(lines) == 2
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    moved = pickle.loads((tmp_path / "pickle").read_bytes())["trace"]
    assert np.array_equal(moved[1, 2].weights, trace[1, 2].weights)
    with pytest.raises(CheckpointError, match="can't be read: No such file"):
        moved[1, 2].output


def test_a_pickle_does_not_read_what_was_written_since(
    classifier: BertForSequenceClassification, tmp_path: Path
) -> None:
    classifier.save_pretrained(tmp_path)
    pickled = pickle.dumps(hs.open(tmp_path))
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes() + b"\n")
    with pytest.raises(CheckpointError, match="bytes when it was opened"):
        pickle.loads(pickled).trace(ids=[2, 7, 9])


def test_what_cannot_be_pickled_says_why(answers: dict[str, Any], classifier: BertForSequenceClassification) -> None:
    weights = answers["trace"][1, 2].weights
    with pytest.raises(InputError, match="a lazy map of weights can't be pickled") as raised:
        pickle.dumps(weights)
    assert "np.asarray(map)" in str(raised.value)
    assert np.array_equal(copy.deepcopy(weights), weights)
    assert np.array_equal(copy.copy(weights), weights)
    with hs.capture(classifier) as captured:
        classifier(torch.arange(1, 7)[None])
    for way in WAYS.values():
        with pytest.raises(InputError, match="a capture can't be pickled or copied"):
            way(captured)


def mean_entropy(trace: hs.Trace) -> float:
    return float(np.mean(trace.statistics("entropy")["entropy"]))


def test_joblib_and_dask_run_what_is_theirs() -> None:
    """Traces of processes of joblib and tasks of dask are those of this process; dask reads a lazy map in chunks."""
    import dask  # a second, which every worker would take
    import dask.array

    model, texts = hs.open(), ["The cat sat.", "A dog ran home."]
    expected = [mean_entropy(model.trace(text)) for text in texts]
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(model.trace)(text) for text in texts)
    assert [mean_entropy(trace) for trace in found] == pytest.approx(expected)
    assert dask.compute(*(dask.delayed(mean_entropy)(dask.delayed(model.trace)(text)) for text in texts)) == tuple(
        expected
    )
    weights = model.trace(TEXT)[1].weights
    chunks = dask.array.from_array(weights, chunks=(1, 4, -1))
    assert chunks.numblocks == (4, 3, 1)
    # tiles of other sizes: sums in another order
    np.testing.assert_allclose(chunks.max(axis=-1).compute(), np.asarray(weights).max(-1), rtol=1e-5)


@pytest.mark.parametrize("read", [torch.tensor, torch.as_tensor, torch.asarray, torch.from_dlpack])
@pytest.mark.filterwarnings("error")
def test_torch_reads_all_arrays_without_a_warning(read: Callable[[Any], torch.Tensor]) -> None:
    trace = hs.open().trace(TEXT)
    maps = (trace[1, 2].weights, trace[1, 2].scores, trace[1].weights)
    named = (
        trace.outputs["last_hidden_state"],
        trace.statistics()["entropy"],
        trace[1, 2].by_words(),
        trace.head_distances(),
    )
    for array in (*maps, *named, trace[1, 2].why(2, 3)):
        np.testing.assert_array_equal(read(array).numpy(), np.asarray(array))

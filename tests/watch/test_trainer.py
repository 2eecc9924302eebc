"""`hs.HeadscopeCallback` in runs of transformers' Trainer: what trackers get, and that training is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from pyarrow import parquet

import headscope as hs
from headscope.errors import InputError, UnsupportedError
from watch.training import TEXTS, Examples, classifier, tokenizer


class Tracker(transformers.TrainerCallback):
    """Keeps what reaches it, as TensorBoard's and W&B's callbacks do."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.logs.append({"step": state.global_step, **logs})


def trainer(folder: Path, *callbacks: Any, tracker: Any = None, steps: int = 7, **options: Any) -> Any:
    spelled = tokenizer(folder / "tokenizer")
    args = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=steps,
        per_device_train_batch_size=2,
        logging_steps=2,
        save_strategy=options.pop("save_strategy", "no"),
        report_to=[],
        use_cpu=True,
        seed=3,
        disable_tqdm=True,
        **options,
    )
    made = transformers.Trainer(
        classifier(), args, train_dataset=Examples(spelled), processing_class=spelled, callbacks=list(callbacks)
    )
    if tracker is not None:  # where a Trainer puts those of report_to: before every callback that it is given
        made.callback_handler.callbacks.insert(1, tracker)
    return made


def test_trackers_get_the_means_of_each_layer_and_the_heads_of_each_pattern(tmp_path: Path) -> None:
    tracker, callback = Tracker(), hs.HeadscopeCallback(TEXTS, every=3)
    run = trainer(tmp_path, callback, tracker=tracker)
    run.train()
    watch = callback.watch
    assert watch.steps == (0, 3, 6, 7)
    logged = {log["step"]: log for log in tracker.logs if "headscope/layer_0/entropy" in log}
    assert list(logged) == [3, 6, 7]
    for at, step in enumerate(watch.steps[1:], 1):
        for layer in range(2):
            for name in ("entropy", "previous", "distance"):
                wanted = float(np.mean(watch[name][at, layer]))
                assert logged[step][f"headscope/layer_{layer}/{name}"] == pytest.approx(wanted)
        patterns = {name: value for name, value in logged[step].items() if name.startswith("headscope/heads/")}
        assert sum(patterns.values()) == 4
        assert 0 < logged[step]["headscope/share_of_time"] <= 1
        assert "headscope/layer_0/other_sentence" not in logged[step]
        assert "loss" in logged[step]
    assert json.loads(json.dumps(tracker.logs)) == tracker.logs
    history = [row for row in run.state.log_history if "headscope/layer_0/entropy" in row]
    assert [row["step"] for row in history] == [3, 6, 7]
    table = parquet.read_table(tmp_path / "out" / "heads.parquet")
    assert table.column_names[:4] == ["step", "layer", "head", "entropy"]
    assert sorted(set(table["step"].to_pylist())) == [0, 3, 6, 7]
    assert table.num_rows == 16


def test_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    states, losses = [], []
    for name, callbacks in (("plain", []), ("watched", [hs.HeadscopeCallback(TEXTS, every=2)])):
        run = trainer(tmp_path / name, *callbacks)
        run.train()
        states.append(run.model.state_dict())
        losses.append([row["loss"] for row in run.state.log_history if "loss" in row and row["step"] % 2 == 0])
    assert losses[0] == losses[1]
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name


def test_the_console_is_not_flooded_and_the_trainer_is_left_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trainer(tmp_path, hs.HeadscopeCallback(TEXTS, every=3))
    before = list(run.callback_handler.callbacks)
    run.train()
    assert run.callback_handler.callbacks == before
    printed = capsys.readouterr().out
    assert "loss" in printed
    assert "headscope/" not in printed


def test_a_run_that_is_resumed_goes_on_in_the_same_file(tmp_path: Path) -> None:
    first = trainer(tmp_path, hs.HeadscopeCallback(TEXTS, every=2), steps=4, save_strategy="steps", save_steps=4)
    first.train()
    path = tmp_path / "out" / "heads.parquet"
    before = parquet.read_table(path).to_pylist()
    again = hs.HeadscopeCallback(TEXTS, every=2)
    trainer(tmp_path, again, steps=8).train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    assert again.watch.steps == (0, 2, 4, 6, 8)
    assert parquet.read_table(path).to_pylist()[: len(before)] == before


def test_a_tokenizer_may_be_given_and_must_be_somewhere(tmp_path: Path) -> None:
    spelled = tokenizer(tmp_path / "its")
    callback = hs.HeadscopeCallback(
        TEXTS, every=5, tokenizer=spelled, out=tmp_path / "deep" / "h.parquet", statistics="entropy"
    )
    run = trainer(tmp_path, callback, steps=2)
    run.callback_handler.processing_class = None
    run.train()
    assert parquet.read_table(tmp_path / "deep" / "h.parquet").column_names == ["step", "layer", "head", "entropy"]
    without = trainer(tmp_path, hs.HeadscopeCallback(TEXTS), steps=2)
    without.callback_handler.processing_class = None
    with pytest.raises(InputError, match="needs the model's tokenizer"):
        without.train()


def test_outside_of_a_trainer_it_says_so(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    with pytest.raises(UnsupportedError, match="no CallbackHandler"):
        hs.HeadscopeCallback(TEXTS, tokenizer=run.processing_class).on_train_begin(
            run.args, run.state, run.control, model=run.model
        )

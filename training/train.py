"""Train the model: a run planned in minutes, every choice a function of its progress; it stops and resumes anywhere."""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evaluate import Held, masked_accuracy
from model import Neighbours, build_model, choose_masked, masked_score, stir
from tokenizer import save_tokenizer, train_tokenizer
from tokenizers import Tokenizer
from torch import nn
from transformers import BertForMaskedLM

from data import Batch, Ids, blocks, encode, endless, read_corpus


@dataclass(frozen=True)
class Recipe:
    """All the numbers of a run. Its progress goes from 0 to 1 in `minutes`."""

    minutes: float
    rate: float = 4e-3  # of the layers' matrices, under Muon; all else under AdamW gets half of it
    warmup: int = 100  # steps
    scaffold: int = 500  # steps with a scaffold, fading out
    turn: int = 4000  # the step from which the layers above the first start anew, layer 1 with a scaffold of its own
    tokens: int = 4096  # in a batch, about
    pieces: int = 4096
    report_every: int = 100  # steps
    validate_every: int = 500  # steps
    seed: int = 0

    def rate_at(self, step: int, progress: float) -> float:
        """Up in `warmup` steps, level for the first quarter, then straight down to 0."""
        return self.rate * min(1.0, (step + 1) / self.warmup) * min(1.0, (1 - progress) / 0.75)

    def length_at(self, step: int, progress: float) -> int | None:
        """Short blocks of running text first; then twice as long, by turns with (None) windows of whole sentences."""
        if progress < 0.5:
            return 64
        return 128 if step % 2 else None

    def mask_at(self, progress: float) -> float:
        """The share of pieces to mask: 25%, in the last quarter down to BERT's 15%."""
        return 0.15 + 0.1 * min(1.0, (1 - progress) / 0.25)

    def scaffolds_at(self, step: int) -> tuple[float, float]:
        """The weights of the scaffolds on layer 0, from the start, and on layer 1, from the turn."""

        def left(begun: int) -> float:
            return 1 - begun / self.scaffold if 0 <= begun < self.scaffold else 0.0

        return 0.5 * left(step), 0.25 * left(step - self.turn)


@dataclass(frozen=True)
class Point:
    """One point of the curves: loss and accuracy are means over the training steps since the point before."""

    step: int
    minutes: float
    rate: float
    loss: float
    accuracy: float
    validation: Held | None

    @staticmethod
    def read(saved: dict[str, Any]) -> "Point":
        """A point from its plain form."""
        validation = saved["validation"]
        return Point(**{**saved, "validation": validation and Held(**validation)})


@dataclass
class Run:
    """A model in training and its folder, where the model, the curve and what is needed to resume are kept."""

    folder: Path
    model: BertForMaskedLM
    scaffolds: nn.ModuleList
    optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer]
    step: int
    minutes: float
    curve: list[Point]

    @staticmethod
    def open(folder: Path, recipe: Recipe, counts: torch.Tensor) -> "Run":
        """Continue the run in `folder`, or start one."""
        torch.manual_seed(recipe.seed)
        model = build_model(counts)
        scaffolds = nn.ModuleList([Neighbours(distances=(1,)), Neighbours(distances=(3, 4))])
        in_layers = [name for name, p in model.named_parameters() if p.ndim == 2 and "encoder.layer" in name]
        matrices = [p for name, p in model.named_parameters() if name in in_layers]
        others = [p for name, p in model.named_parameters() if name not in in_layers]
        muon = torch.optim.Muon(matrices, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
        adam = torch.optim.AdamW(
            [
                {"params": [p for p in others if p.ndim == 2], "weight_decay": 0.02},
                {"params": [*(p for p in others if p.ndim < 2), *scaffolds.parameters()], "weight_decay": 0.0},
            ],
            betas=(0.9, 0.99),
            fused=True,
        )
        run = Run(folder, model, scaffolds, (muon, adam), 0, 0.0, [])
        if (folder / "checkpoint.pt").exists():
            saved = torch.load(folder / "checkpoint.pt", weights_only=True)
            model.load_state_dict(saved["model"])
            scaffolds.load_state_dict(saved["scaffolds"])
            for optimizer, state in zip(run.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            run.step, run.minutes = saved["step"], saved["minutes"]
            run.curve = [Point.read(point) for point in saved["curve"]]
        return run

    def save(self) -> None:
        """Write everything, the checkpoint atomically, so that a kill leaves either the old or the new one."""
        state = {
            "model": self.model.state_dict(),
            "scaffolds": self.scaffolds.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "minutes": self.minutes,
            "curve": [asdict(point) for point in self.curve],
        }
        torch.save(state, self.folder / "checkpoint.new")
        (self.folder / "checkpoint.new").replace(self.folder / "checkpoint.pt")
        (self.folder / "curve.json").write_text(json.dumps(state["curve"]))
        self.model.save_pretrained(self.folder)


@dataclass(frozen=True)
class Text:
    """Training text twice, as running text and as documents of sentences, and the validation documents."""

    running: Ids
    documents: list[list[list[int]]]
    validation: list[list[list[int]]]

    def batches(self, run: Run, recipe: Recipe) -> Iterator[Batch]:
        """Yield the recipe's batches forever, by the progress of `run`."""
        rng = np.random.default_rng((recipe.seed, run.step))
        streams: dict[int | None, Iterator[Batch]] = {}
        while True:
            length = recipe.length_at(run.step, run.minutes / recipe.minutes)
            if length not in streams:
                streams[length] = (
                    blocks(self.running, length, recipe.tokens, rng)
                    if length
                    else endless(self.documents, recipe.tokens, rng)
                )
            yield next(streams[length]).moved(rng)


def train(run: Run, recipe: Recipe, text: Text, clock: Callable[[], float] = time.monotonic) -> None:
    """Step until the minutes are over, with a point of the curve now and then, and a checkpoint at each validation.

    Args:
        clock: returns the time in seconds.
    """
    random = torch.Generator().manual_seed(recipe.seed + run.step)
    batches = text.batches(run, recipe)
    losses: list[float] = []
    correct, count, before, began = 0, 0, run.minutes, clock()
    run.model.train()
    while (progress := run.minutes / recipe.minutes) < 1:
        if run.step == recipe.turn:
            for fresh in stir(run.model):
                del run.optimizers[0].state[fresh]
        batch = next(batches)
        ids = torch.from_numpy(batch.ids)  # (B, S)
        score = masked_score(run.model, batch, choose_masked(ids, recipe.mask_at(progress), random))
        loss = score.loss
        for scaffold, layer, weight in zip(run.scaffolds, score.layers, recipe.scaffolds_at(run.step), strict=False):
            if weight > 0:
                loss = loss + weight * scaffold(run.model, layer, ids, random)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        rate = recipe.rate_at(run.step, progress)
        for optimizer, share in zip(run.optimizers, (1.0, 0.5), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = share * rate
            optimizer.step()
            optimizer.zero_grad()
        run.step, run.minutes = run.step + 1, before + (clock() - began) / 60
        losses, correct, count = [*losses, score.loss.item()], correct + score.correct, count + score.count

        over = run.minutes >= recipe.minutes
        if run.step % recipe.report_every == 0 or over:
            validate = run.step % recipe.validate_every == 0 or over
            validation = masked_accuracy(run.model, text.validation) if validate else None
            mean = sum(losses) / len(losses)
            point = Point(run.step, round(run.minutes, 2), rate, round(mean, 4), round(correct / count, 4), validation)
            run.curve.append(point)
            print(json.dumps(asdict(point)), flush=True)
            if validate:
                run.save()
            losses, correct, count = [], 0, 0


def main() -> None:
    """Read the command line, prepare text and tokenizer, then start or continue training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of the run; an interrupted one is continued")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of the texts: see training/README.md")
    parser.add_argument("--minutes", type=float, default=70)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    recipe = Recipe(minutes=options.minutes)
    corpus = read_corpus(options.corpus)
    if not (options.run / "tokenizer.json").exists():
        fresh = train_tokenizer((line for document in corpus.train for line in document), recipe.pieces)
        save_tokenizer(fresh, options.run)
    tokenizer = Tokenizer.from_file(str(options.run / "tokenizer.json"))
    documents = encode(corpus.train, tokenizer)
    running = np.array([piece for document in documents for sentence in document for piece in sentence])
    counts = torch.from_numpy(np.bincount(running, minlength=recipe.pieces))
    train(Run.open(options.run, recipe, counts), recipe, Text(running, documents, encode(corpus.validation, tokenizer)))


if __name__ == "__main__":
    main()

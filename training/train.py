"""Train the model: a run planned in minutes, every choice a function of its progress; it stops and resumes anywhere."""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from evaluate import Held, masked_accuracy
from model import Neighbours, build_model, choose_masked, masked_score, stir
from tokenizer import save_tokenizer, train_tokenizer
from tokenizers import Tokenizer
from transformers import BertForMaskedLM

from data import Batch, Ids, blocks, encode, endless, read_corpus

CORPUS = Path(__file__).parents[2] / "shared" / "corpus"


@dataclass(frozen=True)
class Recipe:
    """All the numbers of a run. Its progress goes from 0 to 1 in `minutes`.

    Until `turn` layer 0 learns where the neighbours are. Then the layers above get fresh queries and keys (theirs
    have settled on nothing by now) and batches become smaller, with more masks.
    """

    minutes: float
    turn: float = 0.48
    warmup: int = 200  # steps
    weight_decay: float = 0.02  # of matrices; biases and LayerNorms keep their size
    pieces: int = 4096
    report_every: int = 100  # steps
    validate_every: int = 500  # steps
    seed: int = 0

    def rate_at(self, step: int, progress: float) -> float:
        """Up in `warmup` steps, level for most of the run, then straight down to 0."""
        level = 1.5e-3 if progress < self.turn else 1e-3
        return level * min(1.0, (step + 1) / self.warmup) * min(1.0, (1 - progress) / 0.28)

    def tokens_at(self, progress: float) -> int:
        """About how many tokens a batch holds."""
        return 4096 if progress < self.turn else 2048

    def length_at(self, step: int, progress: float) -> int | None:
        """Short blocks of running text first, where a neighbour is a larger share of all there is.

        Then (None) windows of whole sentences up to 256 pieces long, and a block still for every fifth batch.
        """
        if progress < 0.64:
            return 32 if progress < 0.1 else 64
        return 64 if step % 5 == 0 else None

    def mask_at(self, progress: float) -> float:
        """The share of pieces to mask: 20%, from the turn on 30%, at the end BERT's 15%."""
        if progress < self.turn:
            return 0.2
        return min(0.3, max(0.15, 0.3 - 0.77 * (progress - 0.69)))

    def scaffold_at(self, progress: float) -> tuple[float, float]:
        """The weights of the scaffolds on layers 0 and 1: one at the start, one after the turn, both soon gone."""
        after = progress - self.turn if progress >= self.turn else 1.0
        return 0.5 * max(0.0, 1 - 6 * progress), max(0.0, 0.3 - 3.2 * after)


@dataclass(frozen=True)
class Point:
    """One point of the curves: loss and accuracy are means over the training steps since the point before."""

    step: int
    minutes: float
    rate: float
    loss: float
    accuracy: float
    validation: Held | None


@dataclass
class Run:
    """A model in training and its folder, where the model, the curve and what is needed to resume are kept."""

    folder: Path
    model: BertForMaskedLM
    scaffolds: tuple[Neighbours, Neighbours]
    optimizer: torch.optim.Optimizer
    step: int
    minutes: float
    curve: list[Point]
    stirred: bool = False

    @staticmethod
    def open(folder: Path, recipe: Recipe, counts: torch.Tensor) -> "Run":
        """Continue what lies in `folder`, or begin."""
        torch.manual_seed(recipe.seed)
        model, scaffolds = build_model(counts), (Neighbours(distance=1), Neighbours(distance=2))
        matrices = [p for p in model.parameters() if p.ndim == 2]
        vectors = [p for p in model.parameters() if p.ndim < 2]
        optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": recipe.weight_decay},
                {
                    "params": [*vectors, *(p for scaffold in scaffolds for p in scaffold.parameters())],
                    "weight_decay": 0.0,
                },
            ],
            betas=(0.9, 0.999),
            fused=True,
        )
        run = Run(folder, model, scaffolds, optimizer, 0, 0.0, [])
        if (folder / "checkpoint.pt").exists():
            saved = torch.load(folder / "checkpoint.pt", weights_only=False)
            model.load_state_dict(saved["model"])
            for scaffold, state in zip(scaffolds, saved["scaffolds"], strict=True):
                scaffold.load_state_dict(state)
            optimizer.load_state_dict(saved["optimizer"])
            run.step, run.minutes, run.curve = saved["step"], saved["minutes"], saved["curve"]
            run.stirred = saved["stirred"]
        return run

    def save(self) -> None:
        """Write everything, the checkpoint in one move, so that a kill leaves the old one or the new."""
        state = {
            "model": self.model.state_dict(),
            "scaffolds": [scaffold.state_dict() for scaffold in self.scaffolds],
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "minutes": self.minutes,
            "curve": self.curve,
            "stirred": self.stirred,
        }
        torch.save(state, self.folder / "checkpoint.new")
        (self.folder / "checkpoint.new").replace(self.folder / "checkpoint.pt")
        (self.folder / "curve.json").write_text(json.dumps([asdict(point) for point in self.curve]))
        self.model.save_pretrained(self.folder)


@dataclass(frozen=True)
class Text:
    """Training text twice, as running text and as documents of sentences, and the validation documents."""

    running: Ids
    documents: list[list[list[int]]]
    validation: list[list[list[int]]]

    def batches(self, run: Run, recipe: Recipe) -> Iterator[Batch]:
        """The recipe's batches, for ever; `run` says how far it is."""
        rng = np.random.default_rng((recipe.seed, run.step))
        streams: dict[tuple[int | None, int], Iterator[Batch]] = {}
        while True:
            progress = run.minutes / recipe.minutes
            length, tokens = recipe.length_at(run.step, progress), recipe.tokens_at(progress)
            if (length, tokens) not in streams:
                streams[length, tokens] = (
                    blocks(self.running, length, tokens, rng) if length else endless(self.documents, tokens, rng)
                )
            yield next(streams[length, tokens])


def train(run: Run, recipe: Recipe, text: Text) -> None:
    """Step until the minutes are over, with a point of the curve now and then, and a checkpoint at each validation."""
    random = torch.Generator().manual_seed(recipe.seed + run.step)
    batches = text.batches(run, recipe)
    losses: list[float] = []
    correct, count, before, began = 0, 0, run.minutes, time.monotonic()
    run.model.train()
    while (progress := run.minutes / recipe.minutes) < 1:
        if not run.stirred and progress >= recipe.turn:
            stir(run.model)
            run.stirred = True
        batch = next(batches)
        ids, types = torch.from_numpy(batch.ids), torch.from_numpy(batch.types)  # (B, S)
        score = masked_score(run.model, ids, types, choose_masked(ids, recipe.mask_at(progress), random))
        loss = score.loss
        for scaffold, layer, weight in zip(run.scaffolds, score.layers, recipe.scaffold_at(progress), strict=False):
            if weight > 0:
                loss = loss + weight * scaffold(run.model, layer, ids, random)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        rate = recipe.rate_at(run.step, progress)
        for group in run.optimizer.param_groups:
            group["lr"] = rate
        run.optimizer.step()
        run.optimizer.zero_grad()
        run.step, run.minutes = run.step + 1, before + (time.monotonic() - began) / 60
        losses, correct, count = [*losses, score.loss.item()], correct + score.correct, count + score.count

        over = run.minutes >= recipe.minutes
        if run.step % recipe.report_every == 0 or over:
            validate = run.step % recipe.validate_every == 0 or over
            held = masked_accuracy(run.model, text.validation) if validate else None
            mean = sum(losses) / len(losses)
            point = Point(run.step, round(run.minutes, 2), rate, round(mean, 4), round(correct / count, 4), held)
            run.curve.append(point)
            print(json.dumps(asdict(point)), flush=True)
            if validate:
                run.save()
            losses, correct, count = [], 0, 0


def main() -> None:
    """Read the command line, prepare text and tokenizer, then train or go on training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of the run; an interrupted one is continued")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
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

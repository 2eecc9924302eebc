"""Export a finished run: half-precision weights, tokenizer, curves and a model card, as the package bundles them."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from evaluate import MASKED, WINDOW, Evaluation, evaluate
from matplotlib.figure import Figure
from tokenizer import save_tokenizer
from tokenizers import Tokenizer
from transformers import BertForMaskedLM

BUNDLED = Path(__file__).parents[1] / "src" / "headscope" / "models" / "tiny"
LIMIT = 8_000_000  # bytes, all files together
RELATIONS = 8  # in the card
CARD = Path(__file__).with_name("CARD.md")


def save_model(run: Path, folder: Path) -> BertForMaskedLM:
    """Write config.json and the weights in half precision; the decoder is the embeddings and not stored again.

    The config says float32, so whoever heeds it computes in float32 with the weights stored in half.
    """
    model = BertForMaskedLM.from_pretrained(run, dtype=torch.float16)
    model.save_pretrained(folder)
    model.config.dtype = torch.float32
    model.config.save_pretrained(folder)
    return model


def draw(curve: list[dict[str, Any]], path: Path) -> None:
    """Loss and accuracy over the minutes of training, on training batches and on the validation text."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    checked = [point for point in curve if point["validation"]]
    for axes, name in ((left, "loss"), (right, "accuracy")):
        axes.plot([p["minutes"] for p in curve], [p[name] for p in curve], color="0.6", label="training")
        validation = [p["validation"][name] for p in checked]
        axes.plot([p["minutes"] for p in checked], validation, "o-", markersize=3, label="validation")
        axes.set(xlabel="minutes", ylabel={"loss": "loss, nats", "accuracy": "top-1 accuracy"}[name])
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def table(values: list[list[Any]]) -> str:
    """A Markdown table, one row for a layer."""
    names = [f"head {head}" for head in range(len(values[0]))]
    rows = [
        f"| {layer} | " + " | ".join(f"{value:.2f}" if isinstance(value, float) else value for value in row) + " |"
        for layer, row in enumerate(values)
    ]
    return "\n".join(["| layer | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|", *rows])


def card(evaluation: Evaluation, curve: list[dict[str, Any]], parameters: int) -> str:
    """The model card: CARD.md with the figures of this run."""
    held, atlas = evaluation.held_out, evaluation.atlas
    filled = [f"| {text} | {', '.join(words)} |" for text, words in evaluation.guesses.items()]
    found = [
        f"| `{it.relation}`, {it.direction} | {it.layer}.{it.head} | {it.accuracy:.0%} | {it.offset_accuracy:.0%} "
        f"| {it.count:,} |"
        for it in atlas.relations[:RELATIONS]
    ]
    return CARD.read_text(encoding="utf-8").format(
        parameters=f"{parameters:,}",
        accuracy=f"{held.accuracy:.1%}",
        perplexity=f"{evaluation.perplexity:.1f}",
        loss=f"{held.loss:.2f}",
        count=f"{held.count:,}",
        masked=f"{MASKED:.0%}",
        window=WINDOW,
        steps=f"{curve[-1]['step']:,}",
        divergence=f"{curve[-1]['divergence']:.2f}",
        sentences=atlas.sentences,
        labelled=atlas.labelled(),
        labels=table(atlas.labels),
        previous=table(atlas.means["previous"]),
        following=table(atlas.means["next"]),
        cls=table(atlas.means["cls"]),
        entropy=table(atlas.means["normalised_entropy"]),
        relations="\n".join(found),
        guesses="\n".join(filled),
    )


def main() -> None:
    """Read the command line and write the model folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder that train.py wrote")
    parser.add_argument("folder", type=Path, nargs="?", default=BUNDLED)
    parser.add_argument("--corpus", type=Path, required=True, help="folder of the texts: see training/README.md")
    parser.add_argument("--treebank", type=Path, required=True, help="a .conllu file, or a folder of them")
    options = parser.parse_args()
    folder: Path = options.folder

    save_tokenizer(Tokenizer.from_file(str(options.run / "tokenizer.json")), folder)
    model = save_model(options.run, folder)
    curve = json.loads((options.run / "curve.json").read_text())
    (folder / "curve.json").write_text("[\n" + ",\n".join(json.dumps(point) for point in curve) + "\n]\n")
    draw(curve, folder / "curve.svg")
    evaluation = evaluate(folder, options.corpus, options.treebank)
    (folder / "evaluation.json").write_text(json.dumps(asdict(evaluation), indent=1) + "\n")
    (folder / "README.md").write_text(card(evaluation, curve, model.num_parameters()), encoding="utf-8")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size:,} bytes; {evaluation.held_out.accuracy:.1%} on the held-out book")
    missed = [demand for demand, reached in evaluation.demands().items() if not reached]
    if size > LIMIT:
        missed.append(f"at most {LIMIT:,} bytes: train with fewer pieces")
    if missed:
        raise SystemExit("not good enough to be bundled: " + "; ".join(missed))


if __name__ == "__main__":
    main()

"""Captures of every family, implementation and padding, and of live models that generate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import headscope as hs
from golden.keeping import differing, keep
from golden.models import TEXTS

sys.path.insert(0, str(Path(__file__).parents[1] / "live"))

from families import BART, DECODER, FAMILIES, Family

NEW = 5
SIZES = {"vocab_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {**DECODER, "intermediate_size": 16, **SIZES}
SMALL_BART = {**BART, **dict.fromkeys(("encoder_layers", "decoder_layers"), 1), "decoder_attention_heads": 4}
SMALL_BART |= {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "forced_eos_token_id": None, **SIZES}
GENERATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": ("Llama", {}),
    "static": ("Llama", {"cache_implementation": "static"}),
    "beams": ("Llama", {"num_beams": 2}),
    "sliding": ("Mistral", {}),
    "cross": ("Bart", {}),
}
"""Name -> a family, and the options of generate()."""


def decoder(family: str) -> Any:
    """A model whose weights NumPy draws, so that they are the same on every processor, and wide enough to be sure."""
    config = {"Llama": LLAMA, "Mistral": {**LLAMA, "sliding_window": 4}, "Bart": SMALL_BART}[family]
    suffix = "ForConditionalGeneration" if family == "Bart" else "ForCausalLM"
    model = getattr(transformers, family + suffix)(getattr(transformers, f"{family}Config")(**config)).eval()
    drawn = np.random.default_rng(7)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "norm" not in name:
                parameter.copy_(torch.from_numpy(drawn.normal(size=parameter.shape, scale=0.4)))
    return model


def facts(trace: hs.Trace) -> dict[str, Any]:
    """A trace, in what a reader would see of it."""
    return {
        "repr": repr(trace),
        "stack": trace.stack,
        "row": trace.row,
        "ids": trace.keys.ids,
        "queries": trace.queries.ids,
        "positions": trace.positions.tolist(),
        "masks": [(record.mask.causal, record.mask.window, record.stage) for record in trace.layers],
        "weights": [trace[number].weights[:] for number in trace.numbers],
        "entropy": trace.statistics("entropy")["entropy"],
    }


@pytest.mark.parametrize("name", GENERATIONS)
def test_generation(name: str, request: pytest.FixtureRequest) -> None:
    family, options = GENERATIONS[name]
    model = decoder(family)
    ids = torch.from_numpy(np.random.default_rng(3).integers(5, 40, (2, 6)))
    mask = torch.ones_like(ids)
    padded = slice(-2, None) if family == "Bart" else slice(0, 2)
    ids[1, padded], mask[1, padded] = 0, 0
    with hs.capture(model) as captured:
        made = model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            output_logits=True,
            return_dict_in_generate=True,
            **options,
        )
    for logits in made.logits:
        best = logits.topk(3).values
        assert (best[:, 0] - best[:, 1]).min() > 0.01, "another processor might generate another token"
    value = {
        "passes": [
            [(trace.row, trace.stack, len(trace.queries), len(trace.keys)) for trace in passed]
            for passed in captured.forwards
        ],
        "sequences": made.sequences.tolist(),
        "generations": [facts(trace) for trace in captured.generations],
        "last": facts(captured.traces[-1]),
    }
    keep(request, f"generation-{name}", value)


def test_a_padded_batch(place: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(place)
    model = transformers.BertForMaskedLM.from_pretrained("base")
    inputs = transformers.AutoTokenizer.from_pretrained("base")(list(TEXTS[:2]), padding=True, return_tensors="pt")
    with hs.capture(model) as captured, torch.inference_mode():
        model(**inputs)
    value = {
        "repr": repr(captured),
        "describe": str(hs.describe(model)).split("\n\n")[0],
        "traces": [facts(trace) for trace in captured.traces],
        "head": captured.traces[1][1, 3].scores[:],
        "verified": captured.traces[1].verify().agrees,
    }
    keep(request, "capture", value)


CLOSE = 1e-3
"""Of sums of absolute values: weights are six times their usual size here, and so are roundings."""
PADDINGS: dict[str, dict[str, bool]] = {
    "whole": {"padded": False},
    "right": {"padded": True},
    "left": {"padded": True, "left": True},
}


def layer_line(record: Any) -> str:
    """A layer: its module, stage, scale, mask and terms, and the sums of |Q|, |K|, |V| and of what the mask adds."""
    mask = record.mask
    keys = "" if mask.keys is None else f", keys {np.flatnonzero(mask.keys).tolist()}"
    window = f"{', causal' * mask.causal}{'' if mask.window is None else f', window {mask.window}'}{keys}"
    terms = [name for name, term in vars(record.terms).items() if term is not None]
    parts = [record.q, record.k, record.v]
    if mask.bias is not None:
        parts.append(mask.bias[np.isfinite(mask.bias)])
    sizes = " ".join(f"{np.abs(np.float64(part)).sum():.6e}" for part in parts)
    return f"{record.name} {record.stage} x {record.scale:.6e}{window}, terms {terms}: {sizes}"


def family_facts(trace: hs.Trace) -> dict[str, Any]:
    """A trace, in what a change of capture could change of it."""
    return {
        "stack": f"{trace.stack}, row {trace.row}",
        "queries": f"{list(trace.queries.ids)} at {np.asarray(trace.positions).tolist()}",
        "keys": "the same" if trace.keys is trace.queries else str(list(trace.keys.ids)),
        "left out": np.asarray(trace.left_out).tolist(),
        "layers": [layer_line(record) for record in trace.layers],
    }


def family_captured(family: Family, model: Any, padding: str) -> list[dict[str, Any]] | str:
    """The facts of all traces, or the sentence with which a model is refused."""
    try:
        with torch.no_grad(), hs.capture(model) as found:
            model(**family.inputs(**PADDINGS[padding]))
    except hs.HeadscopeError as error:
        return type(error).__name__
    return [family_facts(trace) for trace in found.traces]


@pytest.mark.parametrize("part", range(4))
def test_what_is_captured_of_every_family(part: int, request: pytest.FixtureRequest) -> None:
    """In four files, for four workers. A family without text has no padding."""
    kept = {}
    for family in FAMILIES[part::4]:
        model = family.build()
        paddings = PADDINGS if family.takes in ("text", "both") else ("whole",)
        for padding in paddings:
            kept[f"{family}, {padding}"] = family_captured(family, model, padding)
        padding = "right" if "right" in paddings else "whole"
        model.set_attn_implementation("eager")
        eager = family_captured(family, model, padding)
        same = not [*differing(eager, kept[f"{family}, {padding}"], CLOSE)]
        kept[f"{family}, eager"] = "the same" if same else eager
    keep(request, f"families-{part}", kept, close=CLOSE)

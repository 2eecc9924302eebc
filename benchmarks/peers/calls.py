"""Each tool called as its README says: the commands of cold starts, and a process that captures on request.

    python benchmarks/peers/calls.py TOOL CHECKPOINT      # then "time WAY TOKENS" or "peak WAY TOKENS", a line each

It runs in the tool's own environment. The first line that it prints names the ways; every other one answers a line of
its input: {"seconds": …}, {"bytes": …} or {"no": …}. A capture ends with one head's weights, read as numbers.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LAYER, HEAD = 1, 5
"""Of the head that is read."""

SHAPES = {
    "transformers": """
from transformers import BertModel
model = BertModel.from_pretrained({folder!r})
for name, parameter in model.named_parameters():
    print(name, tuple(parameter.shape))
print(sum(parameter.numel() for parameter in model.parameters()))
""",
    "torchinfo": """
from torchinfo import summary
from transformers import BertModel
model = BertModel.from_pretrained({folder!r})
summary(model, depth=9, col_names=("kernel_size", "num_params"), verbose=2)
""",
}
"""Every parameter with its shape, from a checkpoint."""

ONE_HEAD = {
    "transformers": """
import torch
from transformers import AutoTokenizer, BertModel
tokenizer = AutoTokenizer.from_pretrained({folder!r}, trust_remote_code=False)
model = BertModel.from_pretrained({folder!r}, attn_implementation="eager").eval()
with torch.inference_mode():
    outputs = model(**tokenizer({text!r}, return_tensors="pt"), output_attentions=True)
print(outputs.attentions[{layer}][0, {head}])
""",
    "TransformerLens": """
from transformer_lens.model_bridge import TransformerBridge
bridge = TransformerBridge.boot_transformers({folder!r}, device="cpu")
logits, activations = bridge.run_with_cache({text!r})
print(activations["pattern", {layer}][0, {head}])
""",
    "torchlens": """
import torchlens as tl
from transformers import AutoTokenizer, BertModel
tokenizer = AutoTokenizer.from_pretrained({folder!r}, trust_remote_code=False)
model = BertModel.from_pretrained({folder!r}, attn_implementation="eager").eval()
ids = tokenizer({text!r}, return_tensors="pt").input_ids
log = tl.trace(model, ids, save=tl.func("softmax"))
labels = [label for label in log.layer_labels if label.startswith("softmax")]
print(log[labels[{layer}]].out[0, {head}])
""",
    "bertviz": """
from transformers import AutoModel, AutoTokenizer, utils
from bertviz import head_view
utils.logging.set_verbosity_error()
tokenizer = AutoTokenizer.from_pretrained({folder!r}, trust_remote_code=False)
model = AutoModel.from_pretrained({folder!r}, trust_remote_code=False, output_attentions=True)
inputs = tokenizer.encode({text!r}, return_tensors="pt")
attention = model(inputs)[-1]
tokens = tokenizer.convert_ids_to_tokens(inputs[0])
print(head_view(attention, tokens, layer={layer}, heads=[{head}], html_action="return").data)
""",
}
"""The weights of one head for one text, from a checkpoint."""

OF_DECODER = {
    "headscope": """
import headscope as hs
from transformers import AutoModel, AutoTokenizer
model = AutoModel.from_pretrained({folder!r}, trust_remote_code=False).eval()
tokenizer = AutoTokenizer.from_pretrained({folder!r}, trust_remote_code=False)
trace = hs.trace(model, {text!r}, tokenizer=tokenizer)
print(trace[{layer}, {head}].weights[:])
""",
    "transformers": """
import torch
from transformers import AutoModel, AutoTokenizer
model = AutoModel.from_pretrained({folder!r}, trust_remote_code=False, attn_implementation="eager").eval()
with torch.inference_mode():
    tokenizer = AutoTokenizer.from_pretrained({folder!r}, trust_remote_code=False)
    outputs = model(**tokenizer({text!r}, return_tensors="pt"), output_attentions=True)
print(outputs.attentions[{layer}][0, {head}])
""",
    "TransformerLens": ONE_HEAD["TransformerLens"],
    "attnread": """
from attnread import extract_attention
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained({folder!r}, trust_remote_code=False).eval().requires_grad_(False)
inputs = AutoTokenizer.from_pretrained({folder!r}, trust_remote_code=False)({text!r}, return_tensors="pt")
print(extract_attention(model, inputs, heads=[({layer}, {head})])["text", {layer}, {head}])
""",
}
"""The weights of one head of a decoder."""

OF_LAYERS = {
    "headscope": """
import headscope as hs
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained({folder!r}, trust_remote_code=False).eval()
tokenizer = AutoTokenizer.from_pretrained({folder!r}, trust_remote_code=False)
print(hs.trace(model, {text!r}, tokenizer=tokenizer).statistics())
""",
    "neuronscope-cli": """
import sys
from neuronscope.cli import main
sys.argv = ["neuronscope", "activations", "gpt2", {text!r}, "--json"]
main()
""",
}
"""Numbers about the attention of every layer of a decoder: headscope's of every head, neuronscope's of each layer."""

Ways = dict[str, Callable[[Any], Any]]
"""By the way's name: from ids (1, tokens) to what was captured, the head's weights last."""


def of_headscope(folder: str) -> Ways:
    """Queries, keys and values of every head, from the model's fast attention; or only what weights need."""
    from transformers import AutoModel

    from headscope.live import capture

    model = AutoModel.from_pretrained(folder, trust_remote_code=False).eval()

    def captured(ids: Any, values: bool) -> Any:
        with capture(model, values=values) as outputs:
            model(input_ids=ids)
        return outputs, outputs.trace[LAYER, HEAD].weights[:]

    return {
        "everything": lambda ids: captured(ids, True),
        "weights alone": lambda ids: captured(ids, False),
        "own forward": lambda ids: model(input_ids=ids),
    }


def of_transformers(folder: str) -> Ways:
    """Every head's weights."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, trust_remote_code=False, attn_implementation="eager").eval()

    def captured(ids: Any) -> Any:
        outputs = model(input_ids=ids, output_attentions=True)
        return outputs, outputs.attentions[LAYER][0, HEAD].numpy()

    return {"weights alone": captured}


def of_lens(folder: str) -> Ways:
    """Every activation, as its README does it, or every head's weights alone."""
    from transformer_lens.model_bridge import TransformerBridge

    bridge = TransformerBridge.boot_transformers(folder, device="cpu")

    def captured(ids: Any, **options: Any) -> Any:
        outputs = bridge.run_with_cache(ids, **options)
        return outputs, outputs[1]["pattern", LAYER][0, HEAD].numpy()

    return {
        "everything": captured,
        "weights alone": lambda ids: captured(ids, names_filter=lambda name: name.endswith("hook_pattern")),
    }


def of_torchlens(folder: str) -> Ways:
    """Every operation's result, or those of the softmax alone."""
    import torchlens as tl
    from transformers import BertModel

    model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()

    def captured(ids: Any, **options: Any) -> Any:
        log = tl.trace(model, ids, **options)
        labels = [label for label in log.layer_labels if label.startswith("softmax")]
        return log, log[labels[LAYER]].out[0, HEAD].numpy()

    return {"everything": captured, "weights alone": lambda ids: captured(ids, save=tl.func("softmax"))}


def of_bertviz(folder: str) -> Ways:
    """The neuron view's own BertModel: queries, keys and weights of every head."""
    from bertviz.transformers_neuron_view import BertConfig, BertModel

    config = BertConfig.from_json_file(str(Path(folder) / "config.json"))
    config.output_attentions = True
    model = BertModel(config).eval()

    def captured(ids: Any) -> Any:
        outputs = model(ids)
        return outputs, outputs[-1][LAYER]["attn"][0, HEAD].numpy()

    return {"neuron view": captured}


def of_attnread(folder: str) -> Ways:
    """Every head's weights from the model's fast attention: it passes values that are parts of the identity."""
    from attnread import extract_attention
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False).eval().requires_grad_(False)

    def captured(ids: Any) -> Any:
        patterns = extract_attention(model, {"input_ids": ids})
        return patterns, patterns["text", LAYER, HEAD][0].numpy()

    return {"weights alone": captured}


CAPTURES = {
    "headscope": of_headscope,
    "transformers": of_transformers,
    "TransformerLens": of_lens,
    "torchlens": of_torchlens,
    "bertviz": of_bertviz,
    "attnread": of_attnread,
}


def limit_memory() -> None:
    """Limit this process to three quarters of the available memory, so that it fails before the machine runs out."""
    import resource

    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        memory = dict(line.split(":") for line in meminfo.read_text().splitlines())
        most = int(memory["MemAvailable"].split()[0]) * 1024 * 3 // 4
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def main() -> None:
    """Answer on the real standard output; a tool's own output goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    sys.path.append(str(Path(__file__).parents[1]))
    limit_memory()
    import torch

    from capture import peak
    from measure import now

    torch.set_grad_enabled(False)
    ways = CAPTURES[sys.argv[1]](sys.argv[2])

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    say({"ways": list(ways), "threads": torch.get_num_threads()})
    for line in sys.stdin:
        what, way, tokens = line.rstrip("\n").split("\t")
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(1000, 20000, (1, int(tokens)), generator=generator)
        gc.collect()
        try:
            if what == "peak":
                say({"bytes": peak(lambda way=way, ids=ids: ways[way](ids), "cpu")})
            else:
                started = now()
                result = ways[way](ids)
                say({"seconds": now() - started})
                del result
        except Exception as error:  # noqa: BLE001 - whatever stops a peer is its answer
            say({"no": f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error) else ''}"})


if __name__ == "__main__":
    main()

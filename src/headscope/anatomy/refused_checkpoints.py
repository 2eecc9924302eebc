"""The reasons for which headscope refuses a checkpoint because it would get something wrong.

Two things can be wrong: a head's slices (the stored rows are not that head's W), and the forward pass (the slices are
right, but the model computes something that headscope's encoder does not).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headscope.anatomy.families import FAMILIES
from headscope.anatomy.parameters import Parameter
from headscope.anatomy.schema import Family
from headscope.anatomy.sizes import SAVED_CONFIG, Dimensions
from headscope.checkpoint.json_text import brief, few, shortened
from headscope.errors import CheckpointError, HeadscopeError, UnsupportedError

if TYPE_CHECKING:
    from headscope.checkpoint import Checkpoint

ATTENTION_ROLES = ("layer.query.", "layer.key.", "layer.value.", "layer.attention_output.")

FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")

BEFORE_PRUNING = "the file doesn't say which heads are left: open the checkpoint from before pruning"

QUANTISED = ("quantization_config", "compression_config", "quantization")
"""The fields with which transformers, compressed-tensors and MLX describe quantised weights."""

CAPTURE_LIVE = "heads' slices and the parameter table work; for attention, capture the live model with transformers"

SAVE_PLAIN = (
    "to look at the model without them, load it with transformers and save it to another folder: "
    "{base}.from_pretrained(folder).save_pretrained(other)"
)

NOT_LOADED = (
    "the parameter table works; {base} of transformers would not load the other weights by their names either and "
    "would start at random: rename them as the class does, or capture the live model that they belong to"
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason to refuse a checkpoint.

    Attributes:
        found: the feature of the checkpoint that headscope can't handle correctly.
        advice: the way out.
        where: config.json, or the name of a tensor.
        heads: True if even a head's slices would be wrong; otherwise only the forward pass.
        damaged: True if the checkpoint contradicts itself; False if it is of a kind that headscope doesn't know.
    """

    found: str
    advice: str
    where: str = "config.json"
    heads: bool = False
    damaged: bool = False

    def error(self, checkpoint: str) -> HeadscopeError:
        """Return the error to raise."""
        kind = CheckpointError if self.damaged else UnsupportedError
        return kind(self.found, where=f"{checkpoint}: {shortened(self.where)}", advice=self.advice)


GENERIC_PREFIX = "model."
"""The prefix of the base model in the classes of several families, and of many wrappers: it identifies none."""


def prefix_refusals(anchor: str, prefix: str, family: Family) -> Iterator[Refusal]:
    """Yield a refusal if the tensors' names are those of another family: config.json belongs to another model.

    Args:
        anchor: the stored name of the word embeddings.
        prefix: the prefix of the base model's names in the file.
        family: the family that config.json names.
    """
    before = anchor.removesuffix(family.embeddings[0].name)
    own = (family.prefix, family.published_prefix, GENERIC_PREFIX)
    for other in FAMILIES:
        if other.prefix not in own and f".{prefix}".endswith(f".{other.prefix}"):
            yield Refusal(
                f"config.json says {family.name}, but the names of the tensors begin with {brief(before)}, as in "
                f"{other.name}",
                SAVED_CONFIG,
                anchor,
                heads=True,
                damaged=True,
            )


def size_refusals(config: Mapping[str, Any], family: Family, dimensions: Dimensions) -> Iterator[Refusal]:
    """Yield the refusals for embedding tables whose sizes differ from config.json."""
    for name in ("vocab", "positions", "types", "d_embedding"):
        config_field = family.config.get(name)
        stated = None if config_field is None else config.get(config_field)
        stored = getattr(dimensions, name)
        if stated is not None and stored and stated != stored:
            text = f"config.json says {config_field} {brief(stated)}, the header holds {stored}"
            advice = f"{SAVED_CONFIG}; if everything else in it is right, set {config_field} to {stored}"
            yield Refusal(text, advice, damaged=True)


def config_refusals(config: Mapping[str, Any], family: Family) -> Iterator[Refusal]:
    """Yield the refusals for settings in config.json."""
    kind = config.get("position_embedding_type")
    if family.position_types and kind not in (None, *family.position_types):
        yield Refusal(
            f"position_embedding_type is {brief(kind)}: scores depend on the distance between tokens, which headscope "
            "doesn't compute",
            CAPTURE_LIVE,
        )
    if config.get("is_decoder"):
        yield Refusal(
            "is_decoder is true: each token looks only at earlier tokens, but headscope's encoder looks in both "
            "directions",
            "heads' slices and the parameter table work; set is_decoder to false if the model was trained as an "
            "encoder",
        )
    if config.get("add_cross_attention"):
        yield Refusal("add_cross_attention is true: the layers also look at another model's output", CAPTURE_LIVE)
    method = next((config[name] for name in QUANTISED if config.get(name)), None)
    if method is not None:
        name = method
        if isinstance(method, Mapping):
            name = method.get("quant_method") or f"{method.get('bits', 'an unknown number of')} bits"
        yield Refusal(
            f"the weights are quantised ({shortened(str(name))}): stored numbers are codes, not weights",
            "open the original checkpoint, before quantisation",
            heads=True,
        )
    pruned = config.get("pruned_heads")
    if isinstance(pruned, Mapping) and any(pruned.values()):
        layers = shortened(", ".join(f"layer {layer}: {heads}" for layer, heads in pruned.items() if heads))
        yield Refusal(
            f"heads were pruned ({layers}): layers have different numbers of heads",
            BEFORE_PRUNING,
            heads=True,
        )
    if config.get("per_layer_config"):
        yield Refusal("per_layer_config gives layers different sizes", "the parameter table works", heads=True)
    for name, value in family.computed.items():
        if config.get(name, value) != value:
            yield Refusal(f"{name} is {brief(config[name])}: headscope computes {brief(value)} only", CAPTURE_LIVE)
    custom = config.get("auto_map")
    mapped = custom if isinstance(custom, Mapping) else {}
    classes = [str(value) for name, value in mapped.items() if str(name).startswith("AutoModel")]
    foreign = [name for name in classes if not is_known_code(name, family)]
    if foreign:
        yield Refusal(
            f"auto_map says that the model runs custom code ({shortened(foreign[0])}), which may compute anything",
            "heads' slices and the parameter table work; for attention, capture the live model with transformers; or, "
            "if the weights fit the class of transformers without that code, remove auto_map from config.json",
        )


def is_known_code(name: str, family: Family) -> bool:
    """Return True if a custom class, `repository--module.Class`, computes what the family's table says."""
    return family.custom_code is not None and name.rpartition("--")[2].startswith(family.custom_code)


ADDITIONS = (
    (
        ("lora_", "base_layer.", "ia3_"),
        "an adapter (LoRA or similar) is stored beside the weights",
        "merge it with peft (model.merge_and_unload()) and save the result; where only this file is left, make the "
        "peft model anew and load it by load_state_dict first: from_pretrained would start these weights at random",
        True,
    ),
    (("crossattention.",), "the layers also look at another model's output (cross-attention)", CAPTURE_LIVE, False),
    (
        ("distance_embedding.",),
        "scores depend on the distance between tokens (relative positions), which headscope doesn't compute",
        "for attention, capture the live model with transformers",
        False,
    ),
)
"""Known kinds of tensors that some checkpoints have inside the base model, beyond its class's parameters.

Parts of their names, any of which identifies the kind; their meaning for attention; the way out; True if they change
the heads' weights, otherwise only the forward pass.
"""


def adapter_refusals(checkpoint: Checkpoint) -> Iterator[Refusal]:
    """Yield the refusal of a folder that has an adapter beside the weights, which transformers loads together."""
    if checkpoint.origin != "file" and checkpoint.file("adapter_config.json") is not None:
        yield Refusal(
            "an adapter (LoRA or similar) lies beside the weights, which transformers adds to them",
            "merge it with peft (model.merge_and_unload()) and save the result; for the model without the adapter, "
            f"pass the weight file itself: {checkpoint.files[0]}",
            "adapter_config.json",
            heads=True,
        )


def own_code_refusals(checkpoint: Checkpoint) -> Iterator[Refusal]:
    """Yield the refusal of a model in memory of which a part runs code of its user."""
    name, kind = checkpoint.own_code
    if name:
        found = f"{kind} has a forward, a hook or an attention function that isn't transformers' own"
        yield Refusal(f"{found}, and may compute anything", CAPTURE_LIVE, name)


def unplaced_refusals(
    unplaced: Sequence[Parameter], base: Sequence[Parameter], base_class: str, *, loads: bool
) -> Iterator[Refusal]:
    """Yield the refusals for tensors inside the base model that its class doesn't have.

    Args:
        unplaced: the tensors.
        base: the base model's parameters.
        base_class: its class.
        loads: True if transformers would load all of them.
    """
    explained: set[str] = set()
    for marks, problem, advice, heads in ADDITIONS:
        names = [row.stored for row in unplaced if any(mark in row.stored for mark in marks)]
        if names:
            explained.update(names)
            yield Refusal(f"{problem}: {listed(names)}", advice, names[0], heads=heads)
    unexplained = [row.stored for row in unplaced if row.stored not in explained]
    if unexplained:
        yield unknown_refusal(unexplained, base, base_class, loads=loads)


def unknown_refusal(names: Sequence[str], base: Sequence[Parameter], base_class: str, *, loads: bool) -> Refusal:
    """Return the refusal for tensors of no known kind; those in the attention modules make the heads wrong."""
    attention = {row.stored.rsplit(".", 1)[0] + "." for row in base if is_attention(row)}
    lengths = {len(module) for module in attention}
    in_attention = [name for name in names if any(name[:length] in attention for length in lengths)]
    examples = in_attention or names
    text = f"the base model contains tensors that {base_class} doesn't have: {listed(examples)}"
    advice = (SAVE_PLAIN if loads else NOT_LOADED).format(base=base_class)
    return Refusal(text, advice, examples[0], heads=bool(in_attention))


def dtype_refusals(base: Sequence[Parameter]) -> Iterator[Refusal]:
    """Yield a refusal if weights are stored as integers, which are codes of a quantisation."""
    codes = [row for row in base if row.dtype not in FLOATS]
    if codes:
        yield Refusal(
            f"{listed([row.stored for row in codes])}: stored as {codes[0].dtype}, which are codes, not weights",
            "open the original checkpoint, before quantisation",
            codes[0].stored,
            heads=any(is_attention(row) for row in codes),
        )


def shape_refusals(mismatches: Sequence[tuple[Parameter, tuple[int, ...]]]) -> Iterator[Refusal]:
    """Yield the refusals for shapes of the base model that contradict the config, one per role."""
    by_role: dict[str | None, list[tuple[Parameter, tuple[int, ...]]]] = {}
    for row, expected in mismatches:
        by_role.setdefault(row.role, []).append((row, expected))
    for (row, expected), *rest in by_role.values():
        yield Refusal(
            f"{shortened(row.stored)} has shape {row.shape}, config.json implies {expected}"
            + (f" (and {len(rest)} more layers)" if rest else ""),
            BEFORE_PRUNING if fewer_heads(row, expected) else SAVED_CONFIG,
            row.stored,
            heads=is_attention(row),
            damaged=True,
        )


def fewer_heads(row: Parameter, expected: tuple[int, ...]) -> bool:
    """Return True if a query, key or value has the shape that is left after some of its heads were removed."""
    stacked = is_attention(row) and not str(row.role).startswith("layer.attention_output.")
    same_rank = len(row.shape) == len(expected)
    return stacked and same_rank and row.shape[0] < expected[0] and row.shape[1:] == expected[1:]


def missing_refusals(missing: Sequence[str], base_class: str) -> Iterator[Refusal]:
    """Yield a refusal if the checkpoint lacks parameters of the base model."""
    if missing:
        yield Refusal(
            f"the checkpoint lacks {len(missing)} of {base_class}'s parameters: {listed(missing)}",
            "use a complete checkpoint; `headscope fit MODEL CLASS` lists the missing parameters",
            missing[0],
            damaged=True,
        )


def is_attention(row: Parameter) -> bool:
    """Return True if heads are slices of this parameter."""
    return row.role is not None and row.role.startswith(ATTENTION_ROLES)


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and the number of the others."""
    return few([*map(shortened, names[:most]), *names[most:]], most)

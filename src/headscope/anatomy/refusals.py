"""What headscope would get wrong about a checkpoint, and so refuses by name. All reasons live here.

Two things can be wrong: a head's slices (the stored rows are not that head's W), and the forward pass (the slices are
right, but the model computes something that headscope's encoder does not).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headscope.anatomy.names import Placement
from headscope.anatomy.parameters import Parameter
from headscope.anatomy.schema import Family
from headscope.anatomy.sizes import SAVED_CONFIG, Dimensions
from headscope.checkpoint.json_text import brief, few, shortened
from headscope.errors import CheckpointError, HeadscopeError, UnsupportedError

ATTENTION_ROLES = ("layer.query.", "layer.key.", "layer.value.", "layer.attention_output.")

FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")

BEFORE_PRUNING = "heads that were pruned can't be told apart: open the checkpoint from before pruning"

QUANTISED = ("quantization_config", "compression_config", "quantization")
"""The fields by which transformers, compressed-tensors and MLX say how weights are quantised."""

SAVE_PLAIN = (
    "if the plain model is what you want to look at, load it with transformers and save it again: "
    "{base}.from_pretrained(folder).save_pretrained(other)"
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason why something is refused.

    Attributes:
        found: what the checkpoint has that headscope can't get right.
        advice: the way out.
        where: config.json, or the tensor it shows in.
        heads: whether even a head's slices would be wrong; otherwise only the forward pass.
        damaged: whether the checkpoint contradicts itself, rather than being of a kind that headscope doesn't know.
    """

    found: str
    advice: str
    where: str
    heads: bool = False
    damaged: bool = False

    def error(self, checkpoint: str) -> HeadscopeError:
        """The error to raise."""
        kind = CheckpointError if self.damaged else UnsupportedError
        return kind(self.found, where=f"{checkpoint}: {shortened(self.where)}", advice=self.advice)


def explaining_first(refusals: Sequence[Refusal]) -> list[Refusal]:
    """The order in which they are said: what makes a head's slices something else explains every odd shape."""
    return sorted(refusals, key=lambda refusal: refusal.damaged or not refusal.heads)


def prefix_refusals(place: Placement, family: Family, families: Sequence[Family]) -> list[Refusal]:
    """The reason that names of another family give: such a config.json is another model's."""
    return [
        Refusal(
            f"config.json says {family.name}, but the names of the tensors begin with {brief(place.prefix)}, as those "
            f"of {other.name} do",
            SAVED_CONFIG,
            place.prefix + other.embeddings[0].name,
            heads=True,
            damaged=True,
        )
        for other in families
        if other is not family and f".{place.prefix}".endswith(f".{other.prefix}")
    ]


def size_refusals(config: Mapping[str, Any], family: Family, dimensions: Dimensions) -> list[Refusal]:
    """Reasons that the embedding tables give, where they are there and of other sizes than config.json says."""
    found = []
    for ours in ("vocab", "positions", "types", "d_embedding"):
        theirs = family.config.get(ours)
        said = None if theirs is None else config.get(theirs)
        held = getattr(dimensions, ours)
        if said is not None and held and said != held:
            text = f"config.json says {theirs} {brief(said)}, the header holds {held}"
            advice = f"{SAVED_CONFIG}; if all else in it is right, set {theirs} to {held}"
            found.append(Refusal(text, advice, "config.json", damaged=True))
    return found


def config_refusals(config: Mapping[str, Any], base_class: str) -> list[Refusal]:
    """Reasons that config.json gives."""
    plain = SAVE_PLAIN.format(base=base_class)
    found: list[Refusal] = []

    def refuse(text: str, advice: str = plain, *, heads: bool = False) -> None:
        found.append(Refusal(text, advice, "config.json", heads=heads))

    kind = config.get("position_embedding_type")
    if kind not in (None, "absolute"):
        refuse(
            f"position_embedding_type is {brief(kind)}: scores depend on the distance between tokens, which headscope "
            "doesn't compute",
            "heads' slices and the parameter table work; for attention, capture the live model with transformers",
        )
    if config.get("is_decoder"):
        refuse(
            "is_decoder is true: each token sees only those before it, and headscope's encoder lets all see all",
            "heads' slices and the parameter table work; set is_decoder to false if the model was trained as an "
            "encoder",
        )
    if config.get("add_cross_attention"):
        refuse("add_cross_attention is true: the layers also attend to another model's output")
    method = next((config[name] for name in QUANTISED if config.get(name)), None)
    if method is not None:
        name = method
        if isinstance(method, Mapping):
            name = method.get("quant_method") or f"{method.get('bits', 'an unknown number of')} bits"
        refuse(
            f"the weights are quantised ({shortened(str(name))}): stored numbers are codes, not weights",
            "open the checkpoint that it was quantised from, or dequantise it with transformers "
            "(model.dequantize()) and save it",
            heads=True,
        )
    pruned = config.get("pruned_heads")
    if isinstance(pruned, Mapping) and any(pruned.values()):
        layers = shortened(", ".join(f"layer {layer}: {heads}" for layer, heads in pruned.items() if heads))
        refuse(
            f"heads were pruned ({layers}): layers have different numbers of heads",
            BEFORE_PRUNING,
            heads=True,
        )
    if config.get("per_layer_config"):
        refuse("per_layer_config gives layers sizes of their own", "the parameter table works", heads=True)
    custom = config.get("auto_map")
    if isinstance(custom, Mapping) and (classes := [name for name in custom if str(name).startswith("AutoModel")]):
        refuse(
            f"auto_map says that the model has code of its own ({shortened(str(custom[classes[0]]))}), "
            "which may compute anything",
            "heads' slices and the parameter table work; for attention, capture the live model with transformers",
        )
    return found


def unplaced_refusals(unplaced: Sequence[Parameter], base: Sequence[Parameter], base_class: str) -> list[Refusal]:
    """Reasons that tensors inside the base model give, which the base model's class doesn't have."""
    plain = SAVE_PLAIN.format(base=base_class)
    attention = {row.stored.rsplit(".", 1)[0] + "." for row in base if is_attention(row)}
    lengths = {len(module) for module in attention}
    touching = [row for row in unplaced if any(row.stored[:length] in attention for length in lengths)]
    found: list[Refusal] = []
    kinds = (
        (("lora_", "base_layer.", "ia3_"), True, "an adapter (LoRA or the like) is stored beside the weights",
         "merge it with peft (model.merge_and_unload()) and save the result"),
        (("crossattention.",), False, "the layers also attend to another model's output (cross-attention)", plain),
        (("distance_embedding.",), False, "scores depend on the distance between tokens (relative positions), which "
         "headscope doesn't compute", "for attention, capture the live model with transformers"),
    )  # fmt: skip
    explained: set[str] = set()
    for marks, heads, text, advice in kinds:
        rows = [row for row in unplaced if any(mark in row.stored for mark in marks)]
        if rows:
            explained.update(row.stored for row in rows)
            found.append(
                Refusal(f"{text}: {listed([row.stored for row in rows])}", advice, rows[0].stored, heads=heads)
            )
    rest = [row.stored for row in unplaced if row.stored not in explained]
    if rest:
        changed = [row.stored for row in touching if row.stored not in explained]
        text = f"there are tensors inside the base model that {base_class} doesn't have: {listed(changed or rest)}"
        found.append(Refusal(text, plain, (changed or rest)[0], heads=bool(changed)))
    return found


def dtype_refusals(base: Sequence[Parameter]) -> list[Refusal]:
    """Reasons that the stored dtypes give: weights that are stored as whole numbers are codes."""
    odd = [row for row in base if row.dtype not in FLOATS]
    if not odd:
        return []
    return [
        Refusal(
            f"{listed([row.stored for row in odd])}: stored as {odd[0].dtype}, which are codes, not weights",
            "open the checkpoint that it was quantised from",
            odd[0].stored,
            heads=any(is_attention(row) for row in odd),
        )
    ]


def shape_refusals(mismatches: Sequence[tuple[Parameter, tuple[int, ...]]]) -> list[Refusal]:
    """Shapes of the base model that contradict the config, one reason per role."""
    by_role: dict[str | None, list[tuple[Parameter, tuple[int, ...]]]] = {}
    for row, wanted in mismatches:
        by_role.setdefault(row.role, []).append((row, wanted))
    return [
        Refusal(
            f"{shortened(rows[0][0].stored)} has shape {rows[0][0].shape}, config.json implies {rows[0][1]}"
            + (f" (and {len(rows) - 1} more layers)" if len(rows) > 1 else ""),
            BEFORE_PRUNING if fewer_heads(*rows[0]) else SAVED_CONFIG,
            rows[0][0].stored,
            heads=is_attention(rows[0][0]),
            damaged=True,
        )
        for rows in by_role.values()
    ]


def fewer_heads(row: Parameter, wanted: tuple[int, ...]) -> bool:
    """Whether this is what a query, key or value looks like after some of its heads were cut out."""
    stacked = is_attention(row) and not str(row.role).startswith("layer.attention_output.")
    return stacked and len(row.shape) == len(wanted) and row.shape[0] < wanted[0] and row.shape[1:] == wanted[1:]


def missing_refusals(missing: Sequence[str], base_class: str) -> list[Refusal]:
    """Parameters of the base model that the checkpoint lacks."""
    if not missing:
        return []
    return [
        Refusal(
            f"the checkpoint lacks {len(missing)} of {base_class}'s parameters: {listed(missing)}",
            "use a checkpoint that was saved whole; `headscope fit MODEL CLASS` lists what is missing",
            missing[0],
            damaged=True,
        )
    ]


def is_attention(row: Parameter) -> bool:
    """Whether a parameter is one that heads are sliced from."""
    return row.role is not None and row.role.startswith(ATTENTION_ROLES)


def listed(names: Sequence[str], most: int = 3) -> str:
    """A few names, and how many more there are."""
    return few([*map(shortened, names[:most]), *names[most:]], most)

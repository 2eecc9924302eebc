"""Models of families without a table: their parameters, totals, dtypes and bytes, and that heads are not known."""

from __future__ import annotations

import pytest
from fake_checkpoint import anatomy_of, fake

from headscope.anatomy import layers_of, read_anatomy
from headscope.anatomy.anatomy_record import memory
from headscope.anatomy.fit import fit
from headscope.anatomy.glossary import explain_config
from headscope.anatomy.tree import tree
from headscope.errors import UnsupportedError


def gpt2(width: int = 768, layers: int = 12) -> dict[str, tuple[int, ...]]:
    header: dict[str, tuple[int, ...]] = {"wte.weight": (50257, width), "wpe.weight": (1024, width)}
    for layer in range(layers):
        at = f"h.{layer}"
        header |= {f"{at}.{norm}.{kind}": (width,) for norm in ("ln_1", "ln_2") for kind in ("weight", "bias")}
        header |= {f"{at}.attn.bias": (1, 1, 1024, 1024), f"{at}.attn.masked_bias": ()}
        header |= {f"{at}.attn.c_attn.weight": (width, 3 * width), f"{at}.attn.c_attn.bias": (3 * width,)}
        header |= {f"{at}.attn.c_proj.weight": (width, width), f"{at}.attn.c_proj.bias": (width,)}
        header |= {f"{at}.mlp.c_fc.weight": (width, 4 * width), f"{at}.mlp.c_fc.bias": (4 * width,)}
        header |= {f"{at}.mlp.c_proj.weight": (4 * width, width), f"{at}.mlp.c_proj.bias": (width,)}
    return header | {"ln_f.weight": (width,), "ln_f.bias": (width,)}


def test_gpt2_has_its_published_size() -> None:
    anatomy = anatomy_of({"model_type": "gpt2", "n_embd": 768}, gpt2())
    assert (anatomy.parameters.total, len(anatomy.parameters)) == (124_439_808, 148)
    assert len(anatomy.buffers) == 24
    assert [part.name for part in anatomy.components] == ["wte", "wpe", "h", "ln_f"]
    assert sum(part.share for part in anatomy.components) == pytest.approx(1)
    assert (anatomy.base_class, anatomy.family, anatomy.dimensions) == ("", None, None)
    assert [base for base, _ in memory(anatomy).values()] == [
        497_759_232,
        248_879_616,
        248_879_616,
        124_439_808,
        497_759_232,
    ]


def test_heads_are_not_known() -> None:
    checkpoint = fake(
        {"model_type": "t5"}, {"shared.weight": ("BF16", (8, 4)), "encoder.block.0.layer.0.q.weight": (4, 4)}
    )
    anatomy = read_anatomy(checkpoint)
    assert anatomy.parameters.dtypes == {"BF16": 32, "F32": 16}
    assert anatomy.parameters.bytes == 128
    assert [part.name for part in anatomy.components] == ["shared", "encoder.block"]
    for refused in (
        lambda: layers_of(checkpoint, anatomy),
        anatomy.known,
        anatomy.computable,
        lambda: anatomy.parameter("layer.query.weight", 0),
        lambda: anatomy.setting("activation"),
        lambda: fit(anatomy, "T5Model"),
    ):
        with pytest.raises(UnsupportedError, match="heads are not known for this model: model_type 't5'") as caught:
            refused()
        assert "bert, roberta, xlm-roberta, camembert, distilbert, electra" in str(caught.value)


@pytest.mark.parametrize("kind", ["xlm-roberta-xl", "roberta-prelayernorm", "mobilebert", "longformer", "deberta"])
def test_neighbours_have_no_table(kind: str) -> None:
    assert anatomy_of({"model_type": kind}, {"bert.embeddings.word_embeddings.weight": (4, 2)}).family is None


def test_tree_of_names_alone() -> None:
    root = tree(anatomy_of({"model_type": "gpt2"}, gpt2()))
    assert (root.count, [child.name for child in root.children]) == (124_439_808, ["wte", "wpe", "h", "ln_f"])
    block = root.children[2].children[0]
    assert (block.name, block.label, block.repeat) == ("0-11", "12 equal modules", 12)
    assert root.children[0].children[0].shape == (50257, 768)


def test_a_name_of_endless_parts_is_drawn() -> None:
    root = tree(anatomy_of({"model_type": "gpt2"}, {"a." * 9000 + "weight": (3,)}))
    depth = 0
    while root.children:
        root, depth = root.children[0], depth + 1
    assert (root.count, depth < 100) == (3, True)


def test_config_of_names_alone() -> None:
    table = explain_config(anatomy_of({"model_type": "gpt2", "n_ctx": 1024, "top_k": 50, "bos_token_id": 3}, gpt2()))
    assert dict(table) == {"model_type": "gpt2", "n_ctx": 1024, "top_k": 50, "bos_token_id": 3}
    assert table.field("n_ctx").meaning == "not described by headscope"
    assert "text generation" in table.field("top_k").meaning
    assert {field.source for field in table.fields} == {"config.json"}


def test_nothing_at_all() -> None:
    anatomy = anatomy_of({}, {}, has_config=False)
    assert (anatomy.parameters.total, anatomy.components, tree(anatomy).children) == (0, (), ())

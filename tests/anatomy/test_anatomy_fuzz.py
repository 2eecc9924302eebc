"""Nonsense in config and header: an anatomy that accounts for every tensor, or an error of ours, and nothing else."""

from __future__ import annotations

import contextlib
import tracemalloc
from typing import Any

import pytest
from fake_checkpoint import TINY_BERT, TINY_CONFIGS, anatomy_of, base_header, every_kind, tiny_bert
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.anatomy.anatomy_record import memory
from headscope.anatomy.entries import ENTRIES
from headscope.anatomy.fit import fit
from headscope.anatomy.glossary import explain_config
from headscope.anatomy.tree import tree
from headscope.errors import HeadscopeError

NONSENSE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 30),
    st.floats(allow_nan=True),
    st.sampled_from(["bert", "gelu", "absolute", "", "BertForMaskedLM", "0"]),
    st.lists(st.sampled_from(["BertForMaskedLM", "BertForTokenClassification", None, 3]), max_size=2),
    st.dictionaries(
        st.sampled_from(["0", "1", "AutoModel"]), st.one_of(st.none(), st.integers(), st.text()), max_size=2
    ),
)
FIELDS = st.sampled_from(sorted({*TINY_BERT, *ENTRIES}))
NAMES = st.sampled_from(sorted(tiny_bert(prefix="bert.", pretraining=True)))
SHAPES = st.lists(st.integers(0, 40), max_size=3).map(tuple)


@settings(max_examples=200)
@given(
    config=st.dictionaries(FIELDS, NONSENSE, max_size=4),
    lost=st.lists(NAMES, max_size=4),
    changed=st.dictionaries(NAMES, st.tuples(st.sampled_from(["F32", "I8", "BF16"]), SHAPES), max_size=4),
    added=st.dictionaries(st.text(max_size=12), SHAPES, max_size=3),
)
def test_nonsense_is_an_anatomy_or_an_error_of_ours(
    config: dict[str, Any], lost: list[str], changed: dict[str, Any], added: dict[str, Any]
) -> None:
    header = tiny_bert(prefix="bert.", pretraining=True) | changed | added
    for name in lost:
        header.pop(name, None)
    with contextlib.suppress(HeadscopeError):
        anatomy = anatomy_of({**TINY_BERT, **config}, header)
        explain_config(anatomy), tree(anatomy), memory(anatomy), fit(anatomy, "BertForTokenClassification")
        counted = [row.stored for row in (*anatomy.parameters, *anatomy.extra)]
        assert sorted([*counted, *anatomy.tied, *anatomy.buffers]) == sorted(header)
        anatomy.computable()


@pytest.mark.parametrize(
    ("family", "kind"), [(family, kind) for family, kind, _ in every_kind()], ids=lambda of: str(of)
)
@pytest.mark.parametrize("count", [1_001, 300_000, 2**32, 10**18])
def test_no_count_of_a_config_costs_more_than_its_checkpoint(family: Any, kind: str, count: int) -> None:
    """Memory is counted, time is not. A config of 616 bytes took 1.75 GB, and with 2^32 groups it never ended."""
    config, header = TINY_CONFIGS[kind], base_header(family, kind)
    numbers = {name for name, value in {**family.defaults, **config}.items() if type(value) is int}
    stem = next(stem for _, other, stem in every_kind() if other == kind)
    for name in sorted({*numbers, *family.config.values(), "num_labels", "conv_kernel_size", "position_buckets"}):
        tracemalloc.start()
        try:
            with contextlib.suppress(HeadscopeError):
                anatomy = anatomy_of({**config, name: count}, header)
                explain_config(anatomy), tree(anatomy), memory(anatomy), fit(anatomy, f"{stem}Model")
                anatomy.computable()
            assert tracemalloc.get_traced_memory()[1] < 30e6, name
        finally:
            tracemalloc.stop()

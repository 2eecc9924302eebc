"""One number per head, and per query, that says where it looks: entropy, neighbours, special tokens, distance.

`trace.statistics()` gives all of them as a table, `trace.head_distances()` says which heads look alike. Formulas and
sources are in docs/statistics.md. The fast computation is in headscope.statistics.fast, which alone imports torch.
"""

from headscope.statistics.definitions import MEANINGS
from headscope.statistics.distances import head_distances
from headscope.statistics.plain import plain_statistics
from headscope.statistics.roles import Roles, roles_of
from headscope.statistics.table import Statistics, statistics
from headscope.statistics.weight_blocks import (
    STATISTICS,
    Block,
    block_statistics,
    blocks,
    head_statistics,
    mean_over_queries,
    measured_statistics,
)

__all__ = [
    "MEANINGS",
    "STATISTICS",
    "Block",
    "Roles",
    "Statistics",
    "block_statistics",
    "blocks",
    "head_distances",
    "head_statistics",
    "mean_over_queries",
    "measured_statistics",
    "plain_statistics",
    "roles_of",
    "statistics",
]

"""One number per head, and per query, that says where it looks: entropy, neighbours, special tokens, distance.

`trace.statistics()` gives all of them as a table, `trace.head_distances()` says which heads look alike. Formulas and
sources are in docs/statistics.md. The fast computation is in headscope.statistics.fast, which alone imports torch.
"""

from headscope.statistics.catalog import CATALOG, Statistic
from headscope.statistics.distances import head_distances
from headscope.statistics.reference import reference_statistics
from headscope.statistics.roles import Roles, roles_of
from headscope.statistics.table import Statistics, statistics

__all__ = [
    "CATALOG",
    "Roles",
    "Statistic",
    "Statistics",
    "head_distances",
    "reference_statistics",
    "roles_of",
    "statistics",
]

"""Statistics of where a head, or a query, looks: entropy, neighbours, special tokens, distance.

`trace.statistics()` returns all of them as a table; `trace.head_distances()` compares heads with each other. Formulas
and sources are in docs/statistics.md. The fast computation in headscope.statistics.fast is the only one that needs
torch.
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

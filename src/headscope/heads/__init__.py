"""Measures of where heads look: statistics, distances and kinds, compared between models.

Read `catalog.py` (the statistics), then `measure.py` (one function that measures a layer, for every caller).
`reference.py` has the formulas, what heads gather, and which tokens count. `fast.py` computes the same
on tensors, in one of two ways; it is the only part that needs torch, with `on_live.py`, which measures live
models over `windows.py`. `head_distances.py` says how far heads are apart, `grid.py` what the page shows first.
`kinds.py` has the thresholds of everything that is said about a head, `intervals.py` the intervals. `comparison.py` is
what differs between two models, `weight_changes.py` what differs between their weights.

Every part below may call it; it reads traces and live models, and knows nothing of runs, corpora or screens.

    measure(LayerArrays.of(record), roles_of(trace), ["entropy"])   # {"entropy": (heads, queries)}
"""

from headscope.heads.catalog import CATALOG, Statistic
from headscope.heads.reference import Roles, roles_of

__all__ = ["CATALOG", "Roles", "Statistic", "roles_of"]

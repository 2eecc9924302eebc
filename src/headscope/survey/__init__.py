"""The statistics of every head over a corpus: `hs.survey(model, documents)`, `headscope survey MODEL CORPUS`.

Documents are read one after the other and gathered into parts. A replica of the model turns a part into one Parquet
file; a file that is there is a part that is done. Aggregates are computed from these files. See docs/survey.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headscope.callable_packages import make_callable

if TYPE_CHECKING:
    from headscope.survey.result import Survey


def _function() -> Callable[..., Survey]:
    """What `hs.survey(model, documents)` calls."""
    from headscope.survey.run import survey

    return survey


make_callable(__name__, _function)

"""The statistics of every head over a corpus: `hs.survey(model, documents)`, `headscope survey MODEL CORPUS`.

Documents are read one after the other and gathered into parts. A replica of the model turns a part into one Parquet
file; a file that is there is a part that is done. Aggregates are computed from these files. See docs/survey.md.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headscope.survey.result import Survey


class _CallableModule(ModuleType):
    """`headscope.survey` is this package and, as a name of headscope, a function: `hs.survey(model, documents)`."""

    def __call__(self, model: Any, documents: Any, **options: Any) -> Survey:
        from headscope.survey.run import survey

        return survey(model, documents, **options)


sys.modules[__name__].__class__ = _CallableModule

"""See inside every attention head of BERT and its kin.

    import headscope as hs
    bert = hs.open("google-bert/bert-base-uncased")
    bert.layers[0].heads[3].W_Q        # (768, 64)
    trace = bert.trace("The cat sat on the mat.")
    trace[0, 3].weights                # computed when it is looked at

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # typing's own would be most of this module's import, and Ctrl-C is not handled before it ends
if TYPE_CHECKING:
    from typing import Any

    from headscope.atlas.comparing import compare
    from headscope.atlas.pair_heads import pair_heads
    from headscope.atlas.result import Survey
    from headscope.atlas.run import survey
    from headscope.errors import HeadscopeError, HeadscopeWarning
    from headscope.explain.matching import match
    from headscope.heads.comparison import Comparison
    from headscope.live import Captured, ablate, describe
    from headscope.live.captured import capture, trace
    from headscope.model import Model
    from headscope.opening import open
    from headscope.results.effect_records import Effects, Removal
    from headscope.results.explained import Attribution, Finding, Prediction
    from headscope.results.head_values import HeadValues
    from headscope.results.match_record import Matches
    from headscope.results.table import HeadTable
    from headscope.results.verify_report import Report
    from headscope.runs.live_scores import effects, removal
    from headscope.traces import Trace, load

__version__ = "0.1.0"

__all__ = [
    "Attribution",
    "Captured",
    "Comparison",
    "Effects",
    "Finding",
    "HeadTable",
    "HeadValues",
    "HeadscopeError",
    "HeadscopeWarning",
    "Matches",
    "Model",
    "Prediction",
    "Removal",
    "Report",
    "Survey",
    "Trace",
    "ablate",
    "capture",
    "compare",
    "describe",
    "effects",
    "load",
    "match",
    "open",
    "pair_heads",
    "removal",
    "survey",
    "trace",
]

LAZY = {
    "Attribution": "headscope.results.explained:Attribution",
    "Captured": "headscope.live:Captured",
    "Comparison": "headscope.heads.comparison:Comparison",
    "Effects": "headscope.results.effect_records:Effects",
    "Finding": "headscope.results.explained:Finding",
    "HeadTable": "headscope.results.table:HeadTable",
    "HeadValues": "headscope.results.head_values:HeadValues",
    "HeadscopeError": "headscope.errors:HeadscopeError",
    "HeadscopeWarning": "headscope.errors:HeadscopeWarning",
    "Matches": "headscope.results.match_record:Matches",
    "Model": "headscope.model:Model",
    "Prediction": "headscope.results.explained:Prediction",
    "Removal": "headscope.results.effect_records:Removal",
    "Report": "headscope.results.verify_report:Report",
    "Survey": "headscope.atlas.result:Survey",
    "Trace": "headscope.traces:Trace",
    "ablate": "headscope.live:ablate",
    "capture": "headscope.live:capture",
    "compare": "headscope.atlas.comparing:compare",
    "describe": "headscope.live:describe",
    "effects": "headscope.runs.live_scores:effects",
    "load": "headscope.traces:load",
    "match": "headscope.explain.matching:match",
    "open": "headscope.opening:open",
    "pair_heads": "headscope.atlas.pair_heads:pair_heads",
    "removal": "headscope.runs.live_scores:removal",
    "survey": "headscope.atlas.run:survey",
    "trace": "headscope.live:trace",
}
"""Public name -> where it lives; imported when it is first asked for."""


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module 'headscope' has no attribute {name!r}")
    module, _, attribute = LAZY[name].partition(":")
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

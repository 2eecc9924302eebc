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

    from headscope._capture import Captured, ablate, describe
    from headscope._capture.captured import capture
    from headscope._capture.one_liner import trace
    from headscope._compare.run import compare
    from headscope._survey.result import Survey
    from headscope._survey.run import survey
    from headscope._trace import Trace, load
    from headscope._watch.trainer import HeadscopeCallback
    from headscope._watch.watching import watch
    from headscope.errors import HeadscopeError
    from headscope.model import Model
    from headscope.model import open_model as open

__version__ = "0.1.0"

__all__ = [
    "Captured",
    "HeadscopeCallback",
    "HeadscopeError",
    "Model",
    "Survey",
    "Trace",
    "ablate",
    "capture",
    "compare",
    "describe",
    "load",
    "open",
    "survey",
    "trace",
    "watch",
]

LAZY = {
    "Captured": "headscope._capture:Captured",
    "HeadscopeCallback": "headscope._watch.trainer:HeadscopeCallback",
    "HeadscopeError": "headscope.errors:HeadscopeError",
    "Model": "headscope.model:Model",
    "Survey": "headscope._survey.result:Survey",
    "Trace": "headscope._trace:Trace",
    "ablate": "headscope._capture:ablate",
    "capture": "headscope._capture:capture",
    "compare": "headscope._compare.run:compare",
    "describe": "headscope._capture:describe",
    "load": "headscope._trace:load",
    "open": "headscope.model:open_model",
    "survey": "headscope._survey.run:survey",
    "trace": "headscope._capture:trace",
    "watch": "headscope._watch.watching:watch",
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

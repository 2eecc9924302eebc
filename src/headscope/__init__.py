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

    from headscope.capture import Captured, ablate, describe
    from headscope.capture.captured import capture
    from headscope.capture.one_liner import trace
    from headscope.errors import HeadscopeError
    from headscope.model import Model
    from headscope.model import open_model as open
    from headscope.survey.run import survey
    from headscope.trace import Trace, load

__version__ = "0.1.0"

__all__ = [
    "Captured",
    "HeadscopeError",
    "Model",
    "Trace",
    "ablate",
    "capture",
    "describe",
    "load",
    "open",
    "survey",
    "trace",
]

LAZY = {
    "Captured": "headscope.capture:Captured",
    "HeadscopeError": "headscope.errors:HeadscopeError",
    "Model": "headscope.model:Model",
    "Trace": "headscope.trace:Trace",
    "ablate": "headscope.capture:ablate",
    "capture": "headscope.capture",
    "describe": "headscope.capture:describe",
    "load": "headscope.trace:load",
    "open": "headscope.model:open_model",
    "survey": "headscope.survey",
    "trace": "headscope.trace",
}
"""Public name -> where it lives; imported when it is first asked for. `hs.capture(…)`, `hs.survey(…)` and
`hs.trace(…)` are functions that share their names with packages: those packages can be called."""


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module 'headscope' has no attribute {name!r}")
    module, _, attribute = LAZY[name].partition(":")
    found = getattr(import_module(module), attribute) if attribute else import_module(module)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

"""Names that a notebook offers: IPython's own completer after `table["`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import headscope as hs
from finished_survey import finished


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Any:
    settings = Config()
    settings.HistoryManager.enabled = False
    settings.Completer.use_jedi = False
    settings.InteractiveShell.ipython_dir = str(tmp_path_factory.mktemp("ipython"))
    shell = InteractiveShell(config=settings)
    yield shell
    shell.restore_sys_module_state()
    InteractiveShell.clear_instance()


def offered(shell: Any, thing: Any) -> list[str]:
    """What IPython offers after `thing["`."""
    shell.push({"thing": thing})
    with provisionalcompleter():
        return [one.text.strip("\"']") for one in shell.Completer.completions('thing["', len('thing["'))]


def test_what_is_asked_by_name_offers_its_names(shell: Any, tmp_path: Path) -> None:
    bert = hs.open()
    trace = bert.trace("a cat sat")
    survey = hs.Survey(finished(tmp_path))
    for thing in (trace.statistics(), trace.outputs, survey):
        assert sorted(offered(shell, thing)) == sorted(thing)
    assert "hidden_size" in offered(shell, bert.config)
    assert sorted(offered(shell, bert.parameters)) == sorted(row.name for row in bert.parameters)

"""What all tests share: shapes are checked while they run, no test reaches for the network or depends on the machine.

Whoever runs them has a terminal, a language, a proxy and a speed: none of these may decide what a test says.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from costs import Costs
from patience import PATIENCE

if TYPE_CHECKING:
    import headscope as hs
    from random_models import Made

for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    # Each worker has a core, and threads that wait for one another burn what the others need. NumPy and PyTorch read
    # these once, when they are imported; so does a process that a test starts.
    os.environ.setdefault(name, "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ |= {"NO_PROXY": "*", "no_proxy": "*"}
os.environ |= dict.fromkeys(("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"), str(PATIENCE))
# No test cuts the power, and a disk under load takes a second for what a survey of six heads syncs.
os.fsync = lambda _: None
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it puts in the background so, and children inherit it: none could then be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker that is done takes tests from another: the slow ones are neighbours, and would all fall to one."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """With `-n auto` one more than there are cores: whoever tests a page waits for the browser half of the time."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist reads it
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on Ray come first, so that they stay with the worker that has started one: others take from the end."""
    items.sort(key=lambda item: "ray_cluster" not in getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What the tests import is no garbage; to look through it takes half a second each time, an eighth of all."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-screens", action="store_true", help="write tests/screens/kept anew; look at the diff")
    parser.addoption(
        "--only-numbers", action="store_true", help="leave annotated shapes unchecked, as no kernel changes one"
    )
    parser.addoption("--mutations", type=int, default=100, help="damaged files for each reader of tests/attacks")
    parser.addoption("--most-seconds", type=float, help="list the costliest tests; mark those above it")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("tx", None) or hasattr(config, "workerinput"):  # tests run here, and not in workers
        from shape_checks import check_shapes  # imports NumPy, which has read the number of its threads from then on

        if not config.getoption("--only-numbers"):
            check_shapes()
    most = config.getoption("--most-seconds")
    if most is not None:
        config.pluginmanager.register(Costs(most))


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the small BERT whose heads are known; no test changes it."""
    from small_bert import small_bert

    return str(small_bert(tmp_path_factory.mktemp("small")))


@pytest.fixture(scope="session")
def bert(small: str) -> hs.Model:
    """The small BERT."""
    import headscope as hs

    return hs.open(small)


@pytest.fixture(scope="session")
def bundled() -> hs.Model:
    import headscope as hs

    return hs.open()


@pytest.fixture(scope="session")
def minilm() -> hs.Model:
    """sentence-transformers/all-MiniLM-L6-v2 as published."""
    import headscope as hs
    from naive_layers import MINILM

    return hs.open(MINILM)


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A random BERT with a vocabulary, a masked LM; no test changes it."""
    from explain.tops import readable

    return readable(tmp_path_factory.mktemp("words"), "Bert", "ForMaskedLM")


@pytest.fixture
def model(words: Made) -> hs.Model:
    """That masked LM, opened anew."""
    import headscope as hs

    return hs.open(words.folder)


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A classifier of three named classes; no test changes it."""
    from explain.tops import readable

    return readable(tmp_path_factory.mktemp("classes"), "Bert", "ForSequenceClassification")


MadeOnce = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """A folder by its name: the first worker that needs it fills it, others wait, and no test changes it."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def folder(name: str, fill: Callable[[Path], object]) -> Path:
        with FileLock(shared / f"{name}.lock"):
            if not (shared / name / "made").exists():
                (shared / name).mkdir(exist_ok=True)
                fill(shared / name)
                (shared / name / "made").touch()
        return shared / name

    return folder


@pytest.fixture(scope="session")
def known_survey(tmp_path_factory: pytest.TempPathFactory, made_once: MadeOnce) -> Path:
    """A finished survey of heads that do known things: labels, examples, syntax, distances, a site; a copy of it."""
    import headscope as hs
    from known_heads import known_heads, known_treebank

    def fill(folder: Path) -> None:
        options: dict[str, Any] = {"labels": True, "examples": 4, "head_distances": 2, "length": 32}
        treebank = known_treebank(folder / "t.conllu")
        hs.survey(known_heads(folder), treebank, out=folder / "out", part_size=20_000, threads=1, **options)

    return Path(shutil.copytree(made_once("known", fill) / "out", tmp_path_factory.mktemp("known") / "out"))

"""The files of a survey, read back from its folder and checked: the manifest, the aggregates, tables.

Every file has a seal: whose file it is, its name, and a hash. It says that the file is as it was written. It is no
signature: who forges a survey may give it other contents, which are not checked.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headscope.checkpoint.json_text import JsonError, brief, few, parse_object
from headscope.checkpoint.raw_files import read_whole
from headscope.errors import HeadscopeWarning, InputError, require
from headscope.files import fault, label_of
from headscope.heads import CATALOG

if TYPE_CHECKING:
    import pyarrow


AGAIN = "run the same survey command again: it resumes and makes damaged or missing files again"
"""Advice for a survey that is not complete."""

FIELDS = ("mean", "deviation", "min", "q05", "q25", "q50", "q75", "q95", "max")
"""Measures of every statistic; q05 is the quantile below which 5% of the windows lie."""

NAME = re.compile(r"(?:(?:parts|similarity|effects|writes)/)?[\w-]+\.(?:parquet|json|npy)", re.ASCII)
"""Names of the files that a manifest lists: none leads out of the survey's folder."""


FORMAT = "headscope survey 2"
"""The manifest's `format`."""

LARGEST = 1 << 31
"""Most bytes of a file that is read whole."""


class Owner(NamedTuple):
    """The survey that files belong to, as their labels say.

    Attributes:
        run: hash of all that the numbers depend on but the texts; the manifest and the parts have it.
        texts: hash of that and of the texts of all parts; what is made from them has it.
    """

    run: str
    texts: str

    @classmethod
    def of(cls, run: str, parts: Iterable[Mapping[str, Any]]) -> Owner:
        """The owner of all files, from the records of the parts."""
        return cls(run, digest([run, *(part["texts"] for part in parts)]))

    def label(self, name: str) -> str:
        """The label of a file of this name."""
        return f"{self.run if name.startswith(('manifest.json', 'parts/')) else self.texts} {name} "

    def owns(self, label: str) -> bool:
        """Return True for the label of any file of this survey."""
        return label.partition(" ")[0] in self

    def fault(self, name: str, data: bytes) -> str | None:
        """A clause that says why these bytes are not this survey's file of that name, or None."""
        problem, label = fault(data), label_of(data)
        if problem is not None or label == self.label(name):
            return problem
        return f"it is {label.split(' ')[1]} of this survey" if self.owns(label) else "it is of another survey"


def digest(value: Any) -> str:
    """The sha256 of a value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def read_records(folder: Path, *, parts: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest and the aggregates of a finished survey, once all of its files have been checked.

    Args:
        parts: check the parts, too. Pass False if they have just been checked.

    Raises:
        InputError: the folder has no survey, the survey is not complete, or a file is damaged or missing.
    """
    where = folder / "manifest.json"
    manifest = parse_manifest(where)
    if not manifest["complete"]:
        raise InputError(
            "the survey is not finished: its manifest has complete = false", where=str(where), advice=AGAIN
        )
    files = Files.of(folder, manifest)
    wanted = named_files(manifest, ("files", "parts") if parts else ("files",))
    problems = {name: problem for name in wanted if (problem := files.checked(name)[1])}
    if problems:
        name, problem = next(iter(problems.items()))
        more = f"; {len(problems) - 1} more are damaged: {few(list(problems)[1:], 5)}" if len(problems) > 1 else ""
        raise InputError(f"{name}: {problem}{more}", where=str(folder / name), advice=AGAIN)
    if unknown := [name for name in manifest["statistics"] if name not in CATALOG]:
        found = f"the survey has {brief(unknown[0])}, a statistic that this version of headscope doesn't know"
        advice = "read it with the version that wrote it: the manifest names it"
        raise InputError(found, where=str(folder), advice=advice)
    return manifest, parse_object(files.read("aggregates.json"), unique=False)


class DamageWarning(HeadscopeWarning):
    """A file of a survey was damaged; it is made again."""


def named_files(manifest: Mapping[str, Any], lists: Sequence[str] = ("files", "arrays", "parts")) -> list[str]:
    """The names of the files in these lists of a manifest."""
    return [file["name"] if name == "parts" else file for name in lists for file in manifest.get(name, ())]


def owner_of(manifest: Mapping[str, Any]) -> Owner:
    """The owner of a finished survey's files."""
    return Owner.of(manifest["seal"].partition(" ")[0], manifest["parts"])


class Files(NamedTuple):
    """The files of a finished survey, each checked when it is read.

    Attributes:
        folder: of the survey.
        names: of the files that the manifest lists.
        owner: of the survey's files.
    """

    folder: Path
    names: frozenset[str]
    owner: Owner

    @classmethod
    def of(cls, folder: Path, manifest: Mapping[str, Any]) -> Files:
        """The files that a complete manifest lists."""
        return cls(folder, frozenset(named_files(manifest)), owner_of(manifest))

    def checked(self, name: str) -> tuple[bytes, str | None]:
        """The bytes of a file, and a clause that says what is wrong with them, or None."""
        if name not in self.names:
            return b"", "the manifest doesn't list it"
        try:
            data = read_whole(self.folder / name, LARGEST)
        except FileNotFoundError:
            return b"", "the file is missing"
        except OSError as error:
            return b"", f"it can't be read: {error.strerror or error}"
        return data, self.owner.fault(name, data)

    def read(self, name: str) -> bytes:
        """The bytes of a file.

        Raises:
            InputError: it is not listed, is missing or can't be read, or is not the file that is listed.
        """
        data, problem = self.checked(name)
        if problem is not None:
            raise InputError(f"{name}: {problem}", where=str(self.folder / name), advice=AGAIN)
        return data

    def table(self, name: str) -> pyarrow.Table:
        """A table, whole.

        Raises:
            InputError: as in `read`.
            MissingExtraError: pyarrow is not installed.
        """
        require("pyarrow", "survey", where=str(self.folder / name))
        from headscope.atlas.store import table_of_bytes

        return table_of_bytes(self.read(name))


class ManifestError(InputError):
    """A manifest that can't be used.

    Attributes:
        foreign: True if it looks like an intact file of something else, not like a survey's damaged manifest.
    """

    def __init__(self, problem: str, path: Path, advice: str, *, foreign: bool = False) -> None:
        super().__init__(problem, where=str(path), advice=advice)
        self.foreign = foreign


def parse_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest and check its bytes against the hash written with them.

    Raises:
        ManifestError: it is missing, damaged, or a file of something else.
        InputError: it can't be read.
    """
    try:
        data = read_whole(path, LARGEST)
    except FileNotFoundError as error:
        advice = "name the folder that `headscope survey --out` wrote"
        if any(path.parent.glob("parts/part-*.parquet")):
            advice = AGAIN
        raise ManifestError("there is no manifest.json", path.parent, advice) from error
    except (OSError, ValueError) as error:  # a NUL in the folder's name
        found = f"the manifest can't be read: {getattr(error, 'strerror', None) or error}"
        raise InputError(found, where=str(path), advice="check the folder") from error
    problem = fault(data)
    try:
        manifest = parse_object(data, unique=False)
    except JsonError as error:
        problem = f"{problem or 'its hash is right'}, and it holds no JSON object ({error})"
        raise ManifestError(f"the manifest can't be read: {problem}", path, AGAIN) from error
    if manifest.get("format") != FORMAT:
        raise ManifestError(
            f"expected a manifest with format {FORMAT!r}, got {brief(manifest.get('format'))}",
            path,
            "name another folder; if this one held a survey, run the same survey command again",
            foreign=True,
        )
    if problem is not None:
        raise ManifestError(f"the manifest is damaged: {problem}", path, AGAIN)
    for name in named_files(manifest):
        if not NAME.fullmatch(name):
            raise ManifestError(f"the manifest lists {brief(name)}: a survey has no such file", path, AGAIN)
    return manifest

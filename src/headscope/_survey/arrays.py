"""Arrays as sealed .npy files, each with a record of what it is of."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope._survey.seal import BLANK, sealed

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._survey.folder import Folder


def array_bytes(array: Float[np.ndarray, "..."], record: Mapping[str, Any]) -> bytes:
    """An array as .npy. Its record and its seal come after the array, where readers of .npy ignore them."""
    sink = io.BytesIO()
    np.save(sink, array, allow_pickle=False)
    sink.write(json.dumps({**record, "seal": BLANK.decode()}).encode())
    return sealed(sink.getvalue())


def array_and_record(data: bytes) -> tuple[Float[np.ndarray, "..."], dict[str, Any]]:
    """What `array_bytes` wrote; the caller has checked the seal."""
    source = io.BytesIO(data)
    array: Float[np.ndarray, "..."] = np.load(source, allow_pickle=False)
    record: dict[str, Any] = json.loads(source.read())
    return array, record


def kept_array(folder: Folder, name: str, record: Mapping[str, Any]) -> Float[np.ndarray, "..."] | None:
    """An array of the folder with that record; None if there is none. A damaged or foreign file is set aside."""
    data = folder.read(name)
    if data is None:
        return None
    array, written = array_and_record(data)
    if {key: written.get(key) for key in record} == json.loads(json.dumps(dict(record))):
        return array
    folder.set_aside(name, "it is of another window, or of another survey")
    return None

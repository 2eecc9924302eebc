"""Failed requests to the hub as errors that say what happened, where, and what to do."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

from headscope.errors import NotFoundError

FAMILIAR = (
    "google-bert/bert-base-uncased",
    "google-bert/bert-base-cased",
    "google-bert/bert-large-uncased",
    "google-bert/bert-large-cased",
    "google-bert/bert-base-multilingual-cased",
    "google-bert/bert-base-chinese",
    "FacebookAI/roberta-base",
    "FacebookAI/roberta-large",
    "FacebookAI/xlm-roberta-base",
    "distilbert/distilbert-base-uncased",
    "almanach/camembert-base",
    "google/electra-small-discriminator",
    "google/electra-base-discriminator",
)
"""Well-known ids to suggest for a mistyped one."""


def failures() -> tuple[type[Exception], ...]:
    """Return the exceptions that a request to the hub may raise."""
    from huggingface_hub import errors

    # The HTTP client is httpx in huggingface_hub 1 and httpx2 in 2: take the one whose HTTPError it imports.
    client = import_module(errors.HTTPError.__module__.partition(".")[0])
    return client.HTTPError, client.InvalidURL, OSError, ValueError


def explain(error: Exception, identity: str, revision: str | None) -> tuple[NotFoundError, bool]:
    """Explain an exception that a request raised.

    Returns:
        headscope's error; and True if it is final, so that a cached copy would be no substitute.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where = identity if revision is None else f"{identity}@{revision}"
    by_hand = "download the model on a machine with a network, and pass its folder"
    if isinstance(error, HFValidationError):
        return NotFoundError("this is not a hub id", where=identity, advice="a hub id is owner/name"), True
    if isinstance(error, RevisionNotFoundError):
        advice = "pass a branch, tag or commit of the model, or leave the revision out"
        return NotFoundError(f"the model has no revision {revision}", where=identity, advice=advice), True
    if isinstance(error, GatedRepoError):
        advice = "request access on the model's page, then log in (`hf auth login`, or HF_TOKEN)"
        return NotFoundError("the model is gated: its owners control access", where=where, advice=advice), False
    if isinstance(error, RepositoryNotFoundError):
        close = get_close_matches(identity, FAMILIAR, 1, 0.8)
        close = close or [known for known in FAMILIAR if get_close_matches(identity, [known.split("/")[1]], 1, 0.85)]
        suggestion = f"did you mean {close[0]}? " if close else ""
        advice = f"{suggestion}Check the spelling; if the model is private, log in (`hf auth login`, or HF_TOKEN)"
        return NotFoundError(
            "the hub has no model with this id, and no such path exists", where=where, advice=advice
        ), False
    if isinstance(error, OfflineModeIsEnabled):
        problem = "no such path exists, the model is not in the cache, and HF_HUB_OFFLINE forbids requests to the hub"
        return NotFoundError(problem, where=where, advice=f"unset HF_HUB_OFFLINE, or {by_hand}"), False
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        log_in = "log in (`hf auth login`, or HF_TOKEN) with a token that has access to this model"
        advice = log_in if status in (401, 403) else f"try again later, or {by_hand}"
        return NotFoundError(
            f"the hub answered {status}", where=f"{where} on {constants.ENDPOINT}", advice=advice
        ), False
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    advice = f"check the network and HF_ENDPOINT, or {by_hand}"
    return NotFoundError(
        f"the hub can't be reached ({reason})", where=f"{where} on {constants.ENDPOINT}", advice=advice
    ), False

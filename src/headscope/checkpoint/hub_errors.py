"""What went wrong on the way to the hub, in our own words: what, where, and what to do."""

from __future__ import annotations

import sys
from difflib import get_close_matches

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
"""Ids that people mistype, to suggest from."""


def failures() -> tuple[type[Exception], ...]:
    """The exceptions that a request to the hub raises, whichever HTTP client this huggingface_hub is built on."""
    from huggingface_hub.errors import HfHubHTTPError

    # Its bases are the client's own root of errors: requests' before 1.0, httpx's since.
    bases = [base for base in HfHubHTTPError.__mro__ if issubclass(base, Exception) and base is not Exception]
    clients = [sys.modules[base.__module__.partition(".")[0]] for base in bases]
    malformed: list[type[Exception]] = [client.InvalidURL for client in clients if hasattr(client, "InvalidURL")]
    return (*bases, *malformed, OSError, ValueError)


def explain(error: Exception, identity: str, revision: str | None) -> tuple[NotFoundError, bool]:
    """Our error for what a request raised, and whether it is final: a cached copy would not answer the question."""
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
    by_hand = "download the model where there is a network, and give its folder"
    if isinstance(error, HFValidationError):
        return NotFoundError("this is no hub id", where=identity, advice="a hub id is owner/name"), True
    if isinstance(error, RevisionNotFoundError):
        advice = "give a branch, a tag or a commit that the model has, or leave the revision out"
        return NotFoundError(f"the model has no revision {revision}", where=identity, advice=advice), True
    if isinstance(error, GatedRepoError):
        advice = "ask for access on the model's page, then log in (`hf auth login`, or HF_TOKEN)"
        return NotFoundError("the model is gated: its owners decide who reads it", where=where, advice=advice), False
    if isinstance(error, RepositoryNotFoundError):
        close = get_close_matches(identity, FAMILIAR, 1, 0.8)
        close = close or [known for known in FAMILIAR if get_close_matches(identity, [known.split("/")[1]], 1, 0.85)]
        meant = f"did you mean {close[0]}? " if close else ""
        advice = f"{meant}Check the spelling; if the model is private, log in (`hf auth login`, or HF_TOKEN)"
        return NotFoundError(
            "the hub has no model of this id, and there is no such path", where=where, advice=advice
        ), False
    if isinstance(error, OfflineModeIsEnabled):
        found = "there is no such path, the model is not in the cache, and HF_HUB_OFFLINE keeps from asking the hub"
        return NotFoundError(found, where=where, advice=f"unset HF_HUB_OFFLINE, or {by_hand}"), False
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        denied = "log in (`hf auth login`, or HF_TOKEN) with a token that may read this model"
        advice = denied if status in (401, 403) else f"try again later, or {by_hand}"
        return NotFoundError(
            f"the hub answered {status}", where=f"{where} on {constants.ENDPOINT}", advice=advice
        ), False
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    advice = f"check the network and HF_ENDPOINT, or {by_hand}"
    return NotFoundError(
        f"the hub can't be reached ({reason})", where=f"{where} on {constants.ENDPOINT}", advice=advice
    ), False

"""Targets: the one number of a model's output that is explained, such as a word at a mask, a class or a cosine.

A target may be named by

| what is passed | what it means |
|---|---|
| None | the best word at the first mask; without a mask the predicted class; without classes the text's vector |
| "hat" | that word at the first mask; for a text without a mask, the class of that name |
| 7 | the class with that number; at a mask, the token with that id |
| ("word", "hat") or ("word", "hat", 5) | that word at the first mask, or at the mask in position 5 |
| ("class", "spam") or ("class", 1) | a class of a sequence classifier; a reranker's score is ("class", 0) |
| ("token", 4, "NOUN") | a label of token 4 of a token classifier |
| ("embedding",) | the text's vector: its projection on what it is before anything is changed |
| ("similarity", "a second text") | the cosine with that text's vector |

The best word is the token with the highest logit that has a letter or a digit and doesn't continue a word (`##ing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from headscope.errors import CheckpointError, InputError, UnsupportedError
from headscope.explain.runs import encoded_text, last_states
from headscope.explain.sentence import cosines_with, pooled

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.checkpoint.tokenizer import Encoded
    from headscope.model import Model

Wanted: TypeAlias = "Target | str | int | tuple[str | int, ...] | None"
FORMS = "see headscope.explain.target for what a target may be"
LEADS = "Ġ▁"
"""How vocabularies spell the space before a word."""


@dataclass(frozen=True, eq=False)
class Target:
    """One number that a model computes from the last hidden state of a text.

    Attributes:
        kind: `word`, `class`, `score` (the only output of a sequence classifier), `token`, `embedding` or `similarity`.
        label: the word, the class, the label; for similarity the second text.
        index: which logit; None for `embedding` and `similarity`.
        row: the token whose last hidden state is read; None where all are (vectors pooled by the mean).
        direction: (d_model,) of length 1, the direction that `embedding` and `similarity` measure along.
        length: of the text's vector before anything is changed; 1 for the other kinds.
        chosen: True where nobody named it and it is the default.

    The number itself is, before the softmax where there is one,

        word, class, score, token    the logit
        embedding                    e . u / |e_0|, with u = e_0 / |e_0| and e_0 the vector before anything is changed:
                                     1 at first, and 0.9 where a tenth of its length along its own direction is gone
        similarity                   cos(e, b), with b the second text's vector
    """

    kind: str
    label: str
    index: int | None
    row: int | None
    direction: Float[np.ndarray, " d_model"] | None = None
    length: float = 1.0
    chosen: bool = False

    @property
    def unit(self) -> str:
        """The unit of the number: logit, share or cosine."""
        return {"embedding": "share", "similarity": "cosine"}.get(self.kind, "logit")

    @property
    def aside(self) -> str:
        """A second reading of the same output: probability or cosine; empty where there is none."""
        return {"embedding": "cosine", "similarity": ""}.get(self.kind, "probability")

    def rows_of(self, last: Float[np.ndarray, "tokens d_model"]) -> Float[np.ndarray, "rows d_model"]:
        """The rows of a last hidden state that it reads."""
        return last if self.row is None else last[self.row : self.row + 1]

    def __str__(self) -> str:
        at = f"at token {self.row}"
        sentences = {
            "word": f"the logit of the word {self.label!r} {at}",
            "class": f"the logit of the class {self.label!r}",
            "score": "the score",
            "token": f"the logit of the label {self.label!r} {at}",
            "embedding": "the text's vector, as its projection on the unchanged one",
            "similarity": f"the cosine with {self.label!r}",
        }
        return sentences[self.kind] + (" (the default)" if self.chosen else "")


@dataclass(frozen=True, eq=False)
class Readings:
    """A target's number in several runs.

    Attributes:
        values: (runs,) the number.
        aside: (runs,) the probability or cosine that goes with it; None where the target has none.
    """

    values: Float[np.ndarray, " runs"]
    aside: Float[np.ndarray, " runs"] | None


def read(model: Model, target: Target, hidden: Float[np.ndarray, "runs rows d_model"]) -> Readings:
    """A target's number from last hidden states of which only the target's rows are there.

    Args:
        model: the model.
        target: the target.
        hidden: (runs, 1, d_model) where the target reads one row, else (runs, tokens, d_model).
    """
    if target.direction is not None:
        vectors = hidden.astype(np.float64)
        vectors = vectors[:, 0] if target.row is not None else vectors.mean(axis=1)
        cosines = cosines_with(target.direction, vectors)
        if target.kind == "similarity":
            return Readings(cosines, None)
        return Readings(vectors @ target.direction / target.length, cosines)
    assert target.index is not None
    logits = _logits(model, target, hidden[:, 0]).astype(np.float64)
    chosen = logits[:, target.index]
    if target.kind == "score":
        return Readings(chosen, 1 / (1 + np.exp(-chosen)))
    highest = logits.max(axis=1, keepdims=True)
    shares = np.exp(chosen - highest[:, 0]) / np.exp(logits - highest).sum(axis=1)
    return Readings(chosen, shares)


def _logits(model: Model, target: Target, rows: Float[np.ndarray, "runs d_model"]) -> Float[np.ndarray, "runs n"]:
    if target.kind == "word":
        return model.tops.masked_lm(rows)
    if target.kind == "token":
        return model.tops.token(rows)
    return np.stack([model.tops.sequence(row[None]) for row in rows])


def choose(model: Model, encoded: Encoded, last: Float[np.ndarray, "tokens d_model"], wanted: Wanted) -> Target:
    """The target that was named, or the default; the table above says what may be passed.

    Args:
        model: the model.
        encoded: the text.
        last: its last hidden state.
        wanted: the target's name.

    Raises:
        InputError: no such word, class, label or position; no mask in the text.
        UnsupportedError: the model lacks the output.
        CheckpointError: the last hidden state is not made of numbers.
    """
    if not np.isfinite(last).all():
        raise CheckpointError(
            "the last hidden state is not made of numbers",
            where=model.checkpoint.where,
            advice="`headscope verify` names the tensors that hold NaN or infinity",
        )
    if isinstance(wanted, Target):
        if wanted.row is not None and wanted.row >= len(encoded):
            raise InputError(
                f"the target reads token {wanted.row}, and the text has {len(encoded)} tokens",
                where="target",
                advice="name the target anew for this text",
            )
        return wanted
    masks = _masks(model, encoded)
    tasks = model.anatomy.tasks
    if wanted is None:
        if masks and "masked_lm" in tasks:
            return _best_word(model, last, masks[0])
        classifies = "sequence" in tasks and model.tops.reads_first_token
        return _predicted(model, last) if classifies else _vector(model, last, chosen=True)
    if isinstance(wanted, (str, int)) and not isinstance(wanted, bool):
        fills = masks and "masked_lm" in tasks
        return _class(model, (wanted,)) if "sequence" in tasks and not fills else _word(model, masks, (wanted,))
    if isinstance(wanted, tuple) and wanted:
        kind, *rest = wanted
        if kind == "word" and len(rest) in (1, 2):
            return _word(model, masks, rest)
        if kind == "class" and len(rest) == 1:
            return _class(model, rest)
        if kind == "token" and len(rest) == 2:
            return _token_label(model, encoded, rest)
        if kind == "embedding" and not rest:
            return _vector(model, last)
        if kind == "similarity" and len(rest) == 1 and isinstance(rest[0], str):
            return _similar(model, last, rest[0])
    raise InputError(f"{wanted!r:.60} names no target", where="target", advice=FORMS)


def lacks(model: Model, what: str, saved_from: str) -> UnsupportedError:
    """The error that a checkpoint lacks an output."""
    on_top = ", ".join(model.anatomy.tasks) or "nothing"
    return UnsupportedError(
        f"the checkpoint has no {what}; on top of {model.anatomy.base_class} it has {on_top}",
        where=model.checkpoint.where,
        advice=f"open a checkpoint that was saved from a …{saved_from} class, or take another target: {FORMS}",
    )


def _masks(model: Model, encoded: Encoded) -> list[int]:
    mask = model.tokenizer.mask_id
    return [at for at, index in enumerate(encoded.ids) if mask is not None and index == mask]


def _best_word(model: Model, last: Float[np.ndarray, "tokens d_model"], row: int) -> Target:
    logits = model.tops.masked_lm(last[row : row + 1])[0]
    for index in np.argsort(-logits, kind="stable"):
        token = model.tokenizer.token(int(index))
        if is_word(token):
            return Target("word", token, int(index), row, chosen=True)
    raise InputError("the vocabulary has no word that could be the best", where=f"token {row}", advice="name a target")


def is_word(token: str) -> bool:
    """Return True for a token that may be a word: it has a letter or digit, and is no continuation or special token."""
    special = len(token) > 2 and (token[0], token[-1]) in (("[", "]"), ("<", ">"))
    return not special and not token.startswith("##") and any(sign.isalnum() for sign in token.lstrip(LEADS))


def _word(model: Model, masks: Sequence[int], named: Sequence[str | int]) -> Target:
    if "masked_lm" not in model.anatomy.tasks:
        raise lacks(model, "masked-LM head, nor classes that a name could mean", "ForMaskedLM")
    mask = model.tokenizer.mask_token
    if not masks:
        raise InputError(
            f"the text has no {mask}, so there is no place for the word {named[0]!r}",
            where="text",
            advice=f"write {mask} where the word is wanted, or name another target: {FORMS}",
        )
    row = named[1] if len(named) == 2 else masks[0]
    if row not in masks or not isinstance(row, int):
        raise InputError(
            f"token {row!r} is no {mask}", where="target", advice=f"the masks are at {', '.join(map(str, masks))}"
        )
    word = named[0]
    if isinstance(word, int):
        return _word_target(model, model.tokenizer.token(word), word, row)
    index = token_id(model, word, "a mask stands for one token")
    return _word_target(model, model.tokenizer.token(index), index, row)


def token_id(model: Model, word: str, why: str) -> int:
    """The id of a word that the vocabulary has as one token, at the beginning of a word where it tells these apart.

    Args:
        model: the model.
        word: the word, or a token as the vocabulary spells it.
        why: why it must be one token, for the message.

    Raises:
        InputError: the vocabulary spells it with several tokens, or with the unknown one.
    """
    for spelling in (*(lead + word for lead in LEADS), word):
        index = model.tokenizer.id(spelling)
        if index is not None:
            return index
    pieces = model.tokenizer.encode_words([word])
    tokens = [token for token, special in zip(pieces.tokens, pieces.special, strict=True) if not special]
    if len(tokens) == 1 and is_word(tokens[0]):
        return pieces.ids[pieces.tokens.index(tokens[0])]
    raise InputError(
        f"{word!r} is not in the vocabulary, which spells it {' '.join(tokens)}; {why}",
        where="target",
        advice="name a word that the vocabulary has as one token; `headscope fill` lists the best",
    )


def _word_target(model: Model, token: str, index: int, row: int) -> Target:
    words = model.anatomy.known().vocab
    if index < words:
        return Target("word", token, index, row)
    raise InputError(
        f"the tokenizer's id of {token!r} is {index}, and the model has logits for {words} words",
        where="target",
        advice="name a word that the model was trained with",
    )


def _predicted(model: Model, last: Float[np.ndarray, "tokens d_model"]) -> Target:
    return _class_target(model, int(np.argmax(model.tops.sequence(last))), chosen=True)


def _class(model: Model, named: Sequence[str | int]) -> Target:
    if "sequence" not in model.anatomy.tasks:
        raise lacks(model, "sequence classifier", "ForSequenceClassification")
    if not model.tops.reads_first_token:
        raise UnsupportedError(
            "the sequence classifier reads all tokens, and headscope follows scores that are read at one",
            where=f"{model.checkpoint.where}: classifier_pooling",
            advice="use the target ('embedding',), or another output",
        )
    return _class_target(model, label_number(model, named[0], "class"))


def _class_target(model: Model, index: int, *, chosen: bool = False) -> Target:
    only = _outputs(model) == 1
    return Target("score" if only else "class", label_name(model, index), index, 0, chosen=chosen)


def _token_label(model: Model, encoded: Encoded, named: Sequence[str | int]) -> Target:
    if "token" not in model.anatomy.tasks:
        raise lacks(model, "token classifier", "ForTokenClassification")
    row, label = named
    if not isinstance(row, int) or not 0 <= row < len(encoded):
        raise InputError(
            f"there is no token {row!r}: the text has {len(encoded)} tokens",
            where="target",
            advice=f"tokens count from 0, so the last one is {len(encoded) - 1}",
        )
    index = label_number(model, label, "label")
    return Target("token", label_name(model, index), index, row)


def _outputs(model: Model) -> int:
    """The number of the classifier's logits."""
    anatomy = model.anatomy
    role = "classifier.weight" if anatomy.has("classifier.weight") else "sequence.out.weight"
    return anatomy.parameter(role).shape[0]


def label_name(model: Model, index: int) -> str:
    """The classifier's label of a logit; its number if it has no name."""
    labels = model.tops.labels()
    return labels[index] if labels is not None and index < len(labels) else str(index)


def label_number(model: Model, label: str | int, noun: str) -> int:
    """The logit of a label of the classifier.

    Raises:
        InputError: there is no such label, or several.
    """
    count, names = _outputs(model), model.tops.labels() or ()
    if isinstance(label, int) and 0 <= label < count:
        return label
    matches = [at for at, name in enumerate(names) if name == label] if isinstance(label, str) else []
    if not matches and isinstance(label, str):
        matches = [at for at, name in enumerate(names) if name.casefold() == label.casefold()]
    if len(matches) == 1:
        return matches[0]
    listed = ", ".join(names[:20]) or "without names"
    raise InputError(
        f"there is no {noun} {label!r}" if not matches else f"{len(matches)} {noun}s are called {label!r}",
        where="target",
        advice=f"the model has {count}, numbered from 0: {listed}{', …' if len(names) > 20 else ''}",
    )


def _vector(model: Model, last: Float[np.ndarray, "tokens d_model"], *, chosen: bool = False) -> Target:
    vector, length = _pooled(model, last)
    return Target(
        "embedding", "the text's vector", None, _row(model), direction=vector / length, length=length, chosen=chosen
    )


def _similar(model: Model, last: Float[np.ndarray, "tokens d_model"], text: str) -> Target:
    other, size = _pooled(model, last_states(model, [encoded_text(model, text, max_length=None)])[0])
    _, length = _pooled(model, last)
    return Target("similarity", text, None, _row(model), direction=other / size, length=length)


def _row(model: Model) -> int | None:
    return 0 if model.pooling.mode == "cls" else None


def _pooled(model: Model, last: Float[np.ndarray, "tokens d_model"]) -> tuple[Float[np.ndarray, " d_model"], float]:
    vector = pooled(last, model.pooling)
    length = float(np.linalg.norm(vector))
    if length == 0 or not np.isfinite(length):
        raise CheckpointError(
            "the text's vector is 0 or not made of numbers, so nothing can be measured along it",
            where=model.checkpoint.where,
            advice="name another target, or use a checkpoint that was saved before training broke down",
        )
    return vector, length

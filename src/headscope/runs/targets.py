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
| ("embedding_distance",) | how far the vector moved: 1 - its cosine with what it is before anything is changed |
| ("similarity", "a second text") | the cosine with that text's vector |
| ("hat", "mat") | the first less the second: two words at the same mask, or two classes |
| (a, b) | the same for any two of the names above: `(("similarity", "one text"), ("similarity", "another"))` |

The best word is the token with the highest logit that has a letter or a digit and doesn't continue a word (`##ing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.anatomy import check_index
from headscope.attention.activations import log_softmax, softmax
from headscope.encoder.task_heads import cosines_with, pooled
from headscope.errors import CheckpointError, InputError, UnsupportedError, not_a_number
from headscope.results.effect_records import UNITS, Target, Wanted
from headscope.results.tokens import SPACES, bare
from headscope.runs.texts import last_states, prepared

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.model import Model
    from headscope.results.tokens import TokenAxis

    Tokens = Float[np.ndarray, "tokens d_model"]

FORMS = "help('headscope.runs.targets') lists what a target may be"
KINDS = tuple(UNITS)
"""First parts of a tuple that names one target."""
PLAIN = [[str, str], [int, int]]
"""Types of a target's and its alternative's names where both are a word, a class or its number."""


@dataclass(frozen=True, eq=False)
class Readings:
    """A target's number in several runs, or several targets' numbers.

    Attributes:
        values: (runs,) the number, or (runs, texts).
        aside: the probability or cosine that goes with it; None where a target has none.
    """

    values: Float[np.ndarray, "*runs"]
    aside: Float[np.ndarray, "*runs"] | None


def read(model: Model, target: Target, hidden: Float[np.ndarray, "runs rows d_model"]) -> Readings:
    """A target's number from last hidden states of which only the target's rows are there.

    Args:
        model: the model.
        target: the target.
        hidden: (runs, rows, d_model), the rows at `target.places`.
    """
    if target.against is not None:
        return Readings(read(model, target.alone, hidden).values - read(model, target.against, hidden).values, None)
    if target.kind == "loss":
        tokens = np.array([token for _, token in target.masked])
        chances = (log_softmax(model.tops.masked_lm(rows))[np.arange(len(tokens)), tokens] for rows in hidden)  # fp64
        return Readings(np.array([-chance.mean() for chance in chances]), None)
    if target.direction is not None:
        vectors = pooled(hidden, model.pooling, target.prompt if target.row is None else 0)
        cosines = cosines_with(target.direction, vectors)
        if target.kind == "embedding":
            return Readings(vectors @ target.direction / target.length, cosines)
        return Readings(cosines if target.kind == "similarity" else 1 - cosines, None)
    assert target.index is not None
    logits = logits_of(model, target, hidden)
    shares = softmax(logits) if target.kind == "word" else model.tops.probabilities(logits)
    return Readings(logits[:, target.index].astype(np.float64), None if shares is None else shares[:, target.index])


def logits_of(
    model: Model, target: Target, hidden: Float[np.ndarray, "runs rows d_model"]
) -> Float[np.ndarray, "runs n"]:
    """The logits among which a target's is one, from the rows that it reads."""
    if target.kind == "word":
        return model.tops.masked_lm(hidden[:, 0])
    if target.kind == "token":
        return model.tops.token(hidden[:, 0])
    return np.stack([model.tops.sequence(rows) for rows in hidden])


def is_pair(wanted: tuple[object, ...]) -> bool:
    """Return True for a target and its alternative."""
    kinds = [type(name) for name in wanted]
    full = tuple in kinds or Target in kinds
    return len(wanted) == 2 and wanted[0] not in KINDS and (full or kinds in PLAIN)


def choose(model: Model, encoded: TokenAxis, last: Tokens, wanted: Wanted) -> Target:
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
        raise not_a_number("the last hidden state is not made of numbers", model.checkpoint.where)
    if isinstance(wanted, Target):
        return _chosen_before(model, encoded, wanted)
    wanted = _plain(wanted)
    mask, tasks = model.tokenizer.mask_id, model.anatomy.tasks
    masks = [at for at, index in enumerate(encoded.ids) if mask is not None and index == mask]
    if wanted is None:
        if masks and "masked_lm" in tasks:
            return _best_word(model, last, masks[0])
        return (
            _class_target(model, int(np.argmax(model.tops.sequence(last))), chosen=True)
            if "sequence" in tasks
            else vector_target(model, last, "embedding", encoded.prompt, chosen=True)
        )
    if isinstance(wanted, (str, int)) and not isinstance(wanted, bool):
        fills = masks and "masked_lm" in tasks
        return _class(model, (wanted,)) if "sequence" in tasks and not fills else _word(model, masks, (wanted,))
    if isinstance(wanted, tuple) and is_pair(wanted):
        return _against(*(choose(model, encoded, last, name) for name in wanted))
    if isinstance(wanted, tuple) and wanted and not any(isinstance(part, bool) for part in wanted):
        kind, *rest = wanted
        if kind == "word" and len(rest) in (1, 2):
            return _word(model, masks, rest)
        if kind == "class" and len(rest) == 1:
            return _class(model, rest)
        if kind == "token" and len(rest) == 2:
            return _token_label(model, encoded, rest)
        if kind in ("embedding", "embedding_distance") and not rest:
            return vector_target(model, last, kind, encoded.prompt)
        if kind == "similarity" and len(rest) == 1 and isinstance(rest[0], str):
            return vector_target(model, last, kind, encoded.prompt, text=rest[0])
    raise InputError(f"{wanted!r:.60} names no target", where="target", advice=FORMS)


def _chosen_before(model: Model, encoded: TokenAxis, target: Target) -> Target:
    """A target that was chosen for some model and text, if it means the same for this model and text.

    Raises:
        InputError: it reads a token that the text lacks, another word or class, or vectors of another width.
        UnsupportedError: the model lacks the output.
    """
    problem, here, furthest = "", target, max(target.places or (0,))
    index, row = target.index, target.row
    if furthest >= len(encoded):
        problem = f"the target reads token {furthest}, and the text has {len(encoded)} tokens"
    elif target.direction is not None:
        width = model.pooling.width or model.anatomy.known().d_model
        if len(target.direction) != width:
            problem = f"the target is a direction of {len(target.direction)} numbers, and the vectors have {width}"
    elif target.kind == "word" and index is not None and row is not None:
        here = _word(model, [row], (index, row))
    elif target.kind == "token" and index is not None and row is not None:
        here = _token_label(model, encoded, (row, index))
    elif index is not None:
        here = _class(model, (index,))
    if (here.kind, here.label) != (target.kind, target.label):
        problem = f"the target is {target.alone}, which here is {here.alone}"
    if problem:
        raise InputError(problem, where="target", advice="name the target anew for this model and text")
    if target.against is not None:
        _chosen_before(model, encoded, target.against)
    return target


def _plain(wanted: Any) -> Any:
    """A target's name with Python's numbers and texts in place of NumPy's, as of argmax."""
    if isinstance(wanted, tuple):
        return tuple(map(_plain, wanted))
    return wanted.item() if isinstance(wanted, np.generic) else wanted


def _against(target: Target, other: Target) -> Target:
    """A target less an alternative.

    Raises:
        InputError: the two are the same, or can't be subtracted.
    """
    problem = ""
    if target.against is not None or other.against is not None:
        problem = "a difference can't have an alternative"
    elif (target.unit, target.places) != (other.unit, other.places):
        problem = f"{target} and {other} are not read at the same token in the same unit"
    elif (target.kind, target.label, target.index) == (other.kind, other.label, other.index):
        problem = f"{target} and its alternative are the same"
    if problem:
        raise InputError(problem, where="target", advice="name two words at one mask, two classes, or two texts")
    return replace(target, against=other, chosen=False)


def lacks(
    model: Model, what: str, saved_from: str, *, instead: str = f"or take another target: {FORMS}"
) -> UnsupportedError:
    """The error that a checkpoint lacks an output, with what else to do."""
    others = [f"{row.name}, whose task config.json's architectures don't tell" for row in model.extra]
    on_top = ", ".join(model.anatomy.tasks or others[:1]) or "nothing"
    return UnsupportedError(
        f"the checkpoint has no {what}; on top of {model.anatomy.base_class} it has {on_top}",
        where=model.checkpoint.where,
        advice=f"open a checkpoint that was saved from a …{saved_from} class{instead and ', '}{instead}",
    )


def _best_word(model: Model, last: Tokens, row: int) -> Target:
    logits = model.tops.masked_lm(last[row : row + 1])[0]
    for index in np.argsort(-logits, kind="stable"):
        token = model.tokenizer.token(int(index))
        if is_word(token):
            return Target("word", token, int(index), row, chosen=True)
    raise InputError("the vocabulary has no word that could be the best", where=f"token {row}", advice="name a target")


def is_word(token: str) -> bool:
    """Return True for a token that may be a word: it has a letter or digit, and isn't special or a continuation."""
    special = len(token) > 2 and (token[0], token[-1]) in (("[", "]"), ("<", ">"))
    return not special and not token.startswith("##") and any(sign.isalnum() for sign in bare(token))


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
            f"token {row!r} is not {mask}", where="target", advice=f"the masks are at {', '.join(map(str, masks))}"
        )
    word, words = named[0], model.anatomy.known().vocab
    if not isinstance(word, int) and (not isinstance(word, str) or not word.strip()):
        raise InputError(f"{word!r:.60} names no word", where="target", advice=FORMS)
    index = word if isinstance(word, int) else token_id(model, word, "a mask stands for one token")
    token = model.tokenizer.token(index)
    if index >= words:
        raise InputError(
            f"the tokenizer's id of {token!r} is {index}, and the model has logits for {words} words",
            where="target",
            advice="name a word that the model was trained with",
        )
    return Target("word", token, index, row)


def token_id(model: Model, word: str, why: str) -> int:
    """The id of a word that the vocabulary has as one token, at the beginning of a word where it tells these apart.

    Args:
        model: the model.
        word: the word, or a token as the vocabulary spells it.
        why: why it must be one token, for the message.

    Raises:
        InputError: the vocabulary spells it with several tokens, or with the unknown one.
    """
    for spelling in (*(lead + word for lead in SPACES), word):
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
        advice="name a word that the vocabulary has as one token; `headscope predict` lists the best",
    )


def _class(model: Model, named: Sequence[str | int]) -> Target:
    if "sequence" not in model.anatomy.tasks:
        raise lacks(model, "sequence classifier", "ForSequenceClassification")
    return _class_target(model, label_number(model, named[0], "class"))


def _class_target(model: Model, index: int, *, chosen: bool = False) -> Target:
    only = class_count(model) == 1
    row = 0 if model.tops.reads_first_token else None
    return Target("score" if only else "class", label_name(model, index), index, row, chosen=chosen)


def _token_label(model: Model, encoded: TokenAxis, named: Sequence[Any]) -> Target:
    if "token" not in model.anatomy.tasks:
        raise lacks(model, "token classifier", "ForTokenClassification")
    row, label = check_index(named[0], len(encoded), "token", "the text"), named[1]
    index = label_number(model, label, "label")
    return Target("token", label_name(model, index), index, row)


def class_count(model: Model) -> int:
    """The number of the classifier's logits."""
    anatomy = model.anatomy
    role = "classifier.weight" if anatomy.has("classifier.weight") else "sequence.out.weight"
    return anatomy.parameter(role).shape[0]


def label_name(model: Model, index: int) -> str:
    """The classifier's label of a logit; its number if it has no name."""
    labels = model.tops.labels()
    return labels[index] if labels is not None and index < len(labels) else str(index)


def label_number(model: Model, label: str | int, noun: str) -> int:
    """The logit of a label of the classifier; without names, labels are LABEL_0, LABEL_1, … as in transformers.

    Raises:
        InputError: there is no such label, or several.
    """
    count = class_count(model)
    names = model.tops.labels() or tuple(f"LABEL_{index}" for index in range(count))
    if isinstance(label, int) and 0 <= label < count:
        return label
    matches = [at for at, name in enumerate(names) if name == label] if isinstance(label, str) else []
    if not matches and isinstance(label, str):
        matches = [at for at, name in enumerate(names) if name.casefold() == label.casefold()]
    if len(matches) == 1:
        return matches[0]
    listed = ", ".join(names[:20])
    raise InputError(
        f"there is no {noun} {label!r}" if not matches else f"{len(matches)} {noun}s are called {label!r}",
        where="target",
        advice=f"the model has {count}, numbered from 0: {listed}{', …' if len(names) > 20 else ''}",
    )


def vector_target(
    model: Model, last: Tokens, kind: str, prompt: int = 0, *, text: str | None = None, chosen: bool = False
) -> Target:
    """`embedding` or `embedding_distance` of a text with this last hidden state, or its `similarity` to another `text`.

    `prompt` is its `TokenAxis`'s.
    """
    vector, length = _pooled(model, last, prompt)
    label, direction = "the text's vector", vector / length
    if text is not None:
        encoded = prepared(model, text, rule=model.pooling).encoded
        other, size = _pooled(model, last_states(model, [encoded])[0], encoded.prompt)
        label, direction = text, other / size
    row = prompt if model.pooling.mode == "cls" else None
    return Target(kind, label, None, row, direction=direction, length=length, chosen=chosen, prompt=prompt)


def _pooled(model: Model, last: Tokens, prompt: int) -> tuple[Float[np.ndarray, " d_model"], float]:
    vector = pooled(last, model.pooling, prompt)
    length = float(np.linalg.norm(vector))
    if length == 0 or not np.isfinite(length):
        raise CheckpointError(
            "the text's vector is 0 or not made of numbers, so nothing can be measured along it",
            where=model.checkpoint.where,
            advice="name another target, or use a checkpoint that was saved before training broke down",
        )
    return vector, length

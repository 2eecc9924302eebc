"""The tokenizer: lower-case word pieces of the teacher's vocabulary, in the form transformers reads."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = range(5)
MAX_LENGTH = 256
RARE = 20
"""A character that occurs fewer times than this need not have a piece of its own."""


def choose_tokenizer(sentences: Sequence[str], teacher: Tokenizer, pieces: int, rounds: int = 4) -> Tokenizer:
    """Choose the teacher's `pieces` most useful word pieces for a text. The special tokens come first.

    A word whose piece is not chosen is spelled with smaller pieces, which then occur more often. So the choice is made
    again from the counts under the last one, `rounds` times. All characters that are not rare stay.
    """
    counts = count_pieces(sentences, teacher)
    letters: Counter[str] = Counter()
    for piece, count in counts.items():
        start = "##" if piece.startswith("##") else ""
        for at, letter in enumerate(piece.removeprefix("##")):
            letters[letter if at == 0 and not start else f"##{letter}"] += count
    known = teacher.get_vocab()
    kept = [letter for letter, count in letters.most_common() if count >= RARE and letter in known]
    chosen = kept
    for _ in range(rounds):
        rest = [piece for piece, _ in counts.most_common() if piece not in kept and piece not in SPECIAL_TOKENS]
        chosen = [*kept, *rest[: pieces - len(SPECIAL_TOKENS) - len(kept)]]
        counts |= count_pieces(sentences, word_pieces(chosen))  # pieces that are out keep what they were worth
    return word_pieces(sorted(chosen, key=lambda piece: (-counts[piece], piece)))


def count_pieces(sentences: Sequence[str], tokenizer: Tokenizer) -> Counter[str]:
    """Count each piece in a text."""
    counts: Counter[str] = Counter()
    for encoding in tokenizer.encode_batch(list(sentences), add_special_tokens=False):
        counts.update(encoding.tokens)
    return counts


def word_pieces(pieces: Sequence[str]) -> Tokenizer:
    """A WordPiece tokenizer with the special tokens as ids 0 to 4 and then `pieces`."""
    vocabulary = {piece: at for at, piece in enumerate((*SPECIAL_TOKENS, *pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and the tokenizer_config.json that AutoTokenizer asks for."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "model_max_length": MAX_LENGTH,
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")

"""Small checkpoints' tokenizers, of every kind, written into a folder; and the texts they are tried on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headscope.checkpoint import raw_files

BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
RESIDUES = [
    "<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"
]  # fmt: skip
"""The vocabulary of ESM-2."""

TEXTS = [
    "The cat sat on the mat.",
    "Don't stop: it's 3.14, isn't it?",
    "unaffable UNAFFABLE Unaffable",
    "  two  spaces\tand a tab\nand a line  ",
    "Größe, café, naïve, Ångström, İstanbul, ΣΊΣΥΦΟΣ",
    "cafe\u0301 a\u0308 e\u0301\u0302",
    *("日本語のテキスト、漢字とかな。", "Кошка сидит на ковре.", "القط جلس على السجادة.", "שלום עולם"),
    *("बिल्ली चटाई पर बैठी है।", "แมวนั่งบนเสื่อ", "고양이가 매트 위에 앉았다."),
    *("😀", "👩‍👩‍👧 family 🇫🇷 flag", "a\x00b\x07c\u200bd\u00ade\ufeff", "x" * 150 + " y"),
    "[MASK] is a mask, [CLS] and [SEP] too, <mask> and <s> as well</s>",
    "the [MASK]cat<mask> sat",
    "http://example.org/?q=a&b=%20#top _under_ -dash-- \\back `tick` $5 ^",
    *("\u202eright to left override", "²½ ﬁne ①", "\U00020000 𝒳 𐍈"),
]

PAIRS = [
    ("The cat sat.", "On the mat."),
    ("A much longer first text, with many more pieces than the other.", "Short."),
    ("Short.", "A much longer second text, with many more pieces than the other."),
    ("one two three four", "five six seven eight"),
]


@dataclass
class Folder:
    """The part of a Checkpoint that load_tokenizer requires, over a folder; `asked` lists the requested files."""

    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    name: str = "a-checkpoint"
    asked: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        return str(self.path)

    def file(self, filename: str) -> Path | None:
        self.asked.append(filename)
        return raw_files.Folder(self.path).path(filename)


def write_json(folder: Path, filename: str, value: Any) -> None:
    (folder / filename).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def folder_with(path: Path, config: Mapping[str, Any], **files: Any) -> Folder:
    """A folder with config.json and files: vocab_txt=[...], tokenizer_config={...} and the like, by their stems."""
    path.mkdir(parents=True, exist_ok=True)
    write_json(path, "config.json", dict(config))
    for stem, value in files.items():
        if stem.endswith("_txt"):
            text = value if isinstance(value, str) else "\n".join(value) + "\n"
            (path / f"{stem.removesuffix('_txt')}.txt").write_bytes(text.encode("utf-8"))
        else:
            write_json(path, f"{stem}.json", value)
    return Folder(path, config)


def wordpiece_vocabulary(*, lower: bool) -> list[str]:
    """A vocabulary learnt from TEXTS by WordPiece's own trainer."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # The last texts are left out, so that there is something unknown.
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=BERT_SPECIALS, show_progress=False)
    tokenizer.train_from_iterator([text for text in TEXTS[:-4] if "[MASK]" not in text] * 2, trainer)
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def byte_level_files() -> tuple[dict[str, int], str]:
    """vocab.json and merges.txt learnt from TEXTS by byte-level BPE's own trainer."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    given = {"special_tokens": ROBERTA_SPECIALS, "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False, **given)
    tokenizer.train_from_iterator([text for text in TEXTS if "<mask>" not in text] * 2, trainer)
    state = json.loads(tokenizer.to_str())
    merges = "".join(" ".join(pair) + "\n" for pair in state["model"]["merges"])
    return state["model"]["vocab"], "#version: 0.2\n" + merges


def bert_folder(path: Path, *, lower: bool, model_type: str = "bert", **options: Any) -> Folder:
    config = {"model_type": model_type} | ({} if model_type == "distilbert" else {"type_vocab_size": 2})
    settings = {"do_lower_case": lower, **options}
    return folder_with(path, config, vocab_txt=wordpiece_vocabulary(lower=lower), tokenizer_config=settings)


def roberta_folder(path: Path, **options: Any) -> Folder:
    vocabulary, merges = byte_level_files()
    # transformers 5 forgets that RoBERTa's <mask> takes the space before it, unless a file says so.
    mask = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False}
    settings = {"tokenizer_class": "RobertaTokenizer", "mask_token": mask, **options}
    config = {"model_type": "roberta", "type_vocab_size": 1}
    return folder_with(path, config, vocab=vocabulary, merges_txt=merges, tokenizer_config=settings)


def wordpiece_tokenizer(vocabulary: Mapping[str, int]) -> Any:
    """The library's tokenizer of these pieces, with BERT's special tokens and segments."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def wordpiece_json(vocabulary: Mapping[str, int], **parts: Any) -> dict[str, Any]:
    """A tokenizer.json of these pieces, and these parts."""
    model = {"type": "WordPiece", "vocab": vocabulary, "unk_token": "[UNK]"}
    model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    return {"version": "1.0", "added_tokens": [], "model": model, **parts}


def unigram_json(*, prefix: str = "<s>") -> dict[str, Any]:
    """A tokenizer.json like XLM-RoBERTa's: Unigram, Metaspace, <s> A </s></s> B </s>, and a truncation at 512."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=ROBERTA_SPECIALS[:4], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator([text for text in TEXTS if "<mask>" not in text] * 2, trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{prefix} $A </s>",
        pair=f"{prefix} $A </s> </s> $B </s>",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (prefix, "</s>")],
    )
    tokenizer.enable_truncation(max_length=8)
    tokenizer.enable_padding(length=8, pad_id=1, pad_token="<pad>")
    return json.loads(tokenizer.to_str())

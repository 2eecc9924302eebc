"""Tables of tokenizer classes: those that a checkpoint's files describe completely, and those that need more."""

from __future__ import annotations

from headscope.checkpoint.json_text import brief
from headscope.checkpoint.tokenizer.settings import AddedPiece, Settings

WORDPIECE = frozenset(
    {
        "BertTokenizer",
        "ConvBertTokenizer",
        "DistilBertTokenizer",
        "ElectraTokenizer",
        "LayoutLMTokenizer",
        "LxmertTokenizer",
        "MobileBertTokenizer",
        "RetriBertTokenizer",
        "SqueezeBertTokenizer",
    }
)
"""BERT's basic tokenizer and WordPiece over vocab.txt, [CLS] A [SEP] B [SEP]."""

SENTENCEPIECE = frozenset({"AlbertTokenizer", "DebertaV2Tokenizer"})
"""A SentencePiece unigram model, [CLS] A [SEP] B [SEP]."""

RESIDUES = "EsmTokenizer"
"""Every token of vocab.txt is matched wherever it occurs, <cls> A <eos> B <eos>."""

BYTE_LEVEL = frozenset({"BartTokenizer", "LongformerTokenizer", "RobertaTokenizer"})
"""GPT-2's byte-level BPE over vocab.json and merges.txt, <s> A </s></s> B </s>."""

JAPANESE = "BertJapaneseTokenizer"

CLASS_OF_MODEL = {
    "albert": "AlbertTokenizer",
    "bert": "BertTokenizer",
    "camembert": "CamembertTokenizer",
    "convbert": "ConvBertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "distilbert": "DistilBertTokenizer",
    "electra": "ElectraTokenizer",
    "ernie": "BertTokenizer",
    "esm": "EsmTokenizer",
    "layoutlm": "LayoutLMTokenizer",
    "longformer": "LongformerTokenizer",
    "lxmert": "LxmertTokenizer",
    "megatron-bert": "BertTokenizer",
    "mobilebert": "MobileBertTokenizer",
    "mpnet": "MPNetTokenizer",
    "nomic_bert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "roformer": "RoFormerTokenizer",
    "roberta-prelayernorm": "RobertaTokenizer",
    "squeezebert": "SqueezeBertTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
"""model_type -> the class that transformers uses if no file names one."""

WITHOUT_SEGMENTS = frozenset(
    {
        "BartTokenizer",
        "CamembertTokenizer",
        "DistilBertTokenizer",
        "EsmTokenizer",
        "LongformerTokenizer",
        "MPNetTokenizer",
        "RobertaTokenizer",
        "XLMRobertaTokenizer",
    }
)
"""Tokenizers that compute the segments of a pair without passing them to the model."""

NEEDS = {
    "BarthezTokenizer": "a sentencepiece model",
    "BertweetTokenizer": "a tweet normalizer and its own BPE",
    "BigBirdTokenizer": "a sentencepiece model",
    "CamembertTokenizer": "a sentencepiece model",
    "FlaubertTokenizer": "a Moses tokenizer and its own BPE",
    "HerbertTokenizer": "its own BPE, which marks the end of a word",
    "MPNetTokenizer": "its own template",
    "PhobertTokenizer": "a Vietnamese word segmenter and its own BPE",
    "RemBertTokenizer": "a sentencepiece model",
    "RoFormerTokenizer": "a Chinese word segmenter",
    "XLMRobertaTokenizer": "a sentencepiece model",
    "XLMTokenizer": "a Moses tokenizer and its own BPE",
    "XLNetTokenizer": "a sentencepiece model",
}
"""Tokenizer class -> what it needs beyond the files that headscope reads."""

SENTENCEPIECE_FILES = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")

BY_IDS = "pass ids= (token ids)"
CONVERT = (
    "convert it with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER), with the packages that "
    "this tokenizer requires, writes a tokenizer.json if that format can express it"
)


def usual_specials(class_name: str | None) -> dict[str, AddedPiece]:
    """Return the default special tokens of a class."""
    if class_name in WORDPIECE:
        return {f"{name}_token": AddedPiece(f"[{name.upper()}]") for name in ("unk", "sep", "pad", "cls", "mask")}
    if class_name == RESIDUES:
        return {f"{name}_token": AddedPiece(f"<{name}>") for name in ("cls", "pad", "eos", "unk", "mask")}
    if class_name in BYTE_LEVEL or class_name in ("CamembertTokenizer", "XLMRobertaTokenizer"):
        spelled = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>"}
        usual = {f"{name}_token": AddedPiece(token) for name, token in spelled.items()}
        # These models were trained with <mask> instead of a token that includes the space before it.
        return {**usual, "mask_token": AddedPiece("<mask>", lstrip=True)}
    return {}


def effective_class(settings: Settings) -> tuple[str | None, str]:
    """Return the tokenizer's class, None if neither a file nor the model's type determines it, and its origin."""
    if settings.class_name is not None:
        return settings.class_name, f"named in {settings.class_from}"
    model_type = settings.model.get("model_type")
    if isinstance(model_type, str) and model_type in CLASS_OF_MODEL:
        return CLASS_OF_MODEL[model_type], f"the tokenizer of model_type {model_type}"
    return None, f"no file names it, and model_type is {brief(model_type)}"


def reads_segments(settings: Settings, class_name: str | None) -> bool:
    """Return True if the model uses the segments of its tokenizer; otherwise all segments are 0.

    transformers passes token_type_ids to the model if the tokenizer's model_input_names contains them.
    """
    if settings.model.get("type_vocab_size") == 1:
        return False
    if settings.model.get("type_vocab_size") is None:
        return True
    names = settings.options.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    return class_name not in WITHOUT_SEGMENTS

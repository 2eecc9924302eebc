"""Which tokenizer classes the files beside a checkpoint describe completely, and which need more than these files."""

from __future__ import annotations

from headscope.checkpoint.json_text import brief
from headscope.checkpoint.tokenizer.settings import AddedPiece, Settings

# BERT's basic tokenizer and WordPiece over vocab.txt, [CLS] A [SEP] B [SEP].
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

# GPT-2's byte-level BPE over vocab.json and merges.txt, <s> A </s></s> B </s>.
BYTE_LEVEL = frozenset({"BartTokenizer", "LongformerTokenizer", "RobertaTokenizer"})

JAPANESE = "BertJapaneseTokenizer"

# The class that transformers takes where no file names one.
CLASS_OF_MODEL = {
    "bert": "BertTokenizer",
    "camembert": "CamembertTokenizer",
    "convbert": "ConvBertTokenizer",
    "distilbert": "DistilBertTokenizer",
    "electra": "ElectraTokenizer",
    "layoutlm": "LayoutLMTokenizer",
    "longformer": "LongformerTokenizer",
    "lxmert": "LxmertTokenizer",
    "mobilebert": "MobileBertTokenizer",
    "roberta": "RobertaTokenizer",
    "roberta-prelayernorm": "RobertaTokenizer",
    "squeezebert": "SqueezeBertTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}

# Models whose tokenizer tells a pair's two texts apart, but which are never given the segments.
WITHOUT_SEGMENTS = frozenset(
    {
        "BartTokenizer",
        "CamembertTokenizer",
        "DistilBertTokenizer",
        "LongformerTokenizer",
        "MPNetTokenizer",
        "RobertaTokenizer",
        "XLMRobertaTokenizer",
    }
)

NEEDS = {
    "AlbertTokenizer": "a sentencepiece model",
    "BarthezTokenizer": "a sentencepiece model",
    "BertweetTokenizer": "a tweet normalizer and its own BPE",
    "BigBirdTokenizer": "a sentencepiece model",
    "CamembertTokenizer": "a sentencepiece model",
    "DebertaV2Tokenizer": "a sentencepiece model",
    "FlaubertTokenizer": "a Moses tokenizer and its own BPE",
    "HerbertTokenizer": "its own BPE, which marks the end of a word",
    "MPNetTokenizer": "a template of its own",
    "PhobertTokenizer": "words segmented for Vietnamese and its own BPE",
    "RemBertTokenizer": "a sentencepiece model",
    "XLMRobertaTokenizer": "a sentencepiece model",
    "XLMTokenizer": "a Moses tokenizer and its own BPE",
    "XLNetTokenizer": "a sentencepiece model",
}

SENTENCEPIECE_FILES = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")

BY_IDS = "pass ids= (ready-made ids)"
CONVERT = (
    "convert it: AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER) in transformers, with the packages that "
    "this tokenizer asks for, writes tokenizer.json where such a file can express it"
)


def usual_specials(class_name: str | None) -> dict[str, AddedPiece]:
    """The special tokens that a class has where no file names others."""
    if class_name in WORDPIECE:
        return {f"{name}_token": AddedPiece(f"[{name.upper()}]") for name in ("unk", "sep", "pad", "cls", "mask")}
    if class_name in BYTE_LEVEL or class_name in ("CamembertTokenizer", "XLMRobertaTokenizer"):
        spelled = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>"}
        usual = {f"{name}_token": AddedPiece(token) for name, token in spelled.items()}
        # These models were trained with <mask> in the place of a piece that carries the space before it.
        return {**usual, "mask_token": AddedPiece("<mask>", lstrip=True)}
    return {}


def effective_class(settings: Settings) -> tuple[str | None, str]:
    """The tokenizer's class and how it is known; None where neither a file nor the model's type tells."""
    if settings.class_name is not None:
        return settings.class_name, f"named in {settings.class_from}"
    model_type = settings.model.get("model_type")
    if isinstance(model_type, str) and model_type in CLASS_OF_MODEL:
        return CLASS_OF_MODEL[model_type], f"the tokenizer of model_type {model_type}"
    return None, f"no file names it, and model_type is {brief(model_type)}"


def reads_segments(settings: Settings, class_name: str | None) -> bool:
    """Whether the model is given the segments that its tokenizer computes (else all are 0).

    transformers passes token_type_ids on where the tokenizer's model_input_names says so.
    """
    if settings.model.get("type_vocab_size") == 1:
        return False
    if settings.model.get("type_vocab_size") is None:
        return True
    names = settings.options.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    return class_name not in WITHOUT_SEGMENTS

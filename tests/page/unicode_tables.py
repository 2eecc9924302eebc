"""The characters that the `tokenizers` library treats specially, asked of the library, for web/src/encoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tokenizers import normalizers, pre_tokenizers

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


ASSIGNED = (*range(0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE0200))
"""All characters but those of the planes for private use."""
PRIVATE = ((0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))
"""The planes for private use, which are alike throughout."""


def _normalizer(**options: bool) -> normalizers.BertNormalizer:
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return normalizers.BertNormalizer(**{**off, **options})


def tables() -> dict[str, tuple[str, list[int]]]:
    """Name of each table -> what it means, and its code points."""
    clean, spaced = _normalizer(clean_text=True), _normalizer(handle_chinese_chars=True)
    stripped, decomposed = _normalizer(strip_accents=True), normalizers.NFD()
    words = pre_tokenizers.BertPreTokenizer()
    found: dict[str, list[int]] = {name: [] for name in MEANINGS}
    for code in ASSIGNED:
        sign = chr(code)
        cleaned = clean.normalize_str(sign)
        split = [word for word, _ in words.pre_tokenize_str(f"a{sign}b")]
        found["DROPPED"] += [code] * (cleaned == "")
        found["SPACES"] += [code] * (cleaned == " ")
        found["SEPARATORS"] += [code] * (split == ["a", "b"])
        found["PUNCTUATION"] += [code] * (split == ["a", sign, "b"])
        found["IDEOGRAPHS"] += [code] * (spaced.normalize_str(sign) != sign)
        found["MARKS"] += [code] * (stripped.normalize_str(sign) == "")
        found["DECOMPOSED"] += [code] * (decomposed.normalize_str(sign) != sign)
    for first, last in PRIVATE:
        if {clean.normalize_str(chr(code)) for code in (first, last)} == {""}:
            found["DROPPED"] += range(first, last + 1)
    return {name: (MEANINGS[name], codes) for name, codes in found.items()}


MEANINGS = {
    "DROPPED": "dropped where a text is cleaned",
    "SPACES": "turned into a space where a text is cleaned",
    "SEPARATORS": "between words",
    "PUNCTUATION": "words of their own",
    "IDEOGRAPHS": "put between spaces",
    "MARKS": "dropped where accents are stripped, after canonical decomposition",
    "DECOMPOSED": "of which there is a canonical decomposition",
}


def typescript() -> str:
    """The module web/src/encoder/unicode.ts."""
    lines = [
        "// Characters that BERT's tokenizer treats specially, asked of the `tokenizers` library:",
        "// `pytest tests/page/test_wordpiece.py --refresh-screens` writes this file. Ranges: from the end of the one",
        '// before to the first, and how many, in base 36: "gap.count".',
    ]
    for name, (meaning, codes) in tables().items():
        lines += [f"/** Characters {meaning}. */", f'export const {name} = "{" ".join(_ranges(codes))}";']
    return "\n".join(lines) + "\n"


def _ranges(codes: Iterable[int]) -> Iterator[str]:
    end, first, last = 0, None, -1
    for code in codes:
        if first is not None and code != last + 1:
            yield f"{_base36(first - end)}.{_base36(last + 1 - first)}"
            end, first = last + 1, None
        first, last = code if first is None else first, code
    if first is not None:
        yield f"{_base36(first - end)}.{_base36(last + 1 - first)}"


def _base36(number: int) -> str:
    return (_base36(number // 36) if number >= 36 else "") + DIGITS[number % 36]

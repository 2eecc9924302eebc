"""Every reader of files that headscope has, for the fuzz run: what it reads, how that is damaged, what must hold.

To add a reader, add an entry to READERS: files that it reads as they are, ways to damage them, and a function that
reads one and uses what came of it. It raises what it raises; errors of ours are refusals, all others are findings.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import headscope as hs
from attacks import hostile
from attacks import mutations as ways
from attacks.hostile import GOOD, LEGACY_DATA, archive, legacy, shards, state, storage, tensor
from finished_survey import finished
from headscope.atlas.result import Survey
from headscope.atlas.survey_data import FIELDS
from headscope.attention.terms import Terms
from headscope.checkpoint.entry import DTYPES, TensorEntry, read_tensor
from headscope.checkpoint.open_checkpoint import read_weights
from headscope.checkpoint.pickle_header import read_pickle_header
from headscope.checkpoint.raw_files import Folder, check_span
from headscope.checkpoint.safetensors_header import read_safetensors_header
from headscope.checkpoint.tokenizer import load_tokenizer
from headscope.errors import HeadscopeError, UnsupportedError
from headscope.page.trace import page_file
from headscope.screens.anatomy_sheets import shapes_sheet, summary_sheet
from headscope.screens.config_sheets import config_sheet, tree_sheet
from headscope.screens.overview_sheets import overview_sheet
from headscope.screens.report_sheets import fit_sheet
from headscope.screens.terminal import Sheet, put, put_machine
from making import SIZES, header_bytes
from small_bert import VOCABULARY, small_bert
from tokenizer_folders import Folder as TokenizerFolder
from tokenizer_folders import wordpiece_tokenizer


@dataclass(frozen=True)
class Reader:
    """One kind of file.

    Attributes:
        prepare: makes what lies beside the file in a folder, and returns whole files to start from.
        mutations: ways to damage them.
        read: reads the bytes, from the folder where it needs one, and uses what it got.
    """

    prepare: Callable[[Path], list[bytes]]
    mutations: tuple[ways.Mutation, ...]
    read: Callable[[bytes, Path], object]


@dataclass
class InMemory:
    """A ModelSource of these bytes."""

    data: bytes
    remote: bool = False
    name: str = "x.safetensors"
    where: str = "memory"

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int) -> bytes:
        check_span(self, start, stop)
        return self.data[start:stop]

    def view(self, start: int, stop: int) -> memoryview:
        return memoryview(self.read(start, stop))


def check_entries(source: InMemory, entries: dict[str, TensorEntry]) -> None:
    """Every tensor lies inside the file, takes the bytes that it says, and can be read or is refused."""
    for name, entry in entries.items():
        assert entry.name == name
        assert 0 <= entry.start <= entry.stop <= source.size
        assert entry.dtype in DTYPES
        if entry.strides is None:
            assert entry.nbytes == entry.stop - entry.start
        with suppress(UnsupportedError):
            array = read_tensor(source, entry, None, None)
            assert array.shape == entry.shape
            assert not array.flags.writeable


def read_safetensors(data: bytes, _: Path) -> None:
    source = InMemory(data)
    entries = read_safetensors_header(source)
    check_entries(source, entries)
    assert sum(entry.nbytes for entry in entries.values()) == len(data) - 8 - int.from_bytes(data[:8], "little")


def read_pickle(data: bytes, _: Path) -> None:
    refusal = None
    for remote in (True, False):
        source = InMemory(data, remote, "x.bin")
        try:
            check_entries(source, read_pickle_header(source))
        except HeadscopeError as error:
            refusal = error
    if refusal is not None:
        raise refusal


def in_file(name: str, use: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """A reader of a file of this name in the folder."""

    def read(data: bytes, folder: Path) -> object:
        (folder / name).write_bytes(data)
        return use(folder)

    return read


def modules_files(folder: Path) -> list[bytes]:
    """modules.json of sentence-transformers, beside a pooling that it can name."""
    small_bert(folder)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(kinds.items())
    ]
    return [json.dumps(modules).encode(), json.dumps(modules[:2]).encode()]


def read_sentence(folder: Path) -> None:
    model = hs.open(folder)
    assert model.pooling.mode in ("mean", "cls")
    str(model.pooling)


def read_index(folder: Path) -> None:
    _, tensors = read_weights(Folder(folder), "model.safetensors.index.json")
    assert set(tensors) <= {"a", "b"}


def read_config(folder: Path) -> None:
    """Everything that is said of a model, then a trace of it."""
    model = hs.open(folder)
    repr(model.config), model.memory(), model.fingerprint, model.components, model.extra_components
    draw(shapes_sheet(model), summary_sheet(model), config_sheet(model), tree_sheet(model))
    with suppress(HeadscopeError):
        draw(fit_sheet(model, "BertForTokenClassification"))
    model.layers[0].heads[0].W_Q
    trace = model.trace(ids=[2, 5, 6, 3])
    assert np.isfinite(trace[0, 0].weights[:]).all()
    dict(trace.outputs)


def draw(*sheets: Sheet) -> None:
    """Draw sheets as the commands do: as text, JSON and a table."""
    for sheet in sheets:
        stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        put(sheet.drawings, stream)
        for form in ("--json", "--csv")[: 1 + (sheet.table is not None)]:
            put_machine(sheet, form, stream)


def read_tokenizer(folder: Path) -> None:
    """The tokenizer of a folder, over texts, pairs and words."""
    config = json.loads((folder / "config.json").read_bytes())
    tokenizer = load_tokenizer(TokenizerFolder(folder, config))
    tokenizer.mask_token, tokenizer.mask_id, tokenizer.pad_id, tokenizer.size, tokenizer.notes
    tokenizer.id("cat")
    for use in (
        lambda: tokenizer.token(1),
        lambda: tokenizer.encode_ids([2, 5, 3]),
        lambda: tokenizer.encode_words(["The", "##ed", "Ġcat"]),
        lambda: tokenizer.encode("Unaffable é 猫 [MASK]\0", "the mat</s>", max_length=9),
    ):
        with suppress(HeadscopeError):
            use()
    tokenizer.encode("The cat sat, tired.")


def read_trace(folder: Path) -> None:
    """A trace and what is computed from it."""
    trace = hs.load(folder / "t.safetensors")
    repr(trace)
    with np.errstate(all="ignore"):
        for layer in trace.numbers:
            for head in trace.head_numbers(layer):
                assert trace[layer, head].weights[:2].shape == (min(2, len(trace)), len(trace.keys))
        draw(overview_sheet(trace))
        page_file(trace)
    trace.save(folder / "again.safetensors")
    hs.load(folder / "again.safetensors")


def read_survey(folder: Path) -> None:
    """A finished survey, as Python and the report read it. It may hold nothing but what was written."""
    survey = Survey(folder / "survey")
    repr(survey)
    for name in survey:
        for field in FIELDS:
            assert survey.measure(name, field).shape == (2, 3)
    assert survey.similarity.shape == (6, 6)


def survey_files(folder: Path) -> list[bytes]:
    """The manifest of a finished survey, the other files of which are whole."""
    return [(finished(folder / "survey", layers=2, heads=3, windows=4) / "manifest.json").read_bytes()]


def safetensors_files(_: Path) -> list[bytes]:
    files = []
    for metadata in (None, {"format": "pt"}):
        for one, other in (("F32", "F16"), ("BF16", "I64"), ("F8_E4M3", "BOOL"), ("F64", "U8")):
            tensors = {"x": (one, (2, 3)), "y": (other, (2, 3)), "scalar": (one, ()), "empty": (other, (0, 3))}
            size = sum(int(np.prod(shape, dtype=int)) * SIZES[dtype] for dtype, shape in tensors.values())
            files.append(header_bytes(tensors, metadata) + bytes(size))
    return files


def zip_files(folder: Path) -> list[bytes]:
    views = (tensor((2, 2), (2, 1)), tensor((2, 2), (1, 2)), tensor((), (), 3), tensor((3, 2), (0, 1), 2))
    whole = [GOOD, archive(state(tensor(), *views))]
    return whole + [
        data for data in _made(folder, hostile.UNSAFE | hostile.PICKLES | hostile.ARCHIVES) if _is_archive(data)
    ]


def legacy_files(folder: Path) -> list[bytes]:
    whole = [legacy(state(tensor()), LEGACY_DATA), legacy(state(tensor(), tensor((2, 2), (1, 2))), LEGACY_DATA)]
    whole.append(legacy(state(tensor(held=storage(kind="torch\nBFloat16Storage"))), LEGACY_DATA[:16]))
    return whole + [data for data in _made(folder, hostile.UNSAFE | hostile.ARCHIVES) if data.startswith(b"\x80")]


def _made(folder: Path, attacks: dict[str, Callable[[Path], Any]]) -> list[bytes]:
    """The files that the makers of hostile checkpoints make, the smaller ones."""
    files = []
    for make in attacks.values():
        with TemporaryDirectory(dir=folder) as inner:
            make(Path(inner))
            files += [path.read_bytes() for path in Path(inner).iterdir() if path.stat().st_size < 3000]
    return files


def _is_archive(data: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return bool(archive.namelist()) and archive.testzip() is None
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, ValueError):
        return False


def index_files(folder: Path) -> list[bytes]:
    shards({"a": "1.safetensors", "b": "2.safetensors"})(folder)
    index = folder / "model.safetensors.index.json"
    metadata = {"metadata": {"total_size": 16}, **json.loads(index.read_bytes())}
    return [index.read_bytes(), json.dumps(metadata).encode()]


def config_files(folder: Path) -> list[bytes]:
    small_bert(folder)
    config = json.loads((folder / "config.json").read_bytes())
    more = {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}, "pruned_heads": {}, "auto_map": {}}
    more |= {"position_embedding_type": "absolute", "tie_word_embeddings": True, "torch_dtype": "float32"}
    more |= {"classifier_dropout": None, "is_decoder": False, "quantization_config": None}
    more |= {"tokenizer_class": "BertTokenizer"}
    return [json.dumps(config).encode(), json.dumps({**config, **more}).encode()]


def tokenizer_json_files(folder: Path) -> list[bytes]:
    """One of each kind: WordPiece, byte-level BPE, Unigram, whole words."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    _write_config(folder)
    vocabulary = {piece: index for index, piece in enumerate(VOCABULARY)}
    wordpiece = wordpiece_tokenizer(vocabulary)
    wordpiece.normalizer = normalizers.BertNormalizer(lowercase=True)
    wordpiece.decoder = decoders.WordPiece()
    wordpiece.add_special_tokens(["[MASK]", "[CLS]", "[SEP]"])
    wordpiece.enable_truncation(8)
    wordpiece.enable_padding(length=8)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "T", "h", "e", "Ġ", "c", "a", "t", "he", "at", "Ġc", "Ġcat"]
    merges = [("h", "e"), ("a", "t"), ("Ġ", "c"), ("Ġc", "at")]
    byte_level = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, merges))
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁", -2.0), ("c", -3.0), ("▁the", -1.5), ("at", -2.5)], 0))
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("``", '"')])
    unigram.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "cat": 1, "the": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return [made.to_str().encode() for made in (wordpiece, byte_level, unigram, words)]


def _write_config(folder: Path, **config: Any) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": len(VOCABULARY), **config}))


def sentencepiece_files(folder: Path) -> list[bytes]:
    """A SentencePiece model, for DeBERTa."""
    (folder / "config.json").write_text('{"model_type": "deberta-v2"}')
    return [(Path(__file__).parent.parent / "data" / "sentencepiece" / "spm.model").read_bytes()]


def settings_files(folder: Path) -> list[bytes]:
    """tokenizer_config.json beside a vocab.txt: what it says of special and added tokens, and of Japanese."""
    _write_config(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    token: dict[str, Any] = {
        "content": "[CLS]",
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
    }
    mecab = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}
    plain = {"do_lower_case": True, "strip_accents": None, "tokenizer_class": "BertTokenizer", "cls_token": "[CLS]"}
    plain |= {"mask_token": token, "model_max_length": 512, "additional_special_tokens": ["<x>"]}
    plain |= {"truncation_side": "right", "model_input_names": ["input_ids"]}
    plain |= {"added_tokens_decoder": {"25": {**token, "content": "<x>", "special": True}}}
    words = {**mecab, "subword_tokenizer_type": "wordpiece", "do_lower_case": True, "do_word_tokenize": False}
    words |= {"never_split": ["cat"], "mecab_kwargs": {"mecab_dic": "ipadic"}}
    dictionary = {"mecab_dic": "unidic_lite", "mecab_option": "", "normalize_text": True}
    characters = {**mecab, "subword_tokenizer_type": "character", "mecab_kwargs": dictionary}
    return [json.dumps(value).encode() for value in (plain, words, characters)]


def trace_files(folder: Path) -> list[bytes]:
    with TemporaryDirectory(dir=folder) as inner:
        model, path = hs.open(small_bert(Path(inner))), Path(inner) / "t.safetensors"
        files = [
            model.trace(text, pair, ablate={(0, 1)}).save(path, dtype=dtype).read_bytes()
            for text, pair, dtype in (("the cat sat", None, "fp32"), ("the cat", "she took", "fp16"))
        ]
        return [*files, with_terms(model.trace("the cat sat")).save(path).read_bytes()]


def with_terms(trace: hs.Trace) -> hs.Trace:
    """The same trace with every kind of score term in every layer."""
    generator = np.random.default_rng(0)
    layers = []
    for record in trace.layers:
        (heads, size, d_head), count = record.q.shape, 3
        tables: dict[str, tuple[int, ...]] = {"by_distance": (heads, count), "by_key": (heads, size)}
        tables |= dict.fromkeys(("relative_keys", "relative_queries"), (heads, count, d_head)) | {"sinks": (heads,)}
        drawn: Any = {name: generator.normal(size=shape).astype(np.float32) for name, shape in tables.items()}
        terms = Terms(buckets=np.arange(2 * size - 1, dtype=np.int32) % count, cap=5.0, **drawn)
        layers.append(replace(record, terms=terms, lse=None))
    return trace.replaced(layers=layers)


BYTES_AND_JSON = (ways.mutate_bytes, ways.mutate_json)


READERS: dict[str, Reader] = {
    "safetensors": Reader(safetensors_files, (ways.mutate_bytes, ways.mutate_header), read_safetensors),
    "pickle-zip": Reader(zip_files, (ways.mutate_bytes, ways.mutate_archive, ways.mutate_archive), read_pickle),
    "pickle-legacy": Reader(legacy_files, (ways.mutate_bytes,), read_pickle),
    "index": Reader(index_files, BYTES_AND_JSON, in_file("model.safetensors.index.json", read_index)),
    "config": Reader(config_files, BYTES_AND_JSON, in_file("config.json", read_config)),
    "tokenizer.json": Reader(tokenizer_json_files, BYTES_AND_JSON, in_file("tokenizer.json", read_tokenizer)),
    "spm.model": Reader(sentencepiece_files, (ways.mutate_bytes,), in_file("spm.model", read_tokenizer)),
    "tokenizer_config.json": Reader(settings_files, BYTES_AND_JSON, in_file("tokenizer_config.json", read_tokenizer)),
    "modules.json": Reader(modules_files, BYTES_AND_JSON, in_file("modules.json", read_sentence)),
    "trace": Reader(trace_files, (ways.mutate_bytes, ways.mutate_header), in_file("t.safetensors", read_trace)),
    "survey manifest": Reader(survey_files, BYTES_AND_JSON, in_file("survey/manifest.json", read_survey)),
}

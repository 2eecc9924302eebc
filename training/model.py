"""The model: transformers' BertForMaskedLM, its size, initialisation and losses."""

from dataclasses import dataclass

import torch
from tokenizer import CLS, MASK, MAX_LENGTH, PAD, SEP
from torch import Tensor
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM

from data import Batch

LAYERS, HEADS, WIDTH = 4, 4, 192


def build_model(counts: Tensor, words: Tensor) -> BertForMaskedLM:
    """A fresh model.

    Four things differ from BERT's start, since a small BERT trained briefly otherwise stays for long near what the
    pieces' frequencies alone give (6.5 nats):

    - matrices are as large as their width asks for (0.07 is 1 / sqrt(192)), embeddings small as in BERT;
    - word embeddings are the teacher's, in fewer dimensions;
    - the decoder's bias holds the log frequencies, which the embeddings need not learn then;
    - position embeddings are sinusoids, between which "the place before mine" is a fixed linear map.

    Attention is the plain kind: on short sequences in bfloat16 on a CPU it is the fastest.

    Args:
        counts: (pieces,) how often each piece occurs in the training text.
        words: (pieces, WIDTH) where word embeddings start; their scale doesn't matter.
    """
    config = BertConfig(
        vocab_size=len(counts),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=MAX_LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=PAD,
        initializer_range=0.07,
    )
    model = BertForMaskedLM(config)
    model.set_attn_implementation("eager")
    small = 0.02
    waves = sinusoids(MAX_LENGTH, WIDTH)
    with torch.no_grad():
        embeddings = model.bert.embeddings
        embeddings.word_embeddings.weight.copy_(small * words / words.square().mean().sqrt())
        embeddings.token_type_embeddings.weight.normal_(std=small)
        embeddings.position_embeddings.weight.copy_(small * waves / waves.square().mean().sqrt())
        model.cls.predictions.bias.copy_(torch.log((counts + 1) / counts.sum()))
    return model


def sinusoids(length: int, width: int) -> Tensor:
    """(length, width): sines and cosines as in Vaswani et al. 2017, section 3.5, less what all positions share."""
    rates = 10_000 ** (-torch.arange(0, width, 2) / width)  # (width / 2,)
    angles = torch.arange(length)[:, None] * rates  # (length, width / 2)
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    return waves - waves.mean(0)


def choose_masked(ids: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """(B, S) bool: `share` of the pieces, never [CLS] or [SEP]."""
    drawn = torch.rand(ids.shape, generator=generator) < share
    return drawn & (ids != CLS) & (ids != SEP)


@dataclass(frozen=True)
class Score:
    """The predictions for the masked positions of one batch.

    Attributes:
        loss: mean cross-entropy in nats, a scalar tensor that gradients flow from.
        correct: number of positions where the best prediction was right.
        count: number of masked positions.
        layers: inputs of each layer, and the last one's output, (B, S, WIDTH).
    """

    loss: Tensor
    correct: int
    count: int
    layers: tuple[Tensor, ...]


def masked_score(model: BertForMaskedLM, batch: Batch, masked: Tensor) -> Score:
    """Put [MASK] at `masked` (B, S) and predict what stood there. Logits are computed at those places alone."""
    ids, types = torch.from_numpy(batch.ids), torch.from_numpy(batch.types)  # (B, S)
    with torch.autocast("cpu", torch.bfloat16, enabled=model.training):
        output = model.bert(
            ids.masked_fill(masked, MASK),
            token_type_ids=types,
            position_ids=torch.from_numpy(batch.positions),
            output_hidden_states=True,
        )
        logits = model.cls(output.last_hidden_state[masked]).float()  # (count, pieces)
    truth = ids[masked]  # (count,)
    correct = int((logits.argmax(1) == truth).sum())
    return Score(functional.cross_entropy(logits, truth), correct, len(truth), output.hidden_states)

"""Small encoders of text without a classification head."""

from types import SimpleNamespace

import torch
from torch import nn

IDS = torch.tensor([[2, 5, 7, 1], [3, 4, 0, 0], [6, 2, 8, 0]])
TOKENS = {"input_ids": IDS, "attention_mask": (IDS > 0).long()}
"""Three sentences of 4, 2 and 3 tokens, padded on the right."""


class TokenEncoder(nn.Module):
    """The interface of a `transformers.AutoModel`, with an answer at padding that must not be read."""

    def __init__(self, width=6):
        super().__init__()
        self.embed = nn.Embedding(9, width)
        self.mix = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.5)

    def forward(self, input_ids, attention_mask=None):
        hidden = self.dropout(self.mix(self.embed(input_ids)).tanh())
        if attention_mask is not None:
            hidden = hidden.masked_fill(attention_mask[:, :, None] == 0, torch.nan)
        return SimpleNamespace(last_hidden_state=hidden, pooler_output=hidden[:, 0])

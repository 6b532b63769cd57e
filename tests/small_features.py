"""A tiny network and tiny data, for tests of features."""

import torch
from torch import nn

ROWS, CLASSES, FEATURES = 83, 3, 5


class Tokens(nn.Module):
    """A classifier of token ids that takes its inputs by name: the mean of the tokens that are not masked."""

    def __init__(self, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embedding, self.head = nn.Embedding(11, FEATURES), nn.Linear(FEATURES, CLASSES)

    def forward(self, input_ids, attention_mask=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        weights = mask[..., None] / mask.sum(1)[:, None, None]
        return {"logits": self.head((self.embedding(input_ids) * weights).sum(1))}


def tokens(rows=ROWS, length=6, seed=1):
    """Token ids with a mask behind the last token of each sentence, and class ids."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 11, (rows, length), generator=rng)
    ends = torch.randint(1, length + 1, (rows, 1), generator=rng)
    mask = (torch.arange(length) < ends).long()
    return {"input_ids": ids * mask, "attention_mask": mask}, torch.randint(
        0, CLASSES, (rows,), generator=rng
    )


class Counted(nn.Module):
    """Counts the rows that pass, without showing it in its state."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self._seen = [0]

    def forward(self, inputs):
        self._seen[0] += len(inputs)
        return self.inner(inputs)

    @property
    def seen(self):
        return self._seen[0]


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Conv2d(2, FEATURES, 3), nn.BatchNorm2d(FEATURES), nn.Tanh()]
        return Counted(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5)))


def data(rows=ROWS, seed=1):
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 2, 4, 4, generator=rng)
    return inputs, torch.randint(0, CLASSES, (rows,), generator=rng)


def direct(model, inputs):
    """The features by a plain call, in double precision."""
    twin = network().double()
    twin.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    with torch.no_grad():
        return twin.eval()(inputs.double())

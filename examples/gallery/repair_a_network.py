# %% [markdown]
# # Repair a network
#
# A network was trained too long and is overconfident. `adapt` refits its last layer on the same training data, lets
# held-out data choose the strength, and compares the result with the usual remedies.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn

import beliefmatch

images, labels = map(torch.tensor, load_digits(return_X_y=True))
images = images.float() / 16
noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
images = images + 0.35 * noise  # a harder task
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
train, val, test = (
    (images[part], labels[part]) for part in order.split([700, 400, 697])
)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(400):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(train[0]), train[1]).backward()
    optimizer.step()

# %% [markdown]
# ## Refit the last layer

# %%
better = beliefmatch.adapt(model, train, validation=val, test=test, choose="best")
print(better.summary())

# %% [markdown]
# `choose="best"` delivers the head of the lowest validation NLL, whichever method it is. The default delivers the
# best belief-matching head. The summary shows all of them in any case, and the head that was chosen need not be the
# best on the test data.
#
# ## Before and after

# %%
with torch.no_grad():
    before, after = model(test[0]), better(test[0])
found = beliefmatch.evaluate(
    logits={"before": before, "after": after}, targets=test[1], resamples=1000
)
print(found)

# %%
found.plot()

# %% [markdown]
# The repaired network is a drop-in replacement: same `forward`, same names in its `state_dict`.

# %%
print(list(better.state_dict()) == list(model.state_dict()))

# %% [markdown]
# Next: [repair from the command line](../how-to/repair.md), [three worked examples with real networks](../adapt.md).

# %% [markdown]
# # Swap the loss
#
# A small network learns scikit-learn's digits three times: with cross-entropy, with label smoothing and with belief
# matching. Everything else is the same. Noise makes the images hard, so that cross-entropy becomes overconfident.

# %%
import torch
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from torch import nn

from beliefmatch import Belief, BeliefMatchingLoss, metrics

chance = torch.Generator().manual_seed(0)
images, labels = map(torch.tensor, load_digits(return_X_y=True))
images = (images / 16 + 0.35 * torch.randn(images.shape, generator=chance)).float()
train, val, test = torch.randperm(len(labels), generator=chance).split(
    [700, 400, 697]
)

# %% [markdown]
# ## Train
#
# Only the criterion differs.


# %%
def trained(criterion: nn.Module) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        criterion(model(images[train]), labels[train]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        return model(images)


# %% [markdown]
# The strength of belief matching is the confidence that its optimum gives to a label. The validation images choose
# it.

# %%
beliefs = {
    target: trained(BeliefMatchingLoss(target_confidence=target))
    for target in (0.8, 0.9, 0.95, 0.98, 0.99)
}
nll = {
    target: metrics.nll(rows[val].softmax(1), labels[val])
    for target, rows in beliefs.items()
}
best = min(nll, key=nll.__getitem__)
print({target: round(value, 3) for target, value in nll.items()}, "chosen:", best)

# %% [markdown]
# Label smoothing is the control: this strength has the same target probability of the label.

# %%
logits = {
    "cross-entropy": trained(nn.CrossEntropyLoss())[test],
    "label smoothing": trained(
        nn.CrossEntropyLoss(label_smoothing=(1 - best) * 10 / 9)
    )[test],
    "belief matching": beliefs[best][test],
}

# %% [markdown]
# ## Evaluate

# %%
print(f"{'':16} error    NLL    ECE  confidence")
for name, rows in logits.items():
    probs = Belief(rows).probs
    error, nll = (
        metrics.error(probs, labels[test]),
        metrics.nll(probs, labels[test]),
    )
    ece = metrics.expected_calibration_error(probs, labels[test])
    print(
        f"{name:16} {error:5.3f}  {nll:5.3f}  {ece:5.3f}  "
        f"{probs.max(1).values.mean():10.3f}"
    )

# %% [markdown]
# A reliability diagram shows confidence against accuracy. Points below the diagonal are overconfident.

# %%
figure, axes = plt.subplots(figsize=(4.6, 3.6), layout="constrained")
axes.plot([0, 1], [0, 1], linestyle="dotted", color="gray")
for name, rows in logits.items():
    probs = Belief(rows).probs
    bins = metrics.reliability_bins(
        probs.max(1).values,
        probs.argmax(1) == labels[test],
        n_bins=10,
        scheme="mass",
    )
    axes.plot(bins.confidence, bins.accuracy, marker="o", label=name)
axes.set(
    xlabel="mean confidence",
    ylabel="accuracy",
    title="Reliability on the test images",
)
axes.legend()
figure

# %% [markdown]
# ## What belief matching adds
#
# The optimum of belief matching has the same mean as that of matched label smoothing, so do not expect better
# probabilities. But the belief also has a width. These are the three test images with the largest mutual
# information:

# %%
belief = Belief(logits["belief matching"])
least_certain = belief.mutual_information().topk(3).indices
for index in least_certain.tolist():
    low, high = belief[index].credible_interval(0.9)
    best = int(belief.predictions[index])
    print(
        f"predicted {best}, label {labels[test][index]}: "
        f"probability in [{low[best]:.2f}, {high[best]:.2f}]"
    )

# %% [markdown]
# Next: [choose the strength](../how-to/swap-the-loss.md), [what the measures mean](../concepts/uncertainty.md).

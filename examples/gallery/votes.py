# %% [markdown]
# # Votes
#
# Several people label each image and do not always agree. The votes are counts, belief matching learns from them, and
# its belief says which images need another vote. The people are simulated: they confuse digits that look alike.

# %%
import torch
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from beliefmatch import Belief, fit_scale
from beliefmatch.sklearn import BeliefClassifier
from beliefmatch.votes import expected_gain

X, _ = load_digits(return_X_y=True)
labels = torch.tensor(load_digits().target)
X = torch.tensor(X / 16)
chance = torch.Generator().manual_seed(0)

# What people see is blurred. Nine people look at it, with one vote each.
blurred = X + 0.5 * torch.randn(X.shape, generator=chance, dtype=X.dtype)
opinion = (
    LogisticRegression(C=0.02, max_iter=1000).fit(X, labels).predict_proba(blurred)
)
people = torch.multinomial(
    torch.tensor(opinion), 9, replacement=True, generator=chance
)
votes = torch.nn.functional.one_hot(people, 10)

train, val, test = torch.randperm(len(X), generator=chance).split([600, 400, 797])
agree = (votes.sum(1).max(1).values / 9).mean()
print(f"mean share of the nine votes that the leading class has: {agree:.2f}")

# %% [markdown]
# ## Learn from three votes an image
#
# The network never sees a correct label, only the counts.

# %%
model = BeliefClassifier((), kl_weight=0.01, random_state=0).fit(
    X[train].numpy(), votes[train, :3].sum(1).numpy()
)
logits = {
    part: model.belief(X[rows].numpy()).alpha.log()
    for part, rows in (("val", val), ("test", test))
}
error = (logits["test"].argmax(1) != labels[test]).float().mean()
print(f"error against the true labels: {error:.3f}")

# %% [markdown]
# ## Fit the scale
#
# `fit_scale` determines from the votes on held-out images how many votes the model is worth. Without this step the
# belief is so concentrated that further votes hardly change it.

# %%
scale = fit_scale(logits["val"], votes[val, :5].sum(1))
raw, belief = Belief(logits["test"]), Belief(logits["test"], scale=scale)
print(
    f"scale {scale:.4f}: the model is worth {belief.precision.median():.1f} votes, "
    f"as it came {raw.precision.median():.0f}"
)

# %% [markdown]
# The later votes test the belief. The plot shows their mean negative log-likelihood after none, one, two... of
# the first five votes: lower is better.

# %%
later = votes[test, 5:].sum(1)
curves = {
    "as it came": raw,
    "with fitted scale": belief,
    "votes alone": Belief(torch.zeros_like(logits["test"])),
}
figure, axes = plt.subplots(figsize=(4.6, 3.2), layout="constrained")
for name, start in curves.items():
    nats = [
        -(
            later
            * start.update(votes[test, :n].sum(1).to(start.probs.dtype)).probs.log()
        )
        .sum(1)
        .mean()
        / 4
        for n in range(6)
    ]
    axes.plot(range(6), nats, marker="o", label=name)
axes.set(
    xlabel="votes seen",
    ylabel="nats of a later vote",
    title="Belief and votes together",
)
axes.legend()
figure

# %% [markdown]
# ## Which image needs another vote
#
# After one vote the expected information of a second one ranks the images. Asking about the best fifth changes far
# more decisions than asking about the others.

# %%
one = votes[test, :1].sum(1)
gain = expected_gain(belief.alpha.log(), 5, one)
first = belief.prob_of_majority(5, one).argmax(1)
full = votes[test, :5].sum(1)
decided = belief.prob_of_majority(5, full).argmax(1)
changed = (first != decided)[gain.argsort(descending=True)].float()
fifth = len(changed) // 5
print(
    "decision changes with all five votes: "
    f"{changed[:fifth].mean():.3f} of the images with the highest gain,"
)
print(f"{changed[fifth:].mean():.3f} of the others")

# %% [markdown]
# Next: [learn from votes](../how-to/votes.md), [the interactive simplex](../concepts/simplex.md).

# %% [markdown]
# # Abstain at a risk
#
# A classifier answers so that at most 5 % of its answers are wrong, and leaves all other examples to a person. How
# many can it answer, and does the guarantee hold?

# %%
import torch
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from beliefmatch import metrics
from beliefmatch.sklearn import BeliefClassifier

X, y = load_digits(return_X_y=True)
X_train, X_rest, y_train, y_rest = train_test_split(
    X, y, train_size=250, random_state=0, stratify=y
)
model = BeliefClassifier((), random_state=0).fit(X_train, y_train)

# %% [markdown]
# ## One split
#
# Half of the remaining images determine the threshold, and the other half serve as new images. The images that
# determine the threshold must not be used for any other choice.

# %%
belief, target = model.belief(X_rest), torch.tensor(y_rest)
order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
held_out, new = order[:800], order[800:]

answered = ~belief[new].abstain(
    risk=0.05, calibration=(belief[held_out], target[held_out])
)
wrong = belief[new].predictions != target[new]
print(f"error of all answers     {wrong.float().mean():.3f}")
print(f"share that is answered   {answered.float().mean():.3f}")
print(f"error among the answers  {wrong[answered].float().mean():.3f}")

# %% [markdown]
# ## Risk against coverage
#
# The curve shows the error among the most confident examples as more of them are answered. The threshold is
# cautious: it allows for chance in 800 held-out images.

# %%
confidence, correct = belief[new].confidence, ~wrong
curve = metrics.risk_coverage(confidence, correct)
figure, axes = plt.subplots(figsize=(4.6, 3.2), layout="constrained")
axes.plot(curve.coverage, curve.risk, label="new images")
axes.axhline(0.05, linestyle="dotted", color="gray", label="chosen risk")
axes.axvline(
    answered.float().mean(),
    linestyle="dashed",
    color="gray",
    label="coverage chosen",
)
axes.set(
    xlabel="coverage", ylabel="error among the answers", title="Risk and coverage"
)
axes.legend()
figure

# %% [markdown]
# ## Does it hold?
#
# The guarantee allows the risk to be exceeded in at most 5 % of the draws of held-out images. Two hundred draws:

# %%
risks = []
for seed in range(200):
    order = torch.randperm(
        len(target), generator=torch.Generator().manual_seed(seed)
    )
    held_out, new = order[:800], order[800:]
    answered = ~belief[new].abstain(
        risk=0.05, calibration=(belief[held_out], target[held_out])
    )
    wrong = belief[new].predictions != target[new]
    risks.append(wrong[answered].float().mean().item())
print(
    "draws with more than 5 % errors among the answers: "
    f"{sum(risk > 0.05 for risk in risks)} of {len(risks)}"
)

# %% [markdown]
# Next: [choose a threshold by risk](../how-to/threshold-by-risk.md), [prediction sets](../how-to/prediction-sets.md).

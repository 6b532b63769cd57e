# %% [markdown]
# # OOD input
#
# A classifier learns the digits 0 to 7. Which score detects the digits 8 and 9, rotated digits, patches of
# photographs, and noise? The answer differs from set to set, so test scores on your own data.

# %%
import torch
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits, load_sample_images
from torch import nn

from beliefmatch import BeliefMatchingLoss, metrics

images, labels = map(torch.tensor, load_digits(return_X_y=True))
images = images.float() / 16
known = labels < 8
order = known.nonzero()[:, 0][
    torch.randperm(int(known.sum()), generator=torch.Generator().manual_seed(0))
]
train, test = order[:1000], order[1000:]

chance = torch.Generator().manual_seed(1)
photograph = torch.tensor(load_sample_images().images[0]).float().mean(2) / 255
patches = photograph.unfold(0, 8, 8).unfold(1, 8, 8).reshape(-1, 64)
ood = {
    "8 and 9": images[~known],
    "rotated": images[test].view(-1, 8, 8).rot90(1, (1, 2)).reshape(-1, 64),
    "patches": patches[torch.randperm(len(patches), generator=chance)[:400]],
    "noise": torch.rand(400, 64, generator=chance),
}

# %% [markdown]
# ## Train with both losses


# %%
def trained(criterion: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(200):
        optimizer.zero_grad()
        criterion(model(images[train]), labels[train]).backward()
        optimizer.step()
    return model.eval()


models = {
    "softmax": trained(nn.CrossEntropyLoss()),
    "belief matching": trained(BeliefMatchingLoss(kl_weight=0.001)),
}

# %% [markdown]
# ## Compare scores
#
# AUROC is the probability that an OOD example scores higher than a test example. At 0.5 a score is no better than
# chance. Below 0.5 the network is *more* confident about OOD input. Mutual information reads the width of a
# Dirichlet, so it exists for belief matching alone. The distance compares inputs of the last layer with those of
# the training images.

# %%
rows = {}
with torch.no_grad():
    for name, model in models.items():
        measures = ["entropy", "energy"] + ["mutual_information"] * (
            name == "belief matching"
        )
        for measure in measures:
            score = metrics.SCORES[measure]
            inside = score(logits=model(images[test]))
            title = f"{name}: {measure.replace('_', ' ')}"
            rows[title] = [
                metrics.auroc(inside, score(logits=model(x))) for x in ood.values()
            ]
    features = models["belief matching"][:2]
    reference = features(images[train]), labels[train]
    inside = metrics.mahalanobis_distance(
        features(images[test]), *reference, shrinkage=0.01
    )
    rows["distance of features"] = [
        metrics.auroc(
            inside,
            metrics.mahalanobis_distance(features(x), *reference, shrinkage=0.01),
        )
        for x in ood.values()
    ]

print(f"{'':36}" + "".join(f"{name:>9}" for name in ood))
for name, areas in rows.items():
    print(f"{name:36}" + "".join(f"{area:9.3f}" for area in areas))

# %% [markdown]
# Every score detects the digits 8 and 9. Rotated digits mislead all scores that read logits, and noise misleads the
# energy and the mutual information of belief matching: the network is more confident about them than about digits.
# One reason is that some pixels are blank in all training images. Their weights keep random initial values, which
# affect the logits when such a pixel is not blank. If these pixels are set to zero, the energy improves, but
# stays below chance on rotated digits:

# %%
blank = images[train].std(0) < 0.03
energy = metrics.SCORES["energy"]
with torch.no_grad():
    model = models["belief matching"]
    inside = energy(logits=model(images[test]))
    for name in ("rotated", "noise"):
        area = metrics.auroc(
            inside, energy(logits=model(ood[name].masked_fill(blank, 0)))
        )
        print(f"{name}, without {int(blank.sum())} blank pixels: {area:.3f}")

# %% [markdown]
# ## Look at one score
#
# The densities show how far the scores of the two sets overlap:

# %%
figure, axes = plt.subplots(figsize=(4.6, 3.2), layout="constrained")
score = metrics.SCORES["mutual_information"]
with torch.no_grad():
    sets = {"test": images[test], "8 and 9": ood["8 and 9"], "noise": ood["noise"]}
    for name, x in sets.items():
        values = score(logits=models["belief matching"](x)).log10()
        axes.hist(
            values.numpy(),
            bins=30,
            density=True,
            histtype="step",
            linewidth=1.6,
            label=name,
        )
axes.set(
    xlabel="mutual information, log10 of nats",
    ylabel="density",
    title="Uncertainty about the probabilities",
)
axes.legend()
figure

# %% [markdown]
# Next: [OOD on my data](../how-to/ood.md), [limits of the belief](../uncertainty.md#limits).

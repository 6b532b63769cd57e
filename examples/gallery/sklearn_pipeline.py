# %% [markdown]
# # A scikit-learn pipeline
#
# `BeliefClassifier` is a scikit-learn classifier with a belief. Here it works in a pipeline on scikit-learn's breast
# cancer data, is compared with logistic regression, and shows what its belief does far from the data.

# %%
import numpy as np
from matplotlib import pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    RepeatedStratifiedKFold,
    cross_val_score,
    train_test_split,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer

from beliefmatch.sklearn import BeliefClassifier

X, y = load_breast_cancer(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, random_state=0, stratify=y
)

# %% [markdown]
# ## Fit
#
# λ and weight decay are chosen by cross-validation; nothing has to be tuned.

# %%
model = make_pipeline(PowerTransformer(), BeliefClassifier((), random_state=0)).fit(
    X_train, y_train
)
classifier = model[-1]
print(f"λ {classifier.kl_weight_:.2g}, weight decay {classifier.weight_decay_:.2g}")
print(
    f"accuracy {model.score(X_test, y_test):.3f}, "
    f"log-loss {log_loss(y_test, model.predict_proba(X_test)):.3f}"
)

# %% [markdown]
# ## Compare
#
# Both classifiers use the same folds.

# %%
folds = RepeatedStratifiedKFold(n_splits=4, n_repeats=2, random_state=0)
rival = LogisticRegressionCV(
    Cs=6,
    scoring="neg_log_loss",
    max_iter=2000,
    l1_ratios=(0,),
    use_legacy_attributes=False,
)
losses = {
    "BeliefClassifier": -cross_val_score(
        model, X, y, cv=folds, scoring="neg_log_loss"
    ),
    "LogisticRegressionCV": -cross_val_score(
        make_pipeline(PowerTransformer(), rival),
        X,
        y,
        cv=folds,
        scoring="neg_log_loss",
    ),
}
for name, values in losses.items():
    print(f"{name:22} log-loss {values.mean():.3f} ± {values.std():.3f}")

# %% [markdown]
# ## Leave uncertain rows to a person

# %%
inputs = model[:-1].transform(X_test)
belief = classifier.belief(inputs)
uncertain = belief.confidence.numpy() < 0.9
wrong = model.predict(X_test) != y_test
print(
    f"{uncertain.sum()} of {len(y_test)} rows are uncertain; "
    f"they hold {wrong[uncertain].sum()} of {wrong.sum()} mistakes"
)

# %% [markdown]
# ## Far from the data
#
# The belief of a linear model is *sharper* far from the data, not wider: the logits grow with the distance. The
# confidence on pure noise shows this. Use a distance of the features to detect such rows.

# %%
rng = np.random.default_rng(0)
distances = np.array([0.5, 1, 2, 5, 10, 20, 50])
confidence = [
    classifier.belief(distance * rng.normal(size=(500, X.shape[1])))
    .confidence.mean()
    .item()
    for distance in distances
]
figure, axes = plt.subplots(figsize=(4.6, 3.0), layout="constrained")
axes.semilogx(distances, confidence, marker="o")
axes.set(
    xlabel="size of the noise, in standard deviations",
    ylabel="mean confidence",
    title="Confidence in noise",
    ylim=(0.5, 1.02),
)
figure

# %% [markdown]
# Next: [the estimator](../sklearn.md), [OOD on my data](../how-to/ood.md).

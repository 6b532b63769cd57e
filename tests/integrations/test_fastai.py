"""What fastai looks for in a loss; with its real learners where it is installed."""

import copy
import importlib.util
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from beliefmatch import BeliefMatchingLoss, belief_matching_loss
from beliefmatch.integrations.fastai import BeliefMatchingLossFlat

CLASSES = 3
needs_fastai = pytest.mark.skipif(
    importlib.util.find_spec("fastai") is None, reason="fastai is not installed"
)


def logits_of(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("shape", "dim"), [((CLASSES,), 0), ((5, CLASSES), 1), ((5, CLASSES, 2, 4), 1)])
def test_activation_and_decodes_read_the_classes_where_the_loss_does(shape, dim):
    logits, loss = logits_of(*shape), BeliefMatchingLoss()
    torch.testing.assert_close(loss.activation(logits), logits.softmax(dim))
    torch.testing.assert_close(loss.decodes(logits), logits.argmax(dim))
    assert loss.decodes(loss.activation(logits)).equal(loss.decodes(logits))


def test_mixed_losses_are_the_loss_of_mixed_labels():
    """What fastai's MixUp does with a loss whose `y_int` is true."""
    logits, first, second = logits_of(6, CLASSES), torch.tensor([0, 1, 2, 0, 1, 2]), torch.arange(6) % 2
    share = torch.rand(6, dtype=torch.float64)
    loss = BeliefMatchingLoss()
    loss.reduction = "none"
    mixed = torch.lerp(loss(logits, second), loss(logits, first), share)
    hot = [nn.functional.one_hot(labels, CLASSES) for labels in (second, first)]
    counts = torch.lerp(*(one.double() for one in hot), share[:, None])
    assert loss.y_int
    torch.testing.assert_close(mixed, belief_matching_loss(logits, counts, reduction="none"))


@pytest.mark.parametrize("kind", [BeliefMatchingLoss, BeliefMatchingLossFlat])
def test_the_module_is_saved_copied_and_compiled_as_before(kind):
    loss = kind(weight=torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64), prior=2.0)
    assert list(loss.state_dict()) == ["weight"] and not list(kind().state_dict())
    logits, ids = logits_of(5, CLASSES), torch.tensor([0, 1, 2, 2, -100])
    expected = belief_matching_loss(logits, ids, weight=loss.weight, prior=2.0)
    for other in (loss, copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        torch.testing.assert_close(other(logits, ids), expected)
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits, ids), expected)
    assert "y_int" not in f"{loss}"


@pytest.mark.parametrize(("shape", "labels"), [((5, 3), (5, 1)), ((5, 3), (5,)), ((2, 4, 3), (2, 4))])
def test_the_flat_loss_flattens_all_but_the_classes(shape, labels):
    logits, loss = logits_of(*shape), BeliefMatchingLossFlat()
    ids = torch.randint(CLASSES, labels)
    expected = belief_matching_loss(logits.reshape(-1, CLASSES), ids.flatten())
    torch.testing.assert_close(loss(logits, ids), expected)
    counts = nn.functional.one_hot(ids.reshape(shape[:-1]), CLASSES).double()
    torch.testing.assert_close(loss(logits, counts), expected)
    torch.testing.assert_close(loss.activation(logits), logits.softmax(-1))
    assert loss.decodes(logits).equal(logits.argmax(-1))


def test_the_flat_loss_names_targets_that_do_not_fit():
    with pytest.raises(ValueError, match="`targets`"):
        BeliefMatchingLossFlat()(logits_of(5, CLASSES), torch.zeros(4, dtype=torch.int64))


# The real learners, in an environment that has fastai: `pip install fastai`


def learner(loss):
    from fastai import basics

    torch.manual_seed(0)
    inputs = torch.randn(96, 4)
    data = torch.utils.data.TensorDataset(inputs, (inputs[:, :CLASSES]).argmax(1))
    loaders = (basics.DataLoader(data, bs=32, shuffle=shuffle) for shuffle in (True, False))
    return basics.Learner(basics.DataLoaders(*loaders), nn.Linear(4, CLASSES), loss_func=loss)


@needs_fastai
@pytest.mark.filterwarnings("ignore")
def test_predictions_of_a_learner_are_probabilities():
    learn = learner(BeliefMatchingLoss(target_confidence=0.95))
    learn.fit(5, lr=0.1)
    probs, targets, decoded, losses = learn.get_preds(with_decoded=True, with_loss=True)
    logits = learn.model(torch.cat([batch[0] for batch in learn.dls.valid])).detach()
    torch.testing.assert_close(probs, logits.softmax(1))
    assert decoded.equal(probs.argmax(1)) and (decoded == targets).float().mean() > 0.8
    each = belief_matching_loss(logits, targets, target_confidence=0.95, reduction="none")
    torch.testing.assert_close(losses, each, rtol=1e-4, atol=1e-5)


@needs_fastai
@pytest.mark.filterwarnings("ignore")
def test_mixup_trains_on_mixed_counts():
    from fastai.callback.mixup import MixUp
    from fastai.learner import Callback

    seen = []

    class Compare(Callback):
        order = 99

        def after_loss(self):
            if self.training:
                share, labels = self.learn.mix_up.lam[:, None], (self.yb[0], self.learn.mix_up.yb1[0])
                hot = [nn.functional.one_hot(ids, CLASSES) for ids in labels]
                counts = share * hot[0] + (1 - share) * hot[1]
                seen.append((self.loss.item(), belief_matching_loss(self.pred, counts).item()))

    learner(BeliefMatchingLoss()).fit(1, lr=0.01, cbs=[MixUp(), Compare()])
    assert len(seen) == 3
    np.testing.assert_allclose(*zip(*seen, strict=True), rtol=1e-5)


@needs_fastai
@pytest.mark.filterwarnings("ignore")
def test_a_tabular_learner_predicts_probabilities(tmp_path):
    import pandas as pd
    from fastai.tabular import all as tabular

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chance = np.random.default_rng(0)
        values = chance.normal(size=(120, CLASSES))
        frame = pd.DataFrame(values, columns=list("abc")).assign(y=np.array(list("xyz"))[values.argmax(1)])
        loaders = tabular.TabularDataLoaders.from_df(
            frame, procs=[tabular.Normalize], cont_names=list("abc"), y_names="y", bs=30
        )
        learn = tabular.tabular_learner(loaders, layers=[16], loss_func=BeliefMatchingLossFlat())
        learn.fit(8, lr=0.05)
        probs, targets = learn.get_preds()
        *_, row = learn.predict(frame.iloc[0])
        learn.export(tmp_path / "learner.pkl")
    torch.testing.assert_close(probs.sum(1), torch.ones(len(probs)))
    assert (probs.argmax(1) == targets.flatten()).float().mean() > 0.7
    torch.testing.assert_close(row.sum(), torch.tensor(1.0))
    assert (tmp_path / "learner.pkl").is_file()

"""Features of all sets of an adaptation: from files, archives of several sets, directories of the cache."""

import warnings

import numpy as np
import pytest
import torch

from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.cache import FeatureCache
from beliefmatch.adaptation.features import extract
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.stored_sets import feature_sets
from prediction_files import save, save_npz

WIDTH, CLASSES = 5, 3
QUICK = AdaptConfig(epochs=2, kl_weights=(0.01,), controls=())
WEIGHT = np.random.default_rng(9).normal(size=(CLASSES, WIDTH)).astype(np.float32)


def rows(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def ids(features):
    return (features @ WEIGHT.T).argmax(1)


def arrays(count, seed=0):
    features = rows(count, seed)
    return {"features": features, "targets": ids(features)}


def archive(**sets):
    """Arrays of several sets with the set in front of their names."""
    return {f"{name}_{key}": values for name, one in sets.items() for key, values in one.items()}


def same(features, one):
    np.testing.assert_array_equal(np.asarray(features.rows), one["features"])
    return features.targets.tolist() == one["targets"].tolist()


def refused(named, *args, **options):
    with pytest.raises(ValueError, match=named) as error:
        feature_sets(*args, **options)
    assert "\n" not in f"{error.value}"


@pytest.fixture
def files(tmp_path):
    """A file for each set."""
    made = {
        name: arrays(count, seed) for seed, (name, count) in enumerate({"a": 40, "b": 12, "c": 9}.items())
    }
    return {name: (save_npz(tmp_path / f"{name}.npz", **one), one) for name, one in made.items()}


def test_a_file_for_each_set(files, tmp_path):
    (a, train), (b, validation), (c, test) = files.values()
    far = save_npz(tmp_path / "far.npz", features=rows(7, 5))
    near = save_npz(tmp_path / "near.npz", **arrays(8, 6))
    sets, init, classes = feature_sets(a, validation=b, test=c, ood={"far": far, "near": f"{near}"})
    assert same(sets.train, train) and same(sets.validation, validation) and same(sets.test, test)
    assert init is None and classes is None
    assert list(sets.ood) == ["far", "near"]
    assert sets.ood["near"].targets.tolist() == [-1] * 8
    np.testing.assert_array_equal(sets.ood["far"].rows, rows(7, 5))


@pytest.mark.parametrize("extension", ["npz", "safetensors"])
def test_one_archive_of_several_sets_and_the_head(tmp_path, extension):
    train, validation, test, far = arrays(30), arrays(9, 1), arrays(8, 2), {"features": rows(4, 3)}
    held = archive(train=train, val=validation, test=test, ood_svhn=far)
    path = save(tmp_path, extension, **held, weight=WEIGHT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sets, init, classes = feature_sets(path, validation=0.5)  # which yields to the rows that are there
    assert same(sets.train, train) and same(sets.validation, validation) and same(sets.test, test)
    np.testing.assert_array_equal(sets.ood["svhn"].rows, far["features"])
    assert sets.ood["svhn"].targets.tolist() == [-1] * 4
    assert torch.equal(init[0], torch.from_numpy(WEIGHT)) and init[1].tolist() == [0] * CLASSES
    assert classes is None


def test_counts_give_the_classes_and_other_arrays_are_ignored(tmp_path):
    votes = np.ones((6, 4), np.float32)
    held = archive(train={"features": rows(6), "counts": votes}, validation=arrays(5, 1))
    sets, _, classes = feature_sets(save_npz(tmp_path / "a.npz", **held, targets=np.zeros(2, int)))
    assert classes == 4
    assert sets.train.targets.tolist() == votes.tolist() and sets.validation.targets.dim() == 1


def test_a_fraction_is_held_out_in_class_proportion_by_the_seed(files):
    a, train = files["a"]
    sets, _, _ = feature_sets(a, validation=0.25)
    assert (len(sets.train), len(sets.validation)) == (30, 10)
    both = np.concatenate([np.asarray(sets.train.rows), np.asarray(sets.validation.rows)])
    assert sorted(map(bytes, both)) == sorted(map(bytes, train["features"]))
    whole, taken = (
        np.bincount(one, minlength=CLASSES) for one in (train["targets"], sets.validation.targets)
    )
    assert np.abs(taken - whole / 4).max() <= 1
    assert ids(np.asarray(sets.validation.rows)).tolist() == sets.validation.targets.tolist()
    again, other = (feature_sets(a, validation=0.25, split_seed=seed)[0].validation for seed in (0, 1))
    np.testing.assert_array_equal(np.asarray(again.rows), np.asarray(sets.validation.rows))
    assert not np.array_equal(np.asarray(other.rows), np.asarray(again.rows))
    assert len(feature_sets(a, validation=7)[0].validation) == 7


def test_a_fifth_is_held_out_with_a_warning(files):
    with pytest.warns(UserWarning, match=r"^feature_sets: .*`validation`.* 20% of `train`"):
        sets, _, _ = feature_sets(files["a"][0])
    assert len(sets.validation) == 8


def test_directories_of_the_cache_serve_as_files_do(tmp_path, files):
    cache, model = FeatureCache(tmp_path / "cache"), torch.nn.Flatten()

    def kept(count, seed):
        one = arrays(count, seed)
        data = torch.from_numpy(one["features"]), torch.from_numpy(one["targets"])
        known = {key.key for key in cache.sets()}
        extract(model, model, data, key_parts={}, cache=cache)
        return cache.directory / ({found.key for found in cache.sets()} - known).pop(), one

    (a, train), (b, validation) = kept(20, 11), kept(10, 12)
    sets, init, _ = feature_sets(a, validation=b, test=files["c"][0], ood={"other": b})
    assert same(sets.train, train) and same(sets.validation, validation)
    assert init is None and sets.ood["other"].targets.tolist() == [-1] * 10
    refused("`features`", tmp_path, validation=b)


def test_large_files_stay_where_they_are(files):
    sets, _, _ = feature_sets(files["a"][0], validation=files["b"][0])
    assert isinstance(sets.train.rows, np.memmap)


def test_a_head_of_other_classes_is_no_obstacle(tmp_path):
    """For new labels the head that comes along is that of the old ones."""
    for classes in (2, 9):
        head = {"weight": np.ones((classes, WIDTH), np.float32), "bias": np.ones(classes, np.float32)}
        sets, init, _ = feature_sets(save_npz(tmp_path / "a.npz", **arrays(20), **head), validation=0.3)
        assert len(init[0]) == classes and sets.train.targets.max() == 2


def test_sets_that_were_read_can_be_refitted(tmp_path):
    held = archive(train=arrays(200), validation=arrays(90, 1), test=arrays(50, 2))
    for name, content, labels in (("a", {**held, "weight": WEIGHT}, "same"), ("b", arrays(200), "new")):
        sets, init, classes = feature_sets(save_npz(tmp_path / f"{name}.npz", **content), validation=0.3)
        found = refit(sets, classes=classes, init=init, adapt_config=QUICK)
        assert (found.labels, found.classes) == (labels, CLASSES)


@pytest.fixture
def others(tmp_path):
    """Files that do not go together with the others."""
    narrow = {"features": rows(6)[:, :3], "targets": np.arange(6) % 3}
    votes = {f"votes of {k}": {"features": rows(6), "counts": np.ones((6, k))} for k in (2, 4)}
    made = {"narrow": narrow, **votes}
    paths = {name: save_npz(tmp_path / f"{name}.npz", **one) for name, one in made.items()}
    return {**paths, "absent": tmp_path / "no.npz"}


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("`validation`.* got 3", {"validation": "narrow"}),
        ("`validation`", {"validation": "absent"}),
        ("`validation`", {"validation": 0}),
        ("`validation`", {"validation": 400}),
        ("`ood_x`", {"validation": "b", "ood": "narrow"}),
        ("from 0 to 1", {"validation": "b", "classes": 2}),
        ("`train`.* from 0 to 1", {"validation": "votes of 2"}),
        ("`test`.* got 4", {"validation": "votes of 2", "test": "votes of 4"}),
        ("`train`", {"train": "absent", "validation": "b"}),
    ],
)
def test_sets_that_do_not_go_together_are_refused(files, others, named, options):
    paths = {**{name: path for name, (path, _) in files.items()}, **others}
    given = {key: paths.get(value, value) for key, value in {"train": "a", **options}.items()}
    if "ood" in given:
        given["ood"] = {"x": given["ood"]}
    refused(named, given.pop("train"), **given)


@pytest.mark.parametrize(
    ("named", "sets"),
    [
        ("`targets`", {"train": {"features": rows(6)}, "validation": arrays(5)}),
        ("`train`.* pool_", {"train": arrays(6), "pool": arrays(5)}),
        ("`train`", {"validation": arrays(6)}),
        ("`validation`", {"train": arrays(6), "val": arrays(5), "validation": arrays(5)}),
        ("`targets`.*train_labels", {"train": {**arrays(6), "labels": np.zeros(6)}}),
        ("`targets` or `counts`", {"train": {**arrays(6), "counts": np.ones((6, 3))}}),
    ],
)
def test_archives_that_are_not_clear_are_refused(tmp_path, named, sets):
    refused(named, save_npz(tmp_path / "a.npz", **archive(**sets)), validation=0.5)


def test_one_set_may_have_other_arrays_beside_it_but_no_other_sets(tmp_path):
    one = arrays(20)
    path = save_npz(tmp_path / "a.npz", **one, raw_features=rows(3))
    assert same(feature_sets(path, validation=path)[0].train, one)
    path = save_npz(tmp_path / "b.npz", **one, **archive(train=one))
    refused("features and train_features", path)


def test_a_set_is_given_once(tmp_path, files):
    path = save_npz(tmp_path / "m.npz", **archive(train=arrays(9), validation=arrays(6), ood_x=arrays(4)))
    b = files["b"][0]
    refused("`validation`.*`validation_features`", path, validation=b)
    refused("`ood_x`", path, ood={"x": b})


def test_text_needs_names(tmp_path):
    one = arrays(12)
    names = np.array(["ant", "bee", "cat"])
    path = save_npz(tmp_path / "a.npz", features=one["features"], targets=names[one["targets"]])
    sets, _, classes = feature_sets(path, validation=0.5, class_names=["cat", "bee", "ant"])
    assert classes == 3
    assert sets.validation.targets.tolist() == (2 - ids(np.asarray(sets.validation.rows))).tolist()


def test_broken_archives_are_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK nothing")
    refused("`path`", tmp_path / "a.npz")

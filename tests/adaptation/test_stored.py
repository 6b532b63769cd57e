"""Features computed elsewhere: one set from files of every format, and all sets of an adaptation."""

import pickle
import warnings

import numpy as np
import pytest
import torch

from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.cache import FeatureCache
from beliefmatch.adaptation.features import extract
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.stored import feature_sets, features_from_file, head_from_file
from prediction_files import every_format, save, save_npz, save_parquet_lists

ROWS, WIDTH, CLASSES = 9, 5, 3
FEATURES = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
TARGETS = np.arange(ROWS) % CLASSES
COUNTS = np.random.default_rng(1).integers(1, 5, (ROWS, CLASSES)).astype(np.float32)
WEIGHT = np.random.default_rng(9).normal(size=(CLASSES, WIDTH)).astype(np.float32)
GOOD = {"features": FEATURES, "targets": TARGETS}


@every_format
@pytest.mark.parametrize("targets", [{"targets": TARGETS}, {"counts": COUNTS}], ids=["ids", "counts"])
def test_every_format_gives_the_same(tmp_path, extension, targets):
    read = features_from_file(save(tmp_path, extension, features=FEATURES, **targets))
    np.testing.assert_allclose(read.rows, FEATURES, rtol=1e-6)
    assert read.targets.tolist() == next(iter(targets.values())).tolist()
    assert next(read.blocks(4))[0].dtype == torch.float32


def test_lists_in_a_column(tmp_path):
    read = features_from_file(save_parquet_lists(tmp_path / "a.parquet", x=FEATURES, y=TARGETS))
    np.testing.assert_array_equal(read.rows, FEATURES)
    assert read.targets.tolist() == TARGETS.tolist()


@pytest.mark.parametrize("extension", ["npz", "npy", "safetensors"])
@pytest.mark.parametrize("bias", [None, np.arange(CLASSES, dtype=np.float32)])
def test_a_head_comes_along(tmp_path, extension, bias):
    head = {"weight": WEIGHT} | ({} if bias is None else {"bias": bias})
    path = save(tmp_path, extension, embeddings=FEATURES, labels=TARGETS, **head)
    weight, shift = head_from_file(path, width=WIDTH)
    assert torch.equal(weight, torch.from_numpy(WEIGHT))
    assert shift.tolist() == (np.zeros(CLASSES) if bias is None else bias).tolist()
    assert features_from_file(path).targets.tolist() == TARGETS.tolist()


@pytest.mark.parametrize("extension", ["npz", "npy", "safetensors"])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_what_can_be_mapped_is_not_read_into_memory(tmp_path, extension, kind):
    values = FEATURES.astype(kind)
    read = features_from_file(save(tmp_path, extension, features=values, targets=TARGETS))
    assert isinstance(read.rows, np.memmap)
    np.testing.assert_array_equal(read.rows, values)


def test_other_layouts_and_types_are_converted(tmp_path):
    kinds = (np.asfortranarray(FEATURES), FEATURES.astype(">f4"), (FEATURES * 100).astype(np.int16))
    for number, values in enumerate(kinds):
        read = features_from_file(save_npz(tmp_path / f"{number}.npz", features=values, targets=TARGETS))
        np.testing.assert_array_equal(np.asarray(read.rows, np.float32), values.astype(np.float32))
    np.savez_compressed(tmp_path / "small.npz", features=FEATURES, targets=TARGETS)
    read = features_from_file(tmp_path / "small.npz")
    assert not isinstance(read.rows, np.memmap)
    np.testing.assert_array_equal(read.rows, FEATURES)


def test_the_digest_is_of_features_and_targets(tmp_path):
    made = [(FEATURES, TARGETS), (FEATURES + 1, TARGETS), (FEATURES, TARGETS[::-1].copy())]
    digests = []
    for number, (rows, ids) in enumerate([*made, made[0]]):
        path = save_npz(tmp_path / f"{number}.npz", features=rows, targets=ids)
        digests.append(features_from_file(path).digest)
    assert len(set(digests)) == 3 and digests[0] == digests[3]


def test_a_set_may_stand_in_front_of_names_and_ood_rows_have_no_class(tmp_path):
    path = save_npz(tmp_path / "a.npz", B_Features=FEATURES, b_labels=TARGETS, counts=COUNTS)
    assert features_from_file(path, prefix="B_").targets.tolist() == TARGETS.tolist()
    ood = features_from_file(path, prefix="B_", labelled=False)
    assert ood.targets.tolist() == [-1] * ROWS


def spoiled(value):
    rows = FEATURES.astype(np.float64)
    rows[6, 2] = value
    return rows


@pytest.mark.parametrize(
    ("named", "arrays"),
    [
        ("`path`.*finite.* nan in row 6", {**GOOD, "features": spoiled(np.nan)}),
        ("`path`.*float32.* 1e\\+300 in row 6", {**GOOD, "features": spoiled(1e300)}),
        ("`features`", {**GOOD, "features": FEATURES[0]}),
        ("`features`", {**GOOD, "features": FEATURES[:0]}),
        ("`features`", {**GOOD, "features": FEATURES.astype(str)}),
        ("`features`", {**GOOD, "x": FEATURES}),
        ("`path`.* features .*got targets in", {"targets": TARGETS}),
        ("`path`.* targets .*got features in", {"features": FEATURES}),
        ("`targets`", {**GOOD, "targets": TARGETS[:5]}),
        ("`targets`", {**GOOD, "targets": COUNTS}),
        ("`targets`.* -1 in row 0", {**GOOD, "targets": TARGETS - 1}),
        ("`targets`.*text 'ant'", {**GOOD, "targets": np.array(["ant"] * ROWS)}),
        ("`path`.* got targets and counts in", {**GOOD, "counts": COUNTS}),
        ("`counts`.* row 0", {"features": FEATURES, "counts": -COUNTS}),
        ("`counts`", {"features": FEATURES, "counts": COUNTS[:3]}),
        ("`counts`", {"features": FEATURES, "counts": COUNTS[:, :1]}),
    ],
)
def test_mistakes_in_files_are_refused(tmp_path, named, arrays):
    path = save_npz(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=f"^adapt: .*{named}") as refused:
        features_from_file(path)
    assert "\n" not in f"{refused.value}"


@pytest.mark.parametrize(
    ("named", "head"),
    [
        ("weight", {"weight": np.ones((3, 4))}),
        ("weight", {"weight": np.ones((1, WIDTH))}),
        ("weight", {"weight": WEIGHT * np.nan}),
        ("bias", {"bias": np.ones(3)}),
        ("bias", {"weight": WEIGHT, "bias": np.ones(2)}),
    ],
)
def test_heads_that_do_not_fit_are_refused(tmp_path, named, head):
    with pytest.raises(ValueError, match=f"`{named}`"):
        head_from_file(save_npz(tmp_path / "a.npz", **GOOD, **head), width=WIDTH)


def test_one_wrong_bit_in_an_archive_is_found_though_it_is_mapped(tmp_path):
    path = save_npz(tmp_path / "a.npz", **GOOD)
    whole = bytearray(path.read_bytes())
    values = np.ascontiguousarray(FEATURES).tobytes()
    whole[whole.find(values[:64]) + len(values) // 2] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"`path`.*a\.npz.*CRC-32"):
        features_from_file(path)


def test_pickles_and_broken_files_are_refused(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(FEATURES))
    (tmp_path / "b.npz").write_bytes(pickle.dumps(FEATURES))
    np.savez(tmp_path / "c.npz", features=np.array([object()]), targets=TARGETS)
    np.save(tmp_path / "d_features.npy", FEATURES)
    whole = (tmp_path / "d_features.npy").read_bytes()
    (tmp_path / "d_features.npy").write_bytes(whole[:-7])
    good = save(tmp_path, "safetensors", **GOOD)
    good.write_bytes(good.read_bytes()[:-7])
    for name in ("a.pkl", "b.npz", "c.npz", "d_features.npy", "model.safetensors"):
        with pytest.raises(ValueError, match="`path`"):
            features_from_file(tmp_path / name)
        refused("`train`", tmp_path / name)


# All sets of an adaptation.


def rows(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def ids(features):
    return (np.asarray(features) @ WEIGHT.T).argmax(1)


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
    """Refused when read, or before any head is fitted."""

    def refitted():
        sets, init = feature_sets(*args, **options)
        refit(sets, init=init)

    with pytest.raises(ValueError, match=f"^adapt: .*{named}") as error:
        refitted()
    assert "\n" not in f"{error.value}"


@pytest.fixture
def files(tmp_path):
    """A file for each set."""
    sizes = {"a": 40, "b": 12, "c": 9}
    made = {name: arrays(count, seed) for seed, (name, count) in enumerate(sizes.items())}
    return {name: (save_npz(tmp_path / f"{name}.npz", **one), one) for name, one in made.items()}


def test_a_file_for_each_set(files, tmp_path):
    (a, train), (b, validation), (c, test) = files.values()
    far = save_npz(tmp_path / "far.npz", features=rows(7, 5))
    near = save_npz(tmp_path / "near.npz", **arrays(8, 6))
    given = {"ood": {"far": far, "near": f"{near}"}, "background": far}
    sets, init = feature_sets(a, validation=b, test=c, **given)
    assert same(sets.train, train) and same(sets.validation, validation) and same(sets.test, test)
    assert init is None and isinstance(sets.train.rows, np.memmap)
    assert sets.background.targets.tolist() == [-1] * 7
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
        sets, init = feature_sets(path)
    assert same(sets.train, train) and same(sets.validation, validation) and same(sets.test, test)
    np.testing.assert_array_equal(sets.ood["svhn"].rows, far["features"])
    assert sets.ood["svhn"].targets.tolist() == [-1] * 4
    assert torch.equal(init[0], torch.from_numpy(WEIGHT)) and init[1].tolist() == [0] * CLASSES
    with pytest.raises(ValueError, match="`validation`"):
        feature_sets(path, validation=0.5)  # there are validation rows already


def test_counts_stay_counts_and_other_arrays_are_ignored(tmp_path):
    votes = np.ones((6, 4), np.float32)
    held = archive(train={"features": rows(6), "counts": votes}, validation=arrays(5, 1))
    sets, _ = feature_sets(save_npz(tmp_path / "a.npz", **held, targets=np.zeros(2, int)))
    assert sets.train.targets.tolist() == votes.tolist() and sets.validation.targets.dim() == 1


def test_a_fraction_is_held_out_in_class_proportion_by_the_seed(files):
    a, train = files["a"]
    sets, _ = feature_sets(a, validation=0.25)
    assert (len(sets.train), len(sets.validation)) == (30, 10)
    both = np.concatenate([np.asarray(sets.train.rows), np.asarray(sets.validation.rows)])
    assert sorted(map(bytes, both)) == sorted(map(bytes, train["features"]))
    counts = [np.bincount(one, minlength=CLASSES) for one in (train["targets"], sets.validation.targets)]
    assert np.abs(counts[1] - counts[0] / 4).max() <= 1
    assert ids(sets.validation.rows).tolist() == sets.validation.targets.tolist()
    again, other = (feature_sets(a, validation=0.25, split_seed=seed)[0].validation for seed in (0, 1))
    np.testing.assert_array_equal(np.asarray(again.rows), np.asarray(sets.validation.rows))
    assert not np.array_equal(np.asarray(other.rows), np.asarray(again.rows))
    assert len(feature_sets(a, validation=7)[0].validation) == 7
    assert sets.val_fraction is None
    held_out, _ = feature_sets(a)
    assert len(held_out.validation) == 8 and held_out.val_fraction == 0.2  # so that `refit` warns


def test_files_of_the_cache_serve_as_others_do(tmp_path, files):
    cache, model = FeatureCache(tmp_path / "cache"), torch.nn.Flatten()

    def kept(count, seed):
        one = arrays(count, seed)
        data = torch.from_numpy(one["features"]), torch.from_numpy(one["targets"])
        return cache.path(extract(model, model, data, key_parts={}, cache=cache).digest), one

    (a, train), (b, validation) = kept(20, 11), kept(10, 12)
    sets, init = feature_sets(a, validation=b, test=files["c"][0], ood={"other": b})
    assert same(sets.train, train) and same(sets.validation, validation)
    assert init is None and sets.ood["other"].targets.tolist() == [-1] * 10
    refused("`train`.*directory", tmp_path, validation=b)


def test_a_head_of_other_classes_is_no_obstacle(tmp_path):
    """For new labels the head that comes along is that of the old ones."""
    for classes in (2, 9):
        head = {"weight": np.ones((classes, WIDTH), np.float32), "bias": np.ones(classes, np.float32)}
        sets, init = feature_sets(save_npz(tmp_path / "a.npz", **arrays(20), **head), validation=0.3)
        assert len(init[0]) == classes and sets.train.targets.max() == 2


@pytest.mark.filterwarnings("ignore:adapt. the chosen head")
def test_sets_that_were_read_can_be_refitted(tmp_path):
    held = archive(train=arrays(200), validation=arrays(90, 1), test=arrays(50, 2))
    config = AdaptConfig(kl_weights=(0.01,), controls=())
    for name, content, options, labels in (
        ("a", {**held, "weight": WEIGHT}, {}, "same"),
        ("b", arrays(200), {"validation": 0.3}, "new"),
    ):
        sets, init = feature_sets(save_npz(tmp_path / f"{name}.npz", **content), **options)
        found = refit(sets, init=init, adapt_config=config)
        assert (found.labels, found.classes) == (labels, CLASSES)


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("`validation`.* got 3", {"validation": "narrow"}),
        ("`validation`", {"validation": "absent"}),
        ("`validation`", {"validation": 0}),
        ("`test`.* 0 to 2.* 4 in .*more.npz", {"validation": "b", "test": "more"}),
        ("`validation`.* 0 to 2.* 4 in .*more.npz", {"validation": "more"}),
        ("`test`.* features", {"validation": "b", "test": "bare"}),
        (r"`ood\['x'\]`", {"validation": "b", "ood": "narrow"}),
        ("`background`.* got 3", {"validation": "b", "background": "narrow"}),
        ("`train`.* 0 to 1", {"validation": "votes of 2"}),
        ("`test`.* 4 classes", {"validation": "votes of 3", "test": "votes of 4"}),
        ("`train`", {"train": "absent", "validation": "b"}),
        ("`train`.* none of 6", {"train": "no votes", "validation": 0.2}),
        ("`train`.*two rows of a class", {"train": "tiny"}),
        ("`train`.* 2 classes", {"train": "single", "validation": 0.2}),
    ],
)
def test_sets_that_do_not_go_together_are_refused(files, tmp_path, named, options):
    made = {
        "narrow": {"features": rows(6)[:, :3], "targets": np.arange(6) % 3},
        "more": {"features": rows(6), "targets": np.arange(6) % 5},
        "tiny": {"features": rows(3), "targets": np.arange(3)},
        "single": {"features": rows(6), "targets": np.zeros(6, int)},
        "bare": {"targets": np.arange(3)},
        "no votes": {"features": rows(6), "counts": np.zeros((6, 3))},
        **{f"votes of {k}": {"features": rows(6), "counts": np.ones((6, k))} for k in (2, 3, 4)},
    }
    paths = {name: save_npz(tmp_path / f"{name}.npz", **one) for name, one in made.items()}
    paths |= {"absent": tmp_path / "no.npz", **{name: path for name, (path, _) in files.items()}}
    given = {key: paths.get(value, value) for key, value in {"train": "a", **options}.items()}
    if "ood" in given:
        given["ood"] = {"x": given["ood"]}
    refused(named, given.pop("train"), **given)


def test_a_number_of_validation_rows_must_leave_some(files):
    with pytest.raises(ValueError, match="`validation`"):
        feature_sets(files["a"][0], validation=400)


@pytest.mark.parametrize(
    ("named", "sets"),
    [
        ("`train`.* train_targets", {"train": {"features": rows(6)}, "validation": arrays(5)}),
        ("`train`.* pool_", {"train": arrays(6), "pool": arrays(5)}),
        ("`train`", {"validation": arrays(6)}),
        ("`validation`", {"train": arrays(6), "val": arrays(5), "validation": arrays(5)}),
        ("`targets`.*train_labels", {"train": {**arrays(6), "labels": np.zeros(6)}}),
        ("`train`.* train_targets and train_counts", {"train": {**arrays(6), "counts": np.ones((6, 3))}}),
    ],
)
def test_archives_that_are_not_clear_are_refused(tmp_path, named, sets):
    refused(named, save_npz(tmp_path / "a.npz", **archive(**sets)), validation=0.5)


def test_one_set_may_have_other_arrays_beside_it_but_no_other_sets(tmp_path, files):
    one = arrays(20)
    path = save_npz(tmp_path / "one.npz", **one, raw_features=rows(3))
    assert same(feature_sets(path, validation=path)[0].train, one)
    refused("features and train_features", save_npz(tmp_path / "two.npz", **one, **archive(train=one)))
    path = save_npz(tmp_path / "m.npz", **archive(train=arrays(9), validation=arrays(6), ood_x=arrays(4)))
    refused("`validation`.*`validation_features`", path, validation=files["b"][0])
    refused(r"`ood\['x'\]`", path, ood={"x": files["b"][0]})

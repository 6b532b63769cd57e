"""Features computed elsewhere are read from files of every format, and mistakes in them are refused."""

import pickle

import numpy as np
import pytest
import torch

from beliefmatch.adaptation.stored import FeatureNames, features_from_file
from prediction_files import every_format, save, save_npz, save_parquet_lists

ROWS, WIDTH, CLASSES = 9, 4, 3
FEATURES = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
TARGETS = np.arange(ROWS) % CLASSES
COUNTS = np.random.default_rng(1).integers(1, 5, (ROWS, CLASSES)).astype(np.float32)
HEAD = {"weight": np.ones((CLASSES, WIDTH), np.float32), "bias": np.arange(CLASSES, dtype=np.float32)}


@every_format
def test_every_format_gives_the_same(tmp_path, extension):
    read = features_from_file(save(tmp_path, extension, features=FEATURES, targets=TARGETS))
    np.testing.assert_allclose(np.asarray(read.features.rows), FEATURES, rtol=1e-6)
    assert read.features.targets.tolist() == TARGETS.tolist() and read.classes == CLASSES
    assert set(read.recognised) == {"features", "targets"} and read.weight is None
    assert next(read.features.blocks(4))[0].dtype == torch.float32


@every_format
def test_counts_are_counts(tmp_path, extension):
    read = features_from_file(save(tmp_path, extension, features=FEATURES, counts=COUNTS))
    assert read.features.targets.tolist() == COUNTS.tolist() and read.classes == CLASSES
    assert set(read.recognised) == {"features", "counts"}


def test_lists_in_a_column(tmp_path):
    read = features_from_file(save_parquet_lists(tmp_path / "a.parquet", x=FEATURES, y=TARGETS))
    np.testing.assert_array_equal(read.features.rows, FEATURES)
    assert read.recognised == {"features": "x", "targets": "y"}


@pytest.mark.parametrize("extension", ["npz", "npy", "safetensors"])
def test_a_head_comes_along(tmp_path, extension):
    read = features_from_file(save(tmp_path, extension, embeddings=FEATURES, labels=TARGETS, **HEAD))
    assert torch.equal(read.weight, torch.from_numpy(HEAD["weight"]))
    assert torch.equal(read.bias, torch.from_numpy(HEAD["bias"]))
    assert list(read.recognised) == ["features", "weight", "bias", "targets"]


@pytest.mark.parametrize("extension", ["npz", "npy", "safetensors"])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_what_can_be_mapped_is_not_read_into_memory(tmp_path, extension, kind):
    values = FEATURES.astype(kind)
    read = features_from_file(save(tmp_path, extension, features=values, targets=TARGETS))
    assert isinstance(read.features.rows, np.memmap)
    np.testing.assert_array_equal(read.features.rows, values)


def test_other_layouts_and_types_are_converted(tmp_path):
    for number, values in enumerate(
        (np.asfortranarray(FEATURES), FEATURES.astype(">f4"), (FEATURES * 100).astype(np.int16))
    ):
        read = features_from_file(save_npz(tmp_path / f"{number}.npz", features=values, targets=TARGETS))
        np.testing.assert_array_equal(np.asarray(read.features.rows, np.float32), values.astype(np.float32))
    np.savez_compressed(tmp_path / "small.npz", features=FEATURES, targets=TARGETS)
    read = features_from_file(tmp_path / "small.npz")
    assert not isinstance(read.features.rows, np.memmap)
    np.testing.assert_array_equal(read.features.rows, FEATURES)


def test_the_digest_is_of_features_and_targets(tmp_path):
    made = [(FEATURES, TARGETS), (FEATURES + 1, TARGETS), (FEATURES, TARGETS[::-1].copy())]
    digests = []
    for number, (rows, ids) in enumerate([*made, made[0]]):
        path = save_npz(tmp_path / f"{number}.npz", features=rows, targets=ids)
        digests.append(features_from_file(path).features.digest)
    assert len(set(digests)) == 3 and digests[0] == digests[3]


def test_names_may_be_given_and_ood_rows_have_no_class(tmp_path):
    path = save_npz(tmp_path / "a.npz", layer4=FEATURES, cls=TARGETS, counts=COUNTS)
    read = features_from_file(path, names=FeatureNames(features="layer4", targets="cls"))
    assert read.features.targets.tolist() == TARGETS.tolist()
    assert read.recognised == {"features": "layer4", "targets": "cls"}
    ood = features_from_file(path, names=FeatureNames(features="layer4"), labelled=False)
    assert ood.features.targets.tolist() == [-1] * ROWS and ood.classes is None


def test_class_names_turn_text_into_ids(tmp_path):
    texts = np.array(["cat", "dog", "owl"])[TARGETS]
    path = save_npz(tmp_path / "a.npz", features=FEATURES, targets=texts)
    assert features_from_file(path, class_names=["owl", "dog", "cat"]).features.targets[0] == 2


def spoiled(value):
    rows = FEATURES.astype(np.float64)
    rows[6, 2] = value
    return rows


GOOD = {"features": FEATURES, "targets": TARGETS}


@pytest.mark.parametrize(
    ("named", "arrays", "options"),
    [
        ("`features`.* row 6", {**GOOD, "features": spoiled(np.nan)}, {}),
        ("`features`.* row 6", {**GOOD, "features": spoiled(1e300)}, {}),
        ("`features`", {**GOOD, "features": FEATURES[0]}, {}),
        ("`features`", {**GOOD, "features": FEATURES.astype(str)}, {}),
        ("`features`", {**GOOD, "x": FEATURES}, {}),
        ("`features`", {"targets": TARGETS}, {}),
        ("`features`", GOOD, {"names": FeatureNames(features="h")}),
        ("`targets`", {"features": FEATURES}, {}),
        ("`targets`", {**GOOD, "targets": TARGETS[:5]}, {}),
        ("`targets`", {**GOOD, "targets": COUNTS}, {}),
        ("`targets`.* 2 in row 2", GOOD, {"classes": 2}),
        ("`targets`.* -1 in row 0", {**GOOD, "targets": TARGETS - 1}, {}),
        ("`targets` or `counts`", {**GOOD, "counts": COUNTS}, {}),
        ("class 1 and 1 more", {**GOOD, "targets": TARGETS * 2}, {}),
        ("class 3 ", GOOD, {"classes": 4}),
        ("1 class ", {**GOOD, "targets": TARGETS * 0}, {}),
        ("class 1 ", {"features": FEATURES, "counts": COUNTS * [1, 0, 1]}, {}),
        ("`counts`.* row 0", {"features": FEATURES, "counts": -COUNTS}, {}),
        ("`counts`", {"features": FEATURES, "counts": COUNTS[:3]}, {}),
        ("`weight`", {**GOOD, "weight": np.ones((3, 5))}, {}),
        ("`bias`", {**GOOD, "bias": np.ones(3)}, {}),
        ("`classes`", {**GOOD, **HEAD}, {"classes": 4}),
    ],
)
def test_mistakes_in_files_are_refused(tmp_path, named, arrays, options):
    path = save_npz(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=f"^features_from_file: .*{named}") as refused:
        features_from_file(path, **options)
    assert "\n" not in f"{refused.value}"


def test_a_class_may_have_no_rows_where_nothing_is_fitted(tmp_path):
    path = save_npz(tmp_path / "a.npz", features=FEATURES, targets=TARGETS)
    assert features_from_file(path, classes=7, every_class=False).classes == 7


def test_one_wrong_bit_in_an_archive_is_found_though_it_is_mapped(tmp_path):
    path = save_npz(tmp_path / "a.npz", features=FEATURES, targets=TARGETS)
    whole = bytearray(path.read_bytes())
    values = np.ascontiguousarray(FEATURES).tobytes()
    place = whole.find(values[:64]) + len(values) // 2
    whole[place] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"features_from_file: .*a\.npz.*CRC-32"):
        features_from_file(path)


def test_pickles_and_broken_files_are_refused(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(FEATURES))
    with pytest.raises(ValueError, match="`path`"):
        features_from_file(tmp_path / "a.pkl")
    (tmp_path / "b.npz").write_bytes(pickle.dumps(FEATURES))
    np.savez(tmp_path / "c.npz", features=np.array([object()]), targets=TARGETS)
    np.save(tmp_path / "d_features.npy", FEATURES)
    whole = (tmp_path / "d_features.npy").read_bytes()
    (tmp_path / "d_features.npy").write_bytes(whole[:-7])
    good = save(tmp_path, "safetensors", features=FEATURES, targets=TARGETS)
    good.write_bytes(good.read_bytes()[:-7])
    for name in ("b.npz", "c.npz", "d_features.npy", "model.safetensors"):
        with pytest.raises(ValueError, match="`path`"):
            features_from_file(tmp_path / name)

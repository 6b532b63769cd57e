"""Datasets of the hub, from tables made here: no test goes online."""

import io

import numpy as np
import pytest

from beliefmatch.data import load, load_ood, raw
from beliefmatch.data.config import DataConfig
from image_files import CLASSES, encoded, labels, picture, pixels, save_parquet

datasets = pytest.importorskip("datasets")

IMAGES, LABELS = pixels(30, 8, 8), labels(30)


def table(images=IMAGES, ids=LABELS, column="img", label="fine_label"):
    cells = [{"bytes": encoded(image), "path": None} for image in images]
    names = datasets.ClassLabel(names=list(CLASSES))
    features = datasets.Features({column: datasets.Image(), label: names})
    return datasets.Dataset.from_dict({column: cells, label: [int(i) for i in ids]}, features=features)


@pytest.fixture
def hub(monkeypatch):
    """What is asked of the hub, answered with small tables."""
    asked = []

    def answer(path, config=None, *, split, **options):
        asked.append((path, config, split))
        assert not options
        images, ids = (IMAGES, LABELS) if split == "train" else (IMAGES[:9], LABELS[:9])
        column, label = ("img", "fine_label") if "cifar100" in path else ("image", "label")
        return table(images, ids, column, label)

    monkeypatch.setattr(datasets, "load_dataset", answer)
    return asked


def test_a_named_dataset_is_asked_for_with_its_own_words(hub):
    dataset = load(DataConfig(name="cifar100", workers=0))
    assert hub == [("uoft-cs/cifar100", None, "train"), ("uoft-cs/cifar100", None, "test")]
    assert dataset.class_names == CLASSES and dataset.facts["form"] == "hub"
    assert dataset.facts["counts"] == {"train": 24, "validation": 6, "test": 9}
    assert np.array_equal(dataset.test.images, IMAGES[:9])
    assert dataset.test.targets.tolist() == LABELS[:9].tolist()


def test_variants_and_validation_images_to_report_on(hub):
    assert load(DataConfig(name="svhn", workers=0)).train.shape == (3, 8, 8)
    dataset = load(DataConfig(name="food101", workers=0))
    assert hub == [
        ("ufldl-stanford/svhn", "cropped_digits", "train"),
        ("ufldl-stanford/svhn", "cropped_digits", "test"),
        ("ethz/food101", None, "train"),
        ("ethz/food101", None, "validation"),
    ]
    assert dataset.train.shape == (3, 224, 224) and not dataset.facts["in_memory"]


def test_ood_images_need_the_test_split_alone(hub):
    name, source = load_ood("mnist", load(DataConfig()))
    assert hub == [("ylecun/mnist", None, "test")]
    assert name == "mnist" and len(source) == 9 and source.shape == (1, 8, 8)


def test_rows_are_read_by_workers_too(hub):
    import torch

    alone, together = (load(DataConfig(name="food101", size=66, workers=n)).train for n in (0, 2))
    parts = list(torch.arange(24).split(8))
    for one, other in zip(alone.batches(parts), together.batches(parts), strict=True):
        assert torch.equal(one.inputs, other.inputs)


def test_a_hub_out_of_reach_is_told_in_one_line_with_the_remedy(monkeypatch):
    def offline(*_, **__):
        raise ConnectionError("Couldn't reach the Hub\n(no network)")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(
        ValueError, match=r"cannot load cifar10 \(Couldn't reach the Hub \(no network\)\)"
    ) as caught:
        load(DataConfig(name="cifar10"))
    assert "--data-dir" in f"{caught.value}" and "\n" not in f"{caught.value}"


def test_other_columns_are_told(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: table(column="picture"))
    with pytest.raises(ValueError, match="cifar10/train must have a column img, got picture, fine_label"):
        load(DataConfig(name="cifar10"))


def test_parquet_files_too_large_for_the_memory_are_laid_out_by_the_library(tmp_path, monkeypatch):
    path = save_parquet(tmp_path / "a.parquet", IMAGES, LABELS)
    small = load(DataConfig(name=f"{path}", workers=0))
    monkeypatch.setattr(raw, "IN_MEMORY_PARQUET_BYTES", 10)
    original = datasets.load_dataset
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *a, **k: original(*a, **k, cache_dir=f"{tmp_path / 'cache'}")
    )
    large = load(DataConfig(name=f"{path}", workers=0))
    assert small.facts["digest"] == large.facts["digest"]


def test_images_may_be_files_that_rows_point_at(tmp_path, hub):
    from beliefmatch.data.images import HubImages, UnreadableImage

    file = io.BytesIO()
    picture(IMAGES[0]).save(file, "PNG")
    (tmp_path / "a.png").write_bytes(file.getvalue())
    cells = [{"bytes": None, "path": f"{tmp_path / name}"} for name in ("a.png", "b.png")]
    held = datasets.Dataset.from_dict({"image": cells}).cast_column("image", datasets.Image(decode=False))
    rows = HubImages(held, "image", "home")
    assert np.array_equal(np.asarray(rows.read(0)), IMAGES[0])
    with pytest.raises(UnreadableImage, match="No such file"):
        rows.read(1)
    assert rows.name(1) == "home[1]"

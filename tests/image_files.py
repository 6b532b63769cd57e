"""Tiny images for tests of the data, in every form they may lie in."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

CLASSES = ("ant", "bee", "cat")


def pixels(count=12, height=6, width=6, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, channels), dtype=np.uint8)


def labels(count=12, classes=3):
    return np.arange(count) % classes


def picture(values):
    return Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values)


def encoded(values, form="PNG", **options):
    file = io.BytesIO()
    picture(values).save(file, form, **options)
    return file.getvalue()


def save_folder(directory, images, ids, classes=CLASSES):
    """A folder for each class; files in the order of the images."""
    for name in classes:
        (directory / name).mkdir(parents=True, exist_ok=True)
    for number, (image, label) in enumerate(zip(images, ids, strict=True)):
        (directory / classes[label] / f"{number:04d}.png").write_bytes(encoded(image))
    return directory


def save_parquet(path, images, ids, column="image", label="label", metadata=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"bytes": encoded(image), "path": f"{n}.png"} for n, image in enumerate(images)]
    table = pa.table({column: cells, label: pa.array(ids)})
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


def save_npz(path, images, ids, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, images=images, labels=ids, **more)
    return path

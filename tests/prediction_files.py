"""Files of predictions in every format, for tests."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

ROWS, CLASSES = 7, 3
LOGITS = np.random.default_rng(0).normal(size=(ROWS, CLASSES)) * 3
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
TARGETS = np.array([0, 1, 2, 2, 1, 0, 1])
IMAGES = np.random.default_rng(1).integers(0, 256, (ROWS, 4, 5), dtype=np.uint8)


def save_npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def save_npy(path: Path, **arrays: np.ndarray) -> Path:
    """One file for each array; the path of the first."""
    paths = [path.with_name(f"{path.stem}_{name}.npy") for name in arrays]
    for place, values in zip(paths, arrays.values(), strict=True):
        np.save(place, values)
    return paths[0]


def save_safetensors(path: Path, **arrays: np.ndarray) -> Path:
    save_file({name: torch.from_numpy(values.copy("C")) for name, values in arrays.items()}, path)
    return path


def save_parquet_lists(path: Path, **arrays: np.ndarray) -> Path:
    pq.write_table(pa.table({name: values.tolist() for name, values in arrays.items()}), path)
    return path


def flat(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Matrices as one column for each class, in an order that is not theirs."""
    columns = {}
    for name, values in arrays.items():
        if values.ndim == 1:
            columns[name] = values
        else:
            columns |= {f"{name}_{k}": values[:, k] for k in reversed(range(values.shape[1]))}
    return columns


def save_parquet(path: Path, **arrays: np.ndarray) -> Path:
    pq.write_table(pa.table(flat(arrays)), path)
    return path


def save_csv(path: Path, **arrays: np.ndarray) -> Path:
    columns = flat(arrays)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


SAVERS = {
    "npz": save_npz,
    "npy": save_npy,
    "safetensors": save_safetensors,
    "parquet": save_parquet,
    "csv": save_csv,
}
every_format = pytest.mark.parametrize("extension", SAVERS)


def save(place: Path, extension: str, **arrays: np.ndarray) -> Path:
    return SAVERS[extension](place / f"model.{extension}", **arrays)


class Bomb:
    """Leaves a trace if it is ever unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (f"{self.trace}",)

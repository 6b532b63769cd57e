"""Sizes in bytes: as people write them, as they read them, and of features before there are any."""

import re

__all__ = ["bytes_of", "format_bytes", "planned_bytes", "shard_rows_for"]

_UNITS = {"": 1, **{f"{prefix}b": 1000**power for power, prefix in enumerate(["", "k", "m", "g", "t"])}}
_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}
_ITEM_BYTES = {"float32": 4, "float16": 2}
_SHARD_ROWS, _SHARD_BYTES = 4096, 64 << 20
_EACH_SHARD, _EACH_SET = 1024, 16384  # headers, checksums and descriptions take no more


def bytes_of(size: int | str, *, caller: str, name: str = "cache_size") -> int:
    """A number of bytes, from itself or from a text.

    >>> bytes_of("10GB", caller="f"), bytes_of("1.5 MiB", caller="f"), bytes_of(7, caller="f")
    (10000000000, 1572864, 7)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", f"{size}".lower())
    if isinstance(size, bool) or found is None or found[2] not in _UNITS:
        expected = "a number of bytes such as 10GB, 500 MB or 4GiB"
        raise ValueError(f"{caller}: `{name}` must be {expected}, got {size!r}.")
    return int(float(found[1]) * _UNITS[found[2]]) if "." in found[1] else int(found[1]) * _UNITS[found[2]]


def format_bytes(count: float) -> str:
    """A number of bytes in three digits.

    >>> format_bytes(999), format_bytes(1_638_400_000), format_bytes(52e6)
    ('999 B', '1.64 GB', '52 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def shard_rows_for(features: int, dtype: str = "float32") -> int:
    """Rows of a shard: 4096, or fewer (a power of two) where these would take more than 64 MiB."""
    rows = _SHARD_ROWS
    while rows > 1 and rows * features * _ITEM_BYTES[dtype] > _SHARD_BYTES:
        rows //= 2
    return rows


def planned_bytes(rows: int, features: int, dtype: str = "float32", *, classes: int | None = None) -> int:
    """What a set of features takes on the disk at most, with its targets and checksums.

    Args:
        rows: examples.
        features: of each.
        dtype: "float32" or "float16".
        classes: K where the targets are counts (N, K); None where they are class ids.
    """
    shards = -(-rows // shard_rows_for(features, dtype))
    each = features * _ITEM_BYTES[dtype] + (8 if classes is None else 4 * classes)
    return rows * each + shards * _EACH_SHARD + _EACH_SET

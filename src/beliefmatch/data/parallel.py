"""Reading in several processes, with results in order and without a touch on the caller's state of chance."""

import warnings
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

__all__ = ["in_order"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    function: Callable[[Item], Result], items: Sequence[Item], *, workers: int, pinned: bool = False
) -> Generator[Result, None, None]:
    """The function of each item, in their order; in this process if there are no `workers` or one item.

    `function` must be importable by the workers, and may not raise.
    """
    if workers == 0 or len(items) < 2:
        yield from map(function, items)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on machines with fewer cores than workers, and on forks
        loader = DataLoader(
            _Calls(function, items),
            batch_size=None,
            num_workers=min(workers, len(items)),
            collate_fn=_as_is,
            pin_memory=pinned,
            generator=torch.Generator(),  # or the loader would draw from the global one
        )
        results = iter(loader)
    try:
        yield from results
    except RuntimeError as error:
        if "DataLoader worker" not in f"{error}":
            raise
        remedy = "give them more memory (/dev/shm in a container), or set `workers` to fewer or to 0"
        raise RuntimeError(f"data: a process that reads images died; {remedy}.") from error


class _Calls(Dataset, Generic[Item, Result]):
    def __init__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> None:
        self._function, self._items = function, items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Result:
        return self._function(self._items[index])


def _as_is(value: Any) -> Any:
    return value

"""The configuration of data; read without torch."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from beliefmatch._config import Config, Count, Index, NonEmpty, NonNegative, Positive, Seed
from beliefmatch._errors import fail
from beliefmatch.data.preprocessing import Augment, require_channels

__all__ = [
    "LABEL_COLUMNS",
    "TABLE_SUFFIXES",
    "TARGET_COLUMNS",
    "TEXT_COLUMNS",
    "TEXT_SUFFIXES",
    "DataConfig",
    "TextConfig",
    "is_table",
    "is_text",
    "name_of_set",
]

TEXT_COLUMNS = ("text", "sentence", "utterance", "query", "content")
LABEL_COLUMNS = ("label", "intent", "category", "class", "target")
"""Names that columns of sentences and of their classes are recognised by, in any case."""
TEXT_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
"""Files of labelled sentences."""
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
"""Files of tables."""
TARGET_COLUMNS = ("target", "label", "class", "y")
"""Names that the column of classes of a table is recognised by, in any case."""

_IMAGE_COLUMNS = ("image", "img", "images")


class DataConfig(Config, frozen=True, kw_only=True):
    """Which images or rows of a table, and how they are split, read and augmented.

    Args:
        name: "digits", which are embedded; a name of `DATASETS` such as "cifar10"; a path to a folder of
            images, to Parquet files of images or to .npz files; or a path to a .csv, .tsv or .parquet table,
            or to a directory of such tables, one for each part.
        directory: where a named dataset is stored on this machine; from the hub if not given.
        validation: images of the train part kept for validation: a share below 1, or a number.
        limit: largest number of training images; all if not given.
        labels: number of training images that keep their labels, equally many of each class; all if not
            given. An epoch has as many steps as it would have with all labels.
        split_seed: of the split. It stays fixed while the training's seed varies, so that no image is used
            for validation in one run and for training in another.
        augment: "crop_flip", "crop", "none", or "auto" for the dataset's default.
        shift: largest shift of small images by "crop", in pixels; an eighth of their side if not given.
        noise: standard deviation of Gaussian noise on the inputs in training, which are scaled to about
            unit variance before.
        size: side in pixels to which images are resized. If not given, all must have the same size.
        corrupt: what to do with images that cannot be read: "stop", or "skip", which counts them.
        workers: processes that read large images.
        mean: of each channel, for pixels between 0 and 1, as a pretrained network expects it; the dataset's
            default if not given. One number makes images grey, three make them coloured.
        std: of each channel, likewise.
        margin: the short side to which an image is resized, over `size`, which is then cut out of the centre;
            1 keeps all of the short side. If not given: 1 up to 64 pixels, else 256/224.
        target: column of the classes of a table; one of `TARGET_COLUMNS` if not given.
        drop: columns of a table that are left out.
    """

    name: NonEmpty = "digits"
    directory: str | None = None
    validation: Positive = 0.2
    limit: Count | None = None
    labels: Count | None = None
    split_seed: Seed = 0
    augment: Literal["auto", Augment] = "auto"
    shift: Index | None = None
    noise: NonNegative = 0.0
    size: Annotated[int, Meta(ge=1, le=8192)] | None = None
    corrupt: Literal["stop", "skip"] = "stop"
    workers: Index = 2
    mean: tuple[float, ...] | None = None
    std: tuple[Positive, ...] | None = None
    margin: Annotated[float, Meta(ge=1)] | None = None
    target: NonEmpty | None = None
    drop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        mean, std = self.mean, self.std
        if mean is not None and std is not None:
            require_channels("DataConfig", mean, std)
        elif mean is not None or std is not None:
            raise fail("DataConfig", f"`mean` and `std` must be given together, got {mean} and {std}.")


class TextConfig(Config, frozen=True, kw_only=True):
    """Which sentences, and how they are split.

    Args:
        name: a .csv, .tsv, .jsonl or .parquet file; a directory of such files, one for each part; or
            "hf:OWNER/NAME" or "hf:OWNER/NAME:CONFIG" for a dataset on the Hugging Face hub.
        text_column: of the sentences; one of `TEXT_COLUMNS` if not given.
        label_column: of their classes, names or numbers; one of `LABEL_COLUMNS` if not given.
        validation: sentences of the train part kept for validation: a share below 1, or a number.
        limit: largest number of training sentences; all if not given.
        split_seed: of the split.
    """

    name: NonEmpty
    text_column: str | None = None
    label_column: str | None = None
    validation: Positive = 0.2
    limit: Count | None = None
    split_seed: Seed = 0


def is_text(name: str) -> bool:
    """Whether the data under a name or path are sentences, by the ending of files or the columns of Parquet.

    >>> is_text("intents.csv"), is_text("hf:clinc/clinc_oos:plus"), is_text("cifar10")
    (True, True, False)
    """
    path = Path(name).expanduser()
    if name.startswith("hf:") or (path.suffix.lower() in TEXT_SUFFIXES[:-1] and not path.is_dir()):
        return True
    columns = _columns_at(path, TEXT_SUFFIXES[:-1])
    if not isinstance(columns, set):
        return columns
    return not columns.isdisjoint(TEXT_COLUMNS) and columns.isdisjoint(_IMAGE_COLUMNS)


def is_table(name: str) -> bool:
    """Whether the data under a name or path are rows of a table, by the ending of files or the columns.

    >>> is_table("wine.csv"), is_table("cifar10")
    (True, False)
    """
    path = Path(name).expanduser()
    if path.suffix.lower() in TABLE_SUFFIXES and not path.exists():
        return True
    columns = _columns_at(path, TABLE_SUFFIXES[:-1])
    return columns.isdisjoint(_IMAGE_COLUMNS) if isinstance(columns, set) else columns


def _columns_at(path: Path, suffixes: tuple[str, ...]) -> set[str] | bool:
    """True where a file has one of the endings, the columns of Parquet in lower case, else False."""
    files = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    if any(file.is_dir() for file in files):  # of images, by class
        return False
    if any(file.suffix.lower() in suffixes for file in files):
        return True
    tables = [file for file in files if file.suffix.lower() == ".parquet"]
    if not tables:
        return False
    from beliefmatch.data.formats import ParquetFile

    return {column.lower() for column in ParquetFile(tables[0], caller="data").names}


def name_of_set(text: str) -> str:
    """Name of a dataset or OOD set that is written as a name, or as name=path.

    >>> name_of_set("svhn"), name_of_set("svhn=data/svhn.npz")
    ('svhn', 'svhn')
    """
    return text.partition("=")[0]

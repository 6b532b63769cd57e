"""Configuration of `beliefmatch adapt`, shown by `--dry-run` and kept in the record; needs no torch."""

from collections.abc import Mapping
from typing import Any, Literal

from beliefmatch._config import Config, Count, Seed
from beliefmatch.adaptation.adapt_config import AdaptConfig, require_no_background
from beliefmatch.data.config import DataConfig, TextConfig

__all__ = ["AdaptRunConfig", "FeatureAdaptConfig", "ImageAdaptConfig", "NetworkConfig", "TextAdaptConfig"]


class NetworkConfig(Config, frozen=True, kw_only=True):
    """A network, and how its features are computed.

    Args:
        model: A name of `MODELS`, `timm:NAME`, `torchvision:NAME`, `hf:NAME`, `module:factory`, or the
            directory of a run; for text `hf:NAME` or `hf:DIRECTORY`.
        options: Options that the network is built with.
        weights: File of its weights; by default those that come with the name.
        head: Name of the last layer; found automatically by default.
        validation_from: Which part gives the images to choose on: "train" holds some of its images out,
            "test" gives half of them, for networks that were trained on all of "train".
        cache_dir: Directory of the feature cache.
        cache_size: Maximum size of the feature cache on disk.
        device: Device used to extract features.
        precision: Precision of the features, "32", "bf16" or "auto"; see `extract`.
        compile: Whether the network is compiled first.
        batch_size: Number of examples in a batch when features are extracted.
    """

    model: str
    options: Mapping[str, Any] = {}
    weights: str | None = None
    head: str | None = None
    validation_from: Literal["train", "test"] = "train"
    cache_dir: str | None = None
    cache_size: str = "20GB"
    device: str = "cpu"
    precision: Literal["auto", "32", "bf16"] = "auto"
    compile: bool = False
    batch_size: Count = 32


class ImageAdaptConfig(NetworkConfig, frozen=True, kw_only=True, tag_field="inputs", tag="images"):
    """A network and images; those of the run if `data` is not given, where the model is one."""

    data: DataConfig | None = None


class TextAdaptConfig(NetworkConfig, frozen=True, kw_only=True, tag_field="inputs", tag="text"):
    """A network for sentences, and labelled sentences."""

    data: TextConfig


class FeatureAdaptConfig(Config, frozen=True, kw_only=True, tag_field="inputs", tag="features"):
    """Features that somebody else has computed.

    Args:
        train: File to fit on; it may hold the other sets and the existing head too.
        validation: File to choose on, or a fraction or number of the rows of `train`. By default a fifth of
            them, with a warning, unless `train` has validation rows of its own.
        test: File to score on.
        split_seed: Seed of the draw of validation rows.
    """

    train: str
    validation: str | float | None = None
    test: str | None = None
    split_seed: Seed = 0


class AdaptRunConfig(Config, frozen=True):
    """Images, text or features, and how heads are fitted to them.

    Args:
        given: What is adapted, and to what.
        adapt_config: How heads are fitted and chosen.
        ood: Sets that belong to no class, to report on: noise, a dataset's name, or NAME=PATH.
        background: Examples that belong to no class, to fit on: a path or the name of a dataset.
    """

    given: ImageAdaptConfig | TextAdaptConfig | FeatureAdaptConfig
    adapt_config: AdaptConfig = AdaptConfig()
    ood: tuple[str, ...] = ()
    background: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_no_background(self.adapt_config, self.background)

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
        model: a name of `MODELS`, `timm:NAME`, `torchvision:NAME`, `hf:NAME`, `module:factory`, or the
            directory of a run; for text `hf:NAME` or `hf:DIRECTORY`.
        options: of the network.
        weights: a file of them; those that come with the name if not given.
        head: name of the last layer; looked for if not given.
        validation_from: which part gives the images to choose on: "train" holds some of its images out,
            "test" gives half of them, for networks that were trained on all of "train".
        cache_dir: where features are kept.
        cache_size: that they may take.
        device: that computes them.
        precision: "32", "bf16" or "auto".
        compile: have torch compile the network first.
        batch_size: examples that are computed at a time.
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
        train: file or directory to fit on; may hold the other sets and the existing head too.
        validation: likewise to choose on; or a share or number of the rows of `train`. A fifth of them, with
            a warning, if there is nothing else.
        test: File or directory to score on.
        split_seed: of the division where there is but one set.
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

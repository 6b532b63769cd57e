"""What the options of `beliefmatch adapt` amount to: its configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beliefmatch.adaptation.adapt_config import AdaptConfig
    from beliefmatch.data.config import DataConfig
    from beliefmatch.experiments.adapt_run_config import AdaptRunConfig, FeatureAdaptConfig, ImageAdaptConfig

__all__ = ["config_of"]


def config_of(params: Mapping[str, Any]) -> "AdaptRunConfig":
    """The configuration that the parameters of the command amount to."""
    from beliefmatch.experiments.adapt_run_config import AdaptRunConfig

    given = _features(params) if params["features"] is not None else _images(params)
    return AdaptRunConfig(given, _adapt_config(params), tuple(params["ood"] or ()))


def _features(params: Mapping[str, Any]) -> "FeatureAdaptConfig":
    from beliefmatch.experiments.adapt_run_config import FeatureAdaptConfig

    for name in ("model", "weights", "data"):
        if params[name] is not None:
            raise ValueError(f"adapt: `{name}` must not come with `--features`, which replace it.")
    text = params["validation"]
    validation = text if text is None or Path(text).exists() else _share(text)
    return FeatureAdaptConfig(
        train=params["features"],
        validation=validation,
        test=params["test_features"],
        split_seed=params["split_seed"],
    )


def _images(params: Mapping[str, Any]) -> "ImageAdaptConfig":
    from beliefmatch.experiments.adapt_run_config import ImageAdaptConfig

    if params["model"] is None:
        remedy = "`--model NAME --data NAME`, or `--features FILE`"
        raise ValueError(f"adapt: `model` must be given: {remedy}.")
    if params["test_features"] is not None:
        raise ValueError("adapt: `test_features` must come with `--features`.")
    same = {name: params[name] for name in ("model", "weights", "head", "validation_from", "cache_dir")}
    same |= {name: params[name] for name in ("cache_size", "device", "precision")}
    return ImageAdaptConfig(
        **same,
        options=_options(params["model_option"] or ()),
        compile=params["compile_"],
        data=_data(params),
        batch_size=params["feature_batch"],
    )


def _data(params: Mapping[str, Any]) -> "DataConfig | None":
    from beliefmatch.data.config import DataConfig

    given = {
        "directory": params["data_dir"],
        "validation": None if params["validation"] is None else _share(params["validation"]),
        "limit": params["limit"],
        "size": params["size"],
        "margin": params["margin"],
        "mean": _numbers("mean", params["mean"]),
        "std": _numbers("std", params["std"]),
    }
    given = {name: value for name, value in given.items() if value is not None}
    if params["data"] is None:
        if given:
            raise ValueError(f"adapt: `data` must be given where {', '.join(sorted(given))} is.")
        return None
    corrupt = "skip" if params["skip_corrupt"] else "stop"
    always = {"split_seed": params["split_seed"], "corrupt": corrupt, "workers": params["workers"]}
    return DataConfig(name=params["data"], augment="none", **always, **given)


def _adapt_config(params: Mapping[str, Any]) -> "AdaptConfig":
    from beliefmatch.adaptation.adapt_config import AdaptConfig

    made = {
        "kl_weights": _numbers("kl_weight", params["kl_weight"]),
        "priors": _numbers("prior", params["prior"]),
        "seeds": tuple(range(_at_least_one("seeds", params["seeds"]))),
        "controls": tuple(name.strip() for name in params["controls"].split(",") if name.strip()),
        "batchnorm": params["train_batchnorm"],
        "risks": tuple(params["risk"]),
    }
    named = set(AdaptConfig.__struct_fields__) - set(made)
    return AdaptConfig(**made, **{name: params[name] for name in named if name in params})


def _options(texts: Any) -> dict[str, Any]:
    from beliefmatch.experiments.yaml_files import yaml_value

    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"adapt: `model_option` must be written name=value, got {text!r}.")
        options[name.strip()] = yaml_value(value.strip(), caller="adapt")
    return options


def _numbers(name: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"adapt: `{name}` must be numbers with commas between, got {text!r}.") from None


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        expected = "a share below 1, a number, or with `--features` a file"
        raise ValueError(f"adapt: `validation` must be {expected}, got {text!r}.") from None


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"adapt: `{name}` must be at least 1, got {value}.")
    return value

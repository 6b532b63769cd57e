"""The pages on methods and recipes are complete, and their examples are valid."""

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

from beliefmatch._utils import option_names
from beliefmatch.data.config import DataConfig
from beliefmatch.experiments.config import (
    NOT_IN_FINGERPRINT,
    RECIPES,
    TeacherConfig,
    config_from,
    overridden,
    recipe,
)
from beliefmatch.experiments.yaml_files import yaml_value
from beliefmatch.methods import METHODS, SEARCH
from beliefmatch.models import MODELS
from beliefmatch.semi.config import SemiConfig
from beliefmatch.train.config import EngineConfig, TrainConfig

DOCS = Path(__file__).parents[2] / "docs"
METHODS_PAGE = (DOCS / "methods.md").read_text("utf-8")
RECIPES_PAGE = (DOCS / "recipes.md").read_text("utf-8")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_chapter_with_its_options(name):
    chapter = re.search(rf"^## `{name}`\n(.*?)(?=^## )", METHODS_PAGE, re.DOTALL | re.MULTILINE)
    assert chapter is not None
    options = option_names(resolve_name(METHODS[name]))
    assert [option for option in options if f"`{option}`" not in chapter[1]] == []


def test_every_recipe_network_grid_and_setting_without_a_fingerprint_is_named():
    named = [*RECIPES, *MODELS]
    named += [f"{section}.{name}" for section, names in NOT_IN_FINGERPRINT.items() for name in names]
    assert [name for name in named if f"`{name}`" not in RECIPES_PAGE] == []
    for option, values in SEARCH.values():
        assert f"| `{option}` | {', '.join(map(str, values))} |" in METHODS_PAGE


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        ("data", DataConfig),
        ("training", TrainConfig),
        ("engine", EngineConfig),
        ("semi", SemiConfig),
        ("teacher", TeacherConfig),
    ],
)
def test_every_setting_is_listed(section, kind):
    names = ", ".join(f"`{name}`" for name in kind.__struct_fields__)
    assert f"| `{section}` | {names} |" in RECIPES_PAGE


def test_the_configuration_and_settings_of_the_page_are_valid():
    (text,) = re.findall(r"```yaml\n(.*?)```", RECIPES_PAGE, re.DOTALL)
    config = config_from(yaml_value(text, caller="test"))
    assert config.method.options == {"kl_weight": 0.01} and config.data.validation == 10000
    settings = re.findall(r"--set (\S+?)[`\s]", RECIPES_PAGE)
    assert len(settings) > 3
    for setting in settings:
        config_from(overridden(recipe("cifar"), [setting]))

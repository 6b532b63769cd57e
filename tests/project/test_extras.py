"""Missing extras, and the versions and hardware of the installation."""

import os
import platform
import sys
from importlib import import_module, metadata

import pytest

from beliefmatch._environment import Extra, Package, extras, hardware, needs, rebuild_command, versions


def test_a_missing_package_names_the_extra():
    with (
        pytest.raises(ModuleNotFoundError) as caught,
        needs("timm", extra="vision", caller="beliefmatch adapt"),
    ):
        import_module("no_such_package")
    expected = '`beliefmatch adapt` needs timm: pip install "beliefmatch[vision]"'
    assert str(caught.value) == expected
    assert caught.value.name == "no_such_package"


def test_other_errors_are_not_changed():
    with (
        pytest.raises(ModuleNotFoundError, match=r"No module named 'beliefmatch\.nowhere'"),
        needs("timm", extra="vision", caller="adapt"),
    ):
        import_module("beliefmatch.nowhere")
    with pytest.raises(ZeroDivisionError), needs("timm", extra="vision", caller="adapt"):
        _ = 1 / 0


def test_extras_are_those_of_the_installed_metadata():
    found = {extra.name: extra for extra in extras()}
    assert {"cli", "stats", "sklearn", "report", "vision"} <= set(found)
    assert not {"all", "demo", "test", "dev"} & set(found)
    assert [package.name for package in found["cli"].packages] == ["typer", "rich"]
    typer = found["cli"].packages[0]
    assert typer.installed == metadata.version("typer")
    assert typer.specifier.startswith(">=")
    assert set(found["files"].packages) < set(found["train"].packages)  # it includes them
    assert found["vision"].remedy == 'pip install "beliefmatch[vision]"'


@pytest.mark.parametrize(
    ("direct_url", "source"),
    [
        (None, "beliefmatch"),
        ('{"url": "file:///clone", "dir_info": {}}', '"beliefmatch @ file:///clone"'),
        ('{"url": "file:///clone", "dir_info": {"editable": true}}', '--editable "file:///clone"'),
        ('{"url": "file:///dist/b-py3-none-any.whl", "archive_info": {}}', "beliefmatch"),
        ('{"url": "https://host/b.tar.gz", "archive_info": {}}', '"beliefmatch @ https://host/b.tar.gz"'),
    ],
)
def test_the_package_is_rebuilt_from_where_it_was_installed(direct_url, source, monkeypatch, tmp_path):
    if direct_url is not None:
        (tmp_path / "direct_url.json").write_text(direct_url)
    monkeypatch.setattr(metadata, "distribution", lambda name: metadata.PathDistribution(tmp_path))
    assert rebuild_command().endswith(f" --no-binary beliefmatch {source}")


@pytest.mark.parametrize(
    ("installed", "specifier", "satisfied"),
    [
        ("1.4.0", ">=1.4", True),
        ("1.3.9", ">=1.4", False),
        ("2.0.dev1", ">=1.4", True),
        ("2.13.0+cpu", ">=2.6,<3", True),
        ("0.1", "", True),
        (None, "", False),
    ],
)
def test_a_package_is_satisfied_by_a_version_within_its_range(installed, specifier, satisfied):
    package = Package("anything", specifier, installed)
    assert package.satisfied is satisfied
    assert Extra("some", (package, Package("other", "", "1"))).satisfied is satisfied


def test_without_packaging_the_same_packages_are_listed_and_any_version_is_accepted(monkeypatch):
    before = extras()
    for module in ("packaging", "packaging.markers", "packaging.specifiers"):
        monkeypatch.setitem(sys.modules, module, None)
    assert extras() == before
    assert Package("anything", ">=2", "1").satisfied


def test_versions_and_hardware_are_those_of_this_machine():
    found = versions("numpy", "no-such-distribution")
    assert found == {
        "python": platform.python_version(),
        "numpy": metadata.version("numpy"),
        "no-such-distribution": "missing",
    }
    assert hardware()["logical_cores"] == os.cpu_count()
    assert hardware()["processor"]

"""What a release consists of: the long description, the wheel and how it is tried, the workflows."""

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def description():
    """The long description as setup.py hands it over."""
    setuptools = pytest.importorskip("setuptools")
    given = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(setuptools, "setup", lambda **options: given.update(options))
        runpy.run_path("setup.py")
    assert given["long_description_content_type"] == "text/markdown"
    return given["long_description"]


def test_the_long_description_is_the_readme_with_addresses_of_files_that_exist(description):
    address = re.compile(r"https://github\.com/[\w-]+/[\w-]+/(blob|raw)/v[\d.]+/([^)\"\s#]+)")
    found = address.findall(description)
    assert {kind for kind, _ in found} == {"blob", "raw"}
    for kind, path in found:
        assert (ROOT / path).is_file() and (kind == "raw") == path.endswith(".png"), path
    readme = (ROOT / "README.md").read_text("utf-8")
    assert address.sub(r"\2", description) == readme
    assert CODE.findall(description) == CODE.findall(readme)


def test_no_link_of_the_long_description_is_relative(description):
    prose = CODE.sub("", description)
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"", prose)
    targets = [one or other for one, other in links]
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def test_the_readme_is_short_and_its_sections_can_be_linked(description):
    prose = re.sub(r"^\|.*$|<[^>]+>|\]\([^)]*\)", " ", CODE.sub("", description), flags=re.MULTILINE)
    assert 600 < len([word for word in prose.split() if re.search(r"\w", word)]) < 1000
    titles = re.findall(r"^## (.+)$", description, re.MULTILINE)
    headings = {title.lower().replace(" ", "-") for title in titles}
    anchors = set(re.findall(r"\]\(#([^)]+)\)", description))
    assert anchors <= headings


def test_one_interpreter_of_each_supported_version_is_tried():
    supported = runpy.run_path(f"{TOOLS / 'wheels.py'}")["supported"]
    assert supported([sys.executable, "no-such-python", sys.executable]) == [sys.executable]
    assert supported(["no-such-python"]) == []


def test_no_python_to_try_is_one_line_and_exit_code_2(capsys):
    main = runpy.run_path(f"{TOOLS / 'wheels.py'}")["main"]
    with pytest.raises(SystemExit) as stopped:
        main(["--pythons", "no-such-python"])
    assert stopped.value.code == 2
    assert "--pythons" in capsys.readouterr().err.splitlines()[-1]


def test_the_smoke_test_accepts_this_installation(capsys):
    names = runpy.run_path(f"{TOOLS / 'smoke_test.py'}")
    names["check_loss"]()
    names["check_kernel"](native=False)
    assert capsys.readouterr().out.startswith("  kernel ")


def test_workflows_read_by_default_and_only_publishing_gets_a_token():
    yaml = pytest.importorskip("yaml")
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        workflow = yaml.safe_load(path.read_text("utf-8"))
        assert workflow["permissions"] == {"contents": "read"}, path.name
        granted = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
        pages = {"deploy": {"pages": "write", "id-token": "write"}}
        assert granted in ({}, {"publish": {"id-token": "write"}}, pages)
        if "deploy" in granted:
            assert "refs/heads/main" in workflow["jobs"]["deploy"]["if"]
        if "publish" in granted:
            assert set(workflow["jobs"]["publish"]["needs"]) == set(workflow["jobs"]) - {"publish"}
            assert "tag" in workflow["jobs"]["publish"]["if"]

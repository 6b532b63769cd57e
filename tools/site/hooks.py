"""What mkdocs calls while it builds the site: generated pages, links out of `docs/`, and formulas."""

import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, f"{Path(__file__).parent}")

from gallery import executed_cells, notebook, page_of  # noqa: E402
from generated import with_generated_parts  # noqa: E402
from mathematics import DirectiveExtension, with_mathml  # noqa: E402
from pictures import with_pictures  # noqa: E402

log = logging.getLogger("mkdocs.hooks.beliefmatch")

PAGES_OF_ROOT = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}
"""Files of the repository that are pages of the site, by their address there."""
GALLERY = {
    path.relative_to(ROOT).as_posix(): f"gallery/{path.stem}.md"
    for path in sorted(ROOT.glob("examples/gallery/*.py"))
}
"""Scripts whose executed form is a page. Pages link to the script, which exists in the repository too."""
_ADDRESSES = {"README.md": "index.md", **PAGES_OF_ROOT, **GALLERY}
_SOURCES = {address: source for source, address in PAGES_OF_ROOT.items()}
_FOLDER_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?!\w+:|#)(?P<target>[^)\s#]+)\)")
_PIECE = re.compile(
    r"<(?P<opaque>pre|math|svg|script|style)\b.*?</(?P=opaque)>|(?P<code><code\b.*?</code>)|<[^>]*>|[^<]+",
    re.DOTALL,
)
_OPTION = re.compile(r"(?<![\w-])--\w[\w-]*")
_POWER = re.compile(r"\d[\d.]*e-\d+")
_SPACE_IN_NUMBER = re.compile(r"(?<=\d) (?=[%±])|(?<=±) (?=[\d.])")
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Teach Markdown the directive of docstrings."""
    config.markdown_extensions.append(DirectiveExtension())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages that are not in `docs/`, the gallery, and files of the repository that pages link to."""
    for source, address in PAGES_OF_ROOT.items():
        files.append(File.generated(config, address, abs_src_path=f"{ROOT / source}"))
    for path in sorted(_linked_files(files)):
        files.append(File.generated(config, f"files/{path}", abs_src_path=f"{ROOT / path}"))
    for script in GALLERY:
        log.info("Executing %s", script)
        for file in _gallery_files(ROOT / script, config):
            files.append(file)
    return files


def _gallery_files(script: Path, config: MkDocsConfig) -> Iterator[File]:
    """The page of a script, and the two forms in which one takes it home."""
    cells, name = executed_cells(script), f"gallery/{script.stem}"
    links = f"Download: [notebook]({script.stem}.ipynb), [script]({script.stem}.py)."
    yield File.generated(config, f"{name}.md", content=page_of(cells, downloads=links))
    yield File.generated(config, f"{name}.ipynb", content=notebook(cells))
    yield File.generated(config, f"{name}.py", abs_src_path=f"{script}")


def _linked_files(files: Files) -> set[str]:
    """Files outside `docs/` that a page links to."""
    found = set()
    for file in files.documentation_pages():
        for link in _LINK.finditer(file.content_string):
            target = _in_repository(file.src_uri, link["target"])
            if target not in _ADDRESSES and not target.startswith("docs/") and (ROOT / target).is_file():
                found.add(target)
    return found


def on_pre_page(page: Page, config: MkDocsConfig, **_: Any) -> Page:
    """Let the edit button of a generated page lead to its source."""
    source = _SOURCES.get(page.file.src_uri)
    if page.file.generated_by and page.file.src_uri.startswith("gallery/"):
        source = f"examples/{PurePosixPath(page.file.src_uri).with_suffix('.py')}"
    if source:
        page.edit_url = f"{config.repo_url}/edit/main/{source}"
    return page


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fill in what is generated and rewrite links that leave `docs/`.

    The site has no listings of folders, so links to them become text.
    """
    markdown = with_pictures(with_generated_parts(markdown))
    markdown = _FOLDER_LINK.sub(lambda link: _without_folder(page.file.src_uri, link), markdown)
    return _LINK.sub(lambda link: _rewritten(page.file.src_uri, link), markdown)


def _without_folder(page: str, link: re.Match[str]) -> str:
    return link["text"] if (ROOT / _in_repository(page, link["target"])).is_dir() else link[0]


def _rewritten(page: str, link: re.Match[str]) -> str:
    target = _in_repository(page, link["target"])
    inside = target.removeprefix("docs/")
    address = inside if inside != target else _ADDRESSES.get(target, f"files/{target}")
    return f"{_relative(address, page)}{link['anchor'] or ''}"


def _in_repository(page: str, target: str) -> str:
    """Path in the repository of what a page links to."""
    path = PurePosixPath(_SOURCES.get(page, f"docs/{page}")).parent / target
    return os.path.normpath(f"{path}").replace(os.sep, "/")


def _relative(address: str, page: str) -> str:
    return os.path.relpath(address, PurePosixPath(page).parent).replace(os.sep, "/")


def on_page_content(html: str, **_: Any) -> str:
    """Render the formulas, and keep options, and numbers with their units and deviations, on one line."""
    return _PIECE.sub(_with_whole_numbers, with_mathml(html))


def _with_whole_numbers(piece: re.Match[str]) -> str:
    if piece["code"]:
        return _unbroken(_OPTION, piece[0]) if piece[0].startswith("<code>") else piece[0]
    if piece[0].startswith("<"):
        return piece[0]
    return _unbroken(_POWER, _SPACE_IN_NUMBER.sub("\N{NO-BREAK SPACE}", piece[0]))


def _unbroken(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(r'<span class="unbroken">\g<0></span>', text)

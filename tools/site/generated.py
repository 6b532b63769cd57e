"""Parts of the reference that are generated: commands from the command line itself, recipes from files.

A page asks for a part by a line such as `<!-- generated: commands -->`.
"""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from beliefmatch.cli.app import COMMANDS, _application
from beliefmatch.experiments.config import RECIPES, recipe

__all__ = ["with_generated_parts"]

ROOT = Path(__file__).parents[2]
_MARK = re.compile(r"^<!-- generated: (?P<part>[\w-]+) -->$", re.MULTILINE)


def with_generated_parts(markdown: str) -> str:
    """A page in which marks are replaced by the parts they name."""
    return _MARK.sub(lambda mark: "\n".join(_PARTS[mark["part"]]()), markdown)


def _commands() -> Iterator[str]:
    group = typer.main.get_command(_application(()))
    context: Any = typer.Context(group, info_name="beliefmatch")
    for name in COMMANDS:
        command = group.get_command(context, name)  # pyright: ignore[reportAttributeAccessIssue]
        own: Any = typer.Context(command, info_name=name, parent=context)
        yield f"## beliefmatch {name}\n\n{_text(command.help or '')}\n"
        yield f"```text\n{' '.join(['beliefmatch', name, *command.collect_usage_pieces(own)])}\n```\n"
        yield from _parameters(command.get_params(own))


def _parameters(parameters: list[Any]) -> Iterator[str]:
    panels: dict[str, list[str]] = {}
    for one in parameters:
        is_argument = one.param_type_name == "argument"
        if one.name == "help" or getattr(one, "hidden", False):
            continue
        panel = "Arguments" if is_argument else getattr(one, "rich_help_panel", None) or "Options"
        panels.setdefault(panel, []).append(_row(one, is_argument=is_argument))
    for panel, rows in panels.items():
        yield f"**{panel}**\n"
        name = "argument" if panel == "Arguments" else "option"
        yield f'<div class="options-box" markdown>\n\n| {name} | meaning |\n|---|---|'
        yield from rows
        yield "\n</div>\n"


def _row(parameter: Any, *, is_argument: bool) -> str:
    metavar = parameter.metavar or parameter.name.upper()
    if is_argument:
        form = metavar
    else:
        flags = ", ".join([*parameter.opts, *parameter.secondary_opts])
        form = flags if parameter.is_flag else f"{flags} {metavar}"
    default = "" if is_argument or parameter.is_flag else _default(parameter.default)
    return f"| {_code(form)} | {_text(parameter.help or '')}{default} |"


def _default(value: Any) -> str:
    shown = value is not None and value not in ([], (), "") and not callable(value)
    return f" Default: {_code(f'{value}')}." if shown else ""


def _code(text: str) -> str:
    escaped = html.escape(text, quote=False).replace("|", "&#124;").replace("{", "").replace("}", "")
    return f"<code>{escaped}</code>"


def _text(text: str) -> str:
    """Help as Markdown: options become code, and nothing else has a meaning."""
    plain = html.escape(text.replace("\\[", "["), quote=False).replace("|", "&#124;").replace("*", "\\*")
    return re.sub(r"(?<![\w`-])(--[a-z][\w-]*)(?![^`]*`[^`]*$)", r"`\1`", plain)


def _recipes() -> Iterator[str]:
    for name in RECIPES:
        source = ROOT / "src/beliefmatch/experiments/recipes" / f"{name}.yaml"
        text = source.read_text(encoding="utf-8").rstrip()
        recipe(name)  # a file that is no recipe ends the build
        yield f"## {name}\n\n```yaml\n{text}\n```\n"


_PARTS = {"commands": _commands, "recipes": _recipes}

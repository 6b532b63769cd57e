"""How griffe, which reads sources for the reference, understands this package's docstrings and classes."""

import re
from typing import Any

from griffe import Attribute, Class, Extension, Function, Object, Parameter, ParameterKind, Parameters

__all__ = ["PackageExtension"]

_STRUCTS = {"Config", "Record", "RecordPart", "Struct"}
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_DOCTEST = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class PackageExtension(Extension):
    """Renders `Example:` and doctests in the text as code, and gives classes of msgspec their constructor."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Rewrite a docstring into what the reader of Google's style knows."""
        if obj.docstring is not None:
            text = _EXAMPLE.sub("Examples:", obj.docstring.value)
            obj.docstring.value = _DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", text)

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """A struct takes its fields as keyword arguments."""
        bases = {str(base).rpartition(".")[2] for base in cls.bases}
        if not bases & _STRUCTS or "__init__" in cls.members:
            return
        fields = [
            Parameter(name, annotation=one.annotation, kind=ParameterKind.keyword_only, default=one.value)
            for name, one in cls.members.items()
            if isinstance(one, Attribute) and one.annotation is not None and not name.startswith("_")
        ]
        itself = Parameter("self", kind=ParameterKind.positional_or_keyword)
        cls.set_member(
            "__init__", Function("__init__", parameters=Parameters(itself, *fields), returns="None")
        )

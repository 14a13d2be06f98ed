"""Writes the reference of the Python SDK as Markdown, from its docstrings: ``reference.py FILE [--without-adapters]``.

Fails if a public class, method, property or function has no docstring.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

INTEGRATIONS = ("langgraph", "deepagents", "openai_agents", "inspect_ai")


class Reference:
    """The text, and the names that have no docstring."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.undocumented: list[str] = []

    def document(self, name: str, value: object) -> str:
        """Returns the docstring of a value."""
        found = inspect.getdoc(value)
        if not found:
            self.undocumented.append(name)
        return found or ""

    def heading(self, level: int, text: str) -> None:
        """Adds a heading."""
        self.lines += ["#" * level + f" {text}", ""]

    def text(self, text: str) -> None:
        """Adds a docstring. The lines below ``Args:`` become a list, those below ``::`` stay code."""
        is_code = False
        for line in text.splitlines():
            if not line.startswith(" ") and line:
                is_code = line.endswith("::")
            if is_code and line.startswith(" "):
                self.lines.append(line)
            elif line.endswith(":") and not line.startswith(" ") and " " not in line:
                self.lines += [f"**{line}**", ""]
            elif line.startswith("     "):
                self.lines.append(f"  {line.strip()}")
            elif line.startswith("    "):
                self.lines.append(f"- {line.strip()}")
            else:
                self.lines.append(line.removesuffix(":") if is_code else line)
        self.lines.append("")

    def function(self, name: str, function: FunctionType, level: int) -> None:
        """Adds a function or a method with its signature."""
        prefix = "async " if inspect.iscoroutinefunction(function) else ""
        parameters = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
        signature = inspect.signature(function).replace(parameters=parameters)
        self.heading(level, f"`{prefix}{name.rpartition('.')[2]}`")
        self.lines += ["```python", f"{prefix}{name}{signature}".replace("'", ""), "```", ""]
        self.text(self.document(name, function))

    def type(self, name: str, value: type) -> None:
        """Adds a class: its fields, properties and methods."""
        self.heading(3, f"`{name}`")
        self.text(self.document(name, value))
        if dataclasses.is_dataclass(value):
            self.lines += [f"- `{field.name}`: `{field.type}`" for field in dataclasses.fields(value)] + [""]
        for key, member in sorted(vars(value).items()):
            if key.startswith("_"):
                continue
            if isinstance(member, property):
                self.heading(4, f"`{key}`")
                self.text(self.document(f"{name}.{key}", member.fget))
            elif isinstance(member, FunctionType):
                self.function(f"{name}.{key}", member, 4)

    def module(self, title: str, module: ModuleType, names: list[str]) -> None:
        """Adds a module."""
        self.heading(2, title)
        self.text(self.document(title, module))
        for name in names:
            value: Any = getattr(module, name)
            if inspect.isclass(value):
                self.type(name, value)
            elif isinstance(value, FunctionType):
                self.function(name, value, 3)


def main(file: str, *, has_adapters: bool) -> int:
    import amalgam

    reference = Reference()
    reference.heading(1, "Reference of the Python SDK")
    reference.text(
        "`AsyncAmalgam` and the other classes whose names begin with `Async` have the same methods, to be awaited."
    )
    names = [
        name for name in amalgam.__all__ if not name.startswith(("Async", "_")) and name not in ("edits", "errors")
    ]
    reference.module("`amalgam`", amalgam, names)
    edits = [name for name, value in vars(amalgam.edits).items() if isinstance(value, FunctionType) and name[0] != "_"]
    reference.module("`amalgam.edits`", amalgam.edits, [name for name in edits if name != "annotations"])
    errors = [name for name, value in vars(amalgam.errors).items() if inspect.isclass(value) and name.endswith("Error")]
    reference.module("`amalgam.errors`", amalgam.errors, errors)
    for name in INTEGRATIONS if has_adapters else ():
        try:
            module = importlib.import_module(f"amalgam.integrations.{name}")
        except ImportError as error:
            print(f"amalgam.integrations.{name} is left out: {error}", file=sys.stderr)
            continue
        reference.module(f"`amalgam.integrations.{name}`", module, list(module.__all__))
    target = Path(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(reference.lines))
    for undocumented in reference.undocumented:
        print(f"no docstring: {undocumented}", file=sys.stderr)
    return 1 if reference.undocumented else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], has_adapters="--without-adapters" not in sys.argv))

"""The policy of a project: the permissions of agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .._text import unescape
from .service import Operation
from .tree import Json

PolicyLevel = Literal["none", "R", "RA", "RW-", "RW"]


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy as it is now."""

    text: str
    """In TOML; empty without a policy, which permits everything."""
    operation: Operation | None = None
    """The operation that made it so."""

    @classmethod
    def from_json(cls, value: Json) -> Policy:
        """Reads a ``GetPolicyResponse``."""
        return cls(value.get("text", ""), _operation(value))


@dataclass(frozen=True, slots=True)
class PolicySet:
    """The result of replacing a policy."""

    changed: bool
    """Whether the policy differs from the one before."""
    operation: Operation | None = None
    """The operation; nothing for a dry run, and if nothing changed."""
    warnings: tuple[str, ...] = ()
    """Ways round the policy that it cannot prevent."""

    @classmethod
    def from_json(cls, value: Json) -> PolicySet:
        """Reads a ``SetPolicyResponse``."""
        return cls(value.get("changed", False), _operation(value), tuple(value.get("warnings", ())))


@dataclass(frozen=True, slots=True)
class PolicyComplaint:
    """An error in the text of a policy."""

    line: int
    """From 1."""
    column: int
    """The byte in the line, from 1."""
    message: str

    @classmethod
    def from_json(cls, value: Json) -> PolicyComplaint:
        """Reads a ``PolicyComplaint``."""
        return cls(value.get("line", 0), value.get("column", 0), value.get("message", ""))


@dataclass(frozen=True, slots=True)
class Permission:
    """The permissions of an agent at a path, and the rule that gives them."""

    agent: str
    path: str
    level: PolicyLevel
    acts: tuple[str, ...]
    """Of ``read``, ``add``, ``change``, ``remove``."""
    line: int
    """The line of the rule that decided; 0 for the policy's default, and if there is no policy."""
    patterns: tuple[str, ...] = ()
    """The patterns of that rule."""
    has_policy: bool = False
    reviewer: bool = False
    """Whether the agent may decide reviews and conflicts."""

    @classmethod
    def from_json(cls, value: Json) -> Permission:
        """Reads an ``ExplainPolicyResponse``."""
        return cls(
            agent=value.get("agent", ""),
            path=unescape(value.get("path", "")),
            level=value.get("level", "none"),
            acts=tuple(value.get("acts", ())),
            line=value.get("line", 0),
            patterns=tuple(value.get("patterns", ())),
            has_policy=value.get("hasPolicy", False),
            reviewer=value.get("reviewer", False),
        )


def _operation(value: Json) -> Operation | None:
    found = value.get("operation")
    return Operation.from_json(found) if found else None

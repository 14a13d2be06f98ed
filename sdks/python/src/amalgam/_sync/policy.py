# Generated from _async/policy.py by scripts/generate_sync.py; do not edit.
"""The policy of a project: the permissions of agents."""

from __future__ import annotations

import builtins

from .._call import field_of, json_call, list_of
from .._text import PathLike, escape_path
from ..errors import NothingToRevertError
from ..models import Operation, Permission, Policy, PolicyComplaint, PolicySet
from .transport import Transport


class Policies:
    """The policy of a project, as ``client.policy``. Its text is TOML; docs/PERMISSIONS.md describes it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def show(self) -> Policy:
        """Returns the policy as it is now."""
        return self._transport.send(json_call("GET", "/policy", Policy.from_json))

    def set(self, text: str, *, dry_run: bool = False, idempotency_key: str | None = None) -> PolicySet:
        """Replaces the policy for every request that begins afterwards. Needs the scope ``admin``.

        Args:
            text: The whole policy; empty to remove it.
            dry_run: Check it, and change nothing.
            idempotency_key: The same call with the same key again returns the first result.

        Raises:
            InvalidArgumentError: The text is no policy; ``check`` lists its errors.

        """
        call = json_call(
            "PUT",
            "/policy",
            PolicySet.from_json,
            body={"text": text, "dryRun": dry_run},
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        return self._transport.send(call)

    def check(self, text: str) -> builtins.list[PolicyComplaint]:
        """Returns the errors in the text of a policy; none if it can be used."""
        parse = list_of("complaints", PolicyComplaint.from_json)
        call = json_call("POST", "/policy/check", parse, body={"text": text}, is_safe=True)
        return self._transport.send(call)

    def explain(self, path: PathLike, *, agent: str = "") -> Permission:
        """Returns the permissions of an agent at a path, and the rule that gives them.

        Args:
            path: A path in a workspace.
            agent: The agent; that of the caller's key if empty. Another one needs the scope ``admin``.

        """
        query = {"agent": agent, "path": escape_path(path)}
        return self._transport.send(json_call("GET", "/policy/explain", Permission.from_json, query=query))

    def test(self, text: str, path: PathLike, *, agent: str = "") -> Permission:
        """Returns the permissions that an agent would have under another policy. Needs the scope ``admin``."""
        query = {"agent": agent, "path": escape_path(path), "text": text}
        return self._transport.send(json_call("GET", "/policy/explain", Permission.from_json, query=query))

    def history(self, *, limit: int = 100) -> builtins.list[Operation]:
        """Returns the operations that changed the policy, newest first."""
        parse = list_of("operations", Operation.from_json)
        return self._transport.send(json_call("GET", "/policy/changes", parse, query={"pageSize": limit}))

    def undo(self, *, idempotency_key: str | None = None) -> Operation:
        """Takes the last change of the policy back. Returns the operation that did so.

        Raises:
            NothingToRevertError: The policy was never changed.

        """
        changes = self.history(limit=1)
        if not changes:
            raise NothingToRevertError("the policy was never changed")
        call = json_call(
            "POST",
            "/operations/undo",
            field_of("operation", Operation.from_json),
            body={"operation": f"operations/{changes[0].sequence}"},
            has_request_id=True,
            idempotency_key=idempotency_key,
        )
        return self._transport.send(call)

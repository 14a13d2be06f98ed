"""Errors of the SDK: one root, one class for each sort of failure, builtins as second bases where one fits."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any


class AmalgamError(Exception):
    """The root of all errors that the SDK raises.

    Attributes:
        message: The text for a person: the subject, the cause and often the next step.
        code: The stable number of the error; 0 for an error that did not come from the server.
        name: The stable name of the number, for example ``NOT_FOUND``.
        reason: A finer word where the server gives one, for example ``STALE_HEAD``.
        retryable: Whether the same call may succeed later without a change.
        suggestion: The next step for the caller; may be empty.
        request_id: The id under which the server logged the call; may be empty.
        details: Further facts by name, for example ``count`` or ``etag``.
        status: The HTTP status; 0 for an error that did not come from the server.

    """

    retryable_by_default = False
    suggestion_by_default = ""
    errno_by_default: int | None = None

    def __init__(
        self,
        message: str,
        *,
        code: int = 0,
        name: str = "",
        request_id: str = "",
        details: Mapping[str, Any] | None = None,
        status: int = 0,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.name = name
        self.request_id = request_id
        self.details: dict[str, Any] = dict(details or {})
        self.status = status
        self.retry_after = retry_after
        self.retryable = self.retryable_by_default
        self.suggestion = SUGGESTIONS.get(self.reason) or self.suggestion_by_default
        if self.errno_by_default is not None and isinstance(self, OSError):
            builtin: Any = self
            builtin.errno, builtin.strerror = self.errno_by_default, message

    @property
    def reason(self) -> str:
        """The finer word of the server, for example ``STALE_HEAD``; may be empty."""
        return str(self.details.get("reason", ""))

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.__getstate_dict()))

    def __getstate_dict(self) -> dict[str, Any]:
        names = ("message", "code", "name", "request_id", "details", "status", "retry_after")
        return {name: getattr(self, name) for name in names}


def _rebuild(kind: type[AmalgamError], fields: dict[str, Any]) -> AmalgamError:
    return kind(fields.pop("message"), **fields)


class AuthenticationError(AmalgamError, PermissionError):
    """The call has no API key, or one that is not valid."""

    errno_by_default = errno.EACCES
    suggestion_by_default = "Pass api_key=... or set AMALGAM_API_KEY; `amalgam key create` makes a key."


class KeyExpiredError(AuthenticationError):
    """The API key has expired."""

    suggestion_by_default = "Make a new key with `amalgam key create`."


class KeyRevokedError(AuthenticationError):
    """The API key was revoked."""

    suggestion_by_default = "Make a new key with `amalgam key create`."


class ForbiddenError(AmalgamError, PermissionError):
    """The API key does not permit the call."""

    errno_by_default = errno.EACCES
    suggestion_by_default = "Use a key with the scope and the project that the message names."


class LocalOnlyError(ForbiddenError):
    """The call exists only on the Unix socket of the server's user."""

    suggestion_by_default = "Make this call with the `amalgam` command on the server's machine."


class NotFoundError(AmalgamError, FileNotFoundError):
    """There is no such project, workspace, snapshot, label, file or key."""

    errno_by_default = errno.ENOENT


class GoneError(NotFoundError):
    """The content was purged, or dropped by retention."""


class AlreadyExistsError(AmalgamError, FileExistsError):
    """The name or the path is taken."""

    errno_by_default = errno.EEXIST
    suggestion_by_default = "Choose another name, or get the object that has this one."


class MovedError(AmalgamError):
    """The head, a file or a value is not the one that the caller read."""

    suggestion_by_default = "Read the current version, then decide again."


class StaleHeadError(MovedError):
    """The head of a workspace, or its etag, has moved."""


class StaleFileError(MovedError):
    """A file or a state value has another etag."""


class ConflictError(AmalgamError):
    """Workspaces or edits conflict."""


class MergeConflictError(ConflictError):
    """A merge has conflicts, and the caller asked for an error. Nothing was changed."""

    suggestion_by_default = 'Merge with on_conflict="review", then resolve each conflict.'


class NotPossibleError(AmalgamError):
    """The state of the object does not permit the call."""


class NotUniqueError(NotPossibleError):
    """The text to replace is not exactly once in the file; ``details["count"]`` says how often."""

    suggestion_by_default = "Read the file; take more lines around the text, or pass replace_all=True."


class PatchFailedError(NotPossibleError):
    """A hunk of a patch fits nowhere in the file; ``details["hunk"]`` says which, from 1."""

    suggestion_by_default = "Read the file and make the patch again."


class NothingToRevertError(NotPossibleError):
    """There is nothing to undo or to redo."""


class RequestIdReusedError(AmalgamError):
    """The idempotency key was used before with other arguments."""

    suggestion_by_default = "Use a new idempotency key for a new request."


class OutOfRangeError(AmalgamError):
    """The position or page is no longer available."""

    suggestion_by_default = "Read again from the beginning."


class DamagedError(AmalgamError):
    """Stored or transferred data is damaged."""

    suggestion_by_default = "Verify the store with `amalgam verify`."


class InternalError(AmalgamError):
    """A failure of the server; its log has more under the request id."""


class RateLimitedError(AmalgamError):
    """The API key has used its calls; ``retry_after`` has the seconds to wait."""

    retryable_by_default = True
    suggestion_by_default = "Wait for retry_after seconds."


class TooManyError(AmalgamError):
    """The caller has too many streams open."""

    retryable_by_default = True
    suggestion_by_default = "Close some streams, then try again."


class InvalidArgumentError(AmalgamError, ValueError):
    """The request is malformed."""


class TooLargeError(InvalidArgumentError):
    """The request is larger than the server takes."""

    suggestion_by_default = "Write large files with files.write, which sends them as a stream."


class UnavailableError(AmalgamError, ConnectionError):
    """The server is stopping, overloaded, or a proxy does not reach it."""

    retryable_by_default = True
    suggestion_by_default = "Try again in a moment."


class NoSpaceError(AmalgamError, OSError):
    """The disk or a quota of the server is full."""

    errno_by_default = errno.ENOSPC
    suggestion_by_default = "Free space on the server; nothing was lost."


class ServerTimeoutError(AmalgamError, TimeoutError):
    """The server did not finish the call before its deadline."""

    retryable_by_default = True


class CancelledError(AmalgamError):
    """The call was cancelled."""


class UnsupportedError(AmalgamError, NotImplementedError):
    """The server has no such method or path."""

    suggestion_by_default = "Check the versions of the server and of this package."


class ConnectError(AmalgamError, ConnectionError):
    """The server could not be reached, or the connection broke."""

    retryable_by_default = True
    suggestion_by_default = "Check the URL (AMALGAM_URL), and that `amalgam serve` runs there."


class RequestTimeoutError(AmalgamError, TimeoutError):
    """No answer came within the timeout of the client."""

    retryable_by_default = True
    suggestion_by_default = "Try again, or raise the timeout: client.with_options(timeout=...)."


class ProtocolError(AmalgamError):
    """The answer does not look like one of an Amalgam server."""

    suggestion_by_default = "Check that the URL is that of an Amalgam server."


class SecretsFoundError(AmalgamError, ValueError):
    """A directory has files that look like secrets; ``details["paths"]`` lists them. Nothing was sent."""

    suggestion_by_default = "Leave them out with exclude=[...], or pass allow_secrets=True."


class ExploreError(AmalgamError):
    """All attempts of an exploration failed; ``attempts`` has the error of each."""

    attempts: tuple[Any, ...] = ()


class SandboxNotFoundError(NotFoundError):
    """There is no such sandbox."""


class TemplateNotFoundError(NotFoundError):
    """There is no such template."""

    suggestion_by_default = "client.templates.list() has the templates of the server."


class CommandNotFoundError(NotFoundError):
    """The sandbox has no such command."""


class PTYNotFoundError(NotFoundError):
    """The sandbox has no such terminal."""


class SandboxLimitExceededError(TooManyError):
    """The key or the server has as many sandboxes as it may have."""

    suggestion_by_default = "Delete sandboxes that are not needed, then try again."


class PTYLimitExceededError(TooManyError):
    """The sandbox has as many terminals as it may have."""

    suggestion_by_default = "Kill a terminal, then try again."


class SandboxNotReadyError(NotPossibleError):
    """The sandbox does not run, or its agent is not connected."""

    suggestion_by_default = "sandbox.refresh() tells the state and its reason; make a new sandbox on its workspace."


class PortUnreachableError(UnavailableError):
    """Nothing listens at a port of the sandbox, or what listens does not answer."""

    suggestion_by_default = "Start the program in the sandbox first, and wait until it listens."
    retryable_by_default = False


class LimitNotEnforcedError(NotPossibleError):
    """Nothing on the server enforces a limit that was given."""

    suggestion_by_default = "Leave the limit out, or pass best_effort."


class CommandFailedError(NotPossibleError):
    """The command could not be started."""


class NotIsolatedError(UnsupportedError):
    """The server's machine cannot isolate processes, so it starts no sandbox."""

    suggestion_by_default = "The message names the setting of the server's machine to change."


class ProcessTimeoutError(ServerTimeoutError):
    """The command did not end in time; ``details`` has its ``commandId``, and ``killed`` if it was killed."""

    retryable_by_default = False


SUGGESTIONS: dict[str, str] = {
    "STALE_HEAD": "Read the head again (ws.refresh()), then decide; or commit without expected_head.",
    "STALE_FILE": "Read the file again, then decide; details has the current etag.",
    "AMBIGUOUS": "Give more digits of the id, or a full name.",
    "MOVED_SINCE": "Undo the later operations first, or restore a snapshot.",
    "BUSY": "Try again in a moment.",
    "UNCOMMITTED_CHANGES": "Commit the changes first.",
}

BY_REASON: dict[str, type[AmalgamError]] = {
    "STALE_HEAD": StaleHeadError,
    "STALE_FILE": StaleFileError,
    "NOT_UNIQUE": NotUniqueError,
    "PATCH_FAILED": PatchFailedError,
    "NOTHING_TO_REVERT": NothingToRevertError,
}

BY_NAME: dict[str, type[AmalgamError]] = {
    "UNAUTHORIZED": AuthenticationError,
    "FORBIDDEN": ForbiddenError,
    "KEY_EXPIRED": KeyExpiredError,
    "KEY_REVOKED": KeyRevokedError,
    "LOCAL_ONLY": LocalOnlyError,
    "NOT_FOUND": NotFoundError,
    "ALREADY_EXISTS": AlreadyExistsError,
    "MOVED": MovedError,
    "CONFLICT": ConflictError,
    "GONE": GoneError,
    "NOT_POSSIBLE": NotPossibleError,
    "REQUEST_ID_REUSED": RequestIdReusedError,
    "OUT_OF_RANGE": OutOfRangeError,
    "DAMAGED": DamagedError,
    "INTERNAL_ERROR": InternalError,
    "RATE_LIMITED": RateLimitedError,
    "INVALID_ARGUMENT": InvalidArgumentError,
    "TOO_LARGE": TooLargeError,
    "UNSUPPORTED_MEDIA": InvalidArgumentError,
    "UNAVAILABLE": UnavailableError,
    "NO_SPACE": NoSpaceError,
    "DEADLINE_EXCEEDED": ServerTimeoutError,
    "CANCELLED": CancelledError,
    "UNIMPLEMENTED": UnsupportedError,
    "METHOD_NOT_ALLOWED": UnsupportedError,
    "TOO_MANY": TooManyError,
    "SANDBOX_NOT_FOUND": SandboxNotFoundError,
    "TEMPLATE_NOT_FOUND": TemplateNotFoundError,
    "COMMAND_NOT_FOUND": CommandNotFoundError,
    "PTY_NOT_FOUND": PTYNotFoundError,
    "SANDBOX_LIMIT_EXCEEDED": SandboxLimitExceededError,
    "PTY_LIMIT_EXCEEDED": PTYLimitExceededError,
    "SANDBOX_NOT_READY": SandboxNotReadyError,
    "PORT_UNREACHABLE": PortUnreachableError,
    "LIMIT_NOT_ENFORCED": LimitNotEnforcedError,
    "COMMAND_FAILED": CommandFailedError,
    "NOT_ISOLATED": NotIsolatedError,
    "PROCESS_TIMEOUT": ProcessTimeoutError,
}

BY_STATUS: dict[int, type[AmalgamError]] = {
    401: AuthenticationError,
    403: ForbiddenError,
    404: NotFoundError,
    409: NotPossibleError,
    412: MovedError,
    413: TooLargeError,
    416: OutOfRangeError,
    429: RateLimitedError,
    502: UnavailableError,
    503: UnavailableError,
    504: ServerTimeoutError,
    507: NoSpaceError,
}


def error_from_body(body: Any, *, status: int, request_id: str = "", retry_after: float | None = None) -> AmalgamError:
    """Returns the error that an error body of the REST API describes."""
    found = body.get("error") if isinstance(body, dict) else None
    if not isinstance(found, dict):
        kind = BY_STATUS.get(status, InternalError if status >= 500 else ProtocolError)
        message = f"the server answered with HTTP status {status} and no error body"
        return kind(message, status=status, request_id=request_id, retry_after=retry_after)
    details = found.get("details") or {}
    name = str(found.get("name", ""))
    kind = BY_REASON.get(str(details.get("reason", "")), BY_NAME.get(name, AmalgamError))
    return kind(
        str(found.get("message", "")),
        code=int(found.get("code", 0)),
        name=name,
        request_id=str(found.get("requestId") or request_id),
        details=details,
        status=status,
        retry_after=retry_after,
    )

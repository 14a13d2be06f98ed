/** Errors of the SDK: one root, and one class for each sort of failure. */

/** What is known about a failure. */
export interface ErrorFields {
  code?: number;
  codeName?: string;
  requestId?: string;
  details?: Record<string, unknown>;
  status?: number;
  retryAfterSeconds?: number | undefined;
  /** The next step for the caller, in place of that of the class. */
  suggestion?: string | undefined;
  cause?: unknown;
}

/** The root of all errors that the SDK throws. An aborted call throws the reason of its `AbortSignal` instead. */
export class AmalgamError extends Error {
  /** Whether errors of this class may go away without a change. */
  protected static readonly retryableByDefault: boolean = false;
  /** The next step for the caller, unless the reason has a better one. */
  protected static readonly suggestionByDefault: string = "";

  /** The stable number of the error; 0 for an error that did not come from the server. */
  readonly code: number;
  /** The stable name of the number, for example `NOT_FOUND`. */
  readonly codeName: string;
  /** Whether the same call may succeed later without a change. */
  readonly retryable: boolean;
  /** The next step for the caller; may be empty. */
  readonly suggestion: string;
  /** The id under which the server logged the call; may be empty. */
  readonly requestId: string;
  /** Further facts by name, for example `count` or `etag`. */
  readonly details: Record<string, unknown>;
  /** The HTTP status; 0 for an error that did not come from the server. */
  readonly status: number;
  /** How long the server asks the caller to wait, in seconds. */
  readonly retryAfterSeconds: number | undefined;

  constructor(message: string, fields: ErrorFields = {}) {
    super(message, fields.cause === undefined ? undefined : { cause: fields.cause });
    const kind = new.target as typeof AmalgamError;
    this.name = kind.name;
    this.code = fields.code ?? 0;
    this.codeName = fields.codeName ?? "";
    this.requestId = fields.requestId ?? "";
    this.details = fields.details ?? {};
    this.status = fields.status ?? 0;
    this.retryAfterSeconds = fields.retryAfterSeconds;
    this.retryable = kind.retryableByDefault;
    this.suggestion = fields.suggestion || (SUGGESTIONS[this.reason] ?? kind.suggestionByDefault);
  }

  /** The finer word of the server, for example `STALE_HEAD`; may be empty. */
  get reason(): string {
    return String(this.details["reason"] ?? "");
  }
}

const SUGGESTIONS: Record<string, string> = {
  STALE_HEAD: "Read the head again (ws.refresh()), then decide; or commit without expectedHead.",
  STALE_FILE: "Read the file again, then decide; details has the current etag.",
  AMBIGUOUS: "Give more digits of the id, or a full name.",
  MOVED_SINCE: "Undo the later operations first, or restore a snapshot.",
  BUSY: "Try again in a moment.",
  UNCOMMITTED_CHANGES: "Commit the changes first.",
};

/** The call has no API key, or one that is not valid. */
export class AuthenticationError extends AmalgamError {
  protected static override readonly suggestionByDefault: string =
    "Pass apiKey or set AMALGAM_API_KEY; `amalgam key create` makes a key.";
}

/** The API key has expired. */
export class KeyExpiredError extends AuthenticationError {
  protected static override readonly suggestionByDefault: string = "Make a new key with `amalgam key create`.";
}

/** The API key was revoked. */
export class KeyRevokedError extends AuthenticationError {
  protected static override readonly suggestionByDefault: string = "Make a new key with `amalgam key create`.";
}

/** The API key does not permit the call. */
export class ForbiddenError extends AmalgamError {
  protected static override readonly suggestionByDefault: string =
    "Use a key with the scope and the project that the message names.";
}

/** The call exists only on the Unix socket of the server's user. */
export class LocalOnlyError extends ForbiddenError {
  protected static override readonly suggestionByDefault: string =
    "Make this call with the `amalgam` command on the server's machine.";
}

/** There is no such project, workspace, snapshot, label, file or key. */
export class NotFoundError extends AmalgamError {}

/** The content was purged, or dropped by retention. */
export class GoneError extends NotFoundError {}

/** The name or the path is taken. */
export class AlreadyExistsError extends AmalgamError {
  protected static override readonly suggestionByDefault: string =
    "Choose another name, or get the object that has this one.";
}

/** The head, a file or a value is not the one that the caller read. */
export class MovedError extends AmalgamError {
  protected static override readonly suggestionByDefault: string = "Read the current version, then decide again.";
}

/** The head of a workspace, or its etag, has moved. */
export class StaleHeadError extends MovedError {}

/** A file or a state value has another etag. */
export class StaleFileError extends MovedError {}

/** Workspaces or edits conflict. */
export class ConflictError extends AmalgamError {}

/** A merge has conflicts, and the caller asked for an error. Nothing was changed. */
export class MergeConflictError extends ConflictError {
  protected static override readonly suggestionByDefault: string =
    'Merge with onConflict: "review", then resolve each conflict.';
}

/** The state of the object does not permit the call. */
export class NotPossibleError extends AmalgamError {}

/** The text to replace is not exactly once in the file; `details.count` says how often. */
export class NotUniqueError extends NotPossibleError {
  protected static override readonly suggestionByDefault: string =
    "Read the file; take more lines around the text, or pass replaceAll: true.";
}

/** A hunk of a patch fits nowhere in the file; `details.hunk` says which, from 1. */
export class PatchFailedError extends NotPossibleError {
  protected static override readonly suggestionByDefault: string = "Read the file and make the patch again.";
}

/** There is nothing to undo or to redo. */
export class NothingToRevertError extends NotPossibleError {}

/** The idempotency key was used before with other arguments. */
export class RequestIdReusedError extends AmalgamError {
  protected static override readonly suggestionByDefault: string = "Use a new idempotency key for a new request.";
}

/** The position or page is no longer available. */
export class OutOfRangeError extends AmalgamError {
  protected static override readonly suggestionByDefault: string = "Read again from the beginning.";
}

/** Stored or transferred data is damaged. */
export class DamagedError extends AmalgamError {
  protected static override readonly suggestionByDefault: string = "Verify the store with `amalgam verify`.";
}

/** A failure of the server; its log has more under the request id. */
export class InternalError extends AmalgamError {}

/** The API key has used its calls; `retryAfterSeconds` has the time to wait. */
export class RateLimitedError extends AmalgamError {
  protected static override readonly retryableByDefault: boolean = true;
  protected static override readonly suggestionByDefault: string = "Wait for retryAfterSeconds.";
}

/** The caller has too many streams open. */
export class TooManyError extends AmalgamError {
  protected static override readonly retryableByDefault: boolean = true;
  protected static override readonly suggestionByDefault: string = "Close some streams, then try again.";
}

/** The request is malformed. */
export class InvalidArgumentError extends AmalgamError {}

/** The request is larger than the server takes. */
export class TooLargeError extends InvalidArgumentError {
  protected static override readonly suggestionByDefault: string =
    "Write large files with files.write, which sends them as a stream.";
}

/** The server is stopping, overloaded, or a proxy does not reach it. */
export class UnavailableError extends AmalgamError {
  protected static override readonly retryableByDefault: boolean = true;
  protected static override readonly suggestionByDefault: string = "Try again in a moment.";
}

/** The disk or a quota of the server is full. */
export class NoSpaceError extends AmalgamError {
  protected static override readonly suggestionByDefault: string = "Free space on the server; nothing was lost.";
}

/** The server did not finish the call before its deadline. */
export class ServerTimeoutError extends AmalgamError {
  protected static override readonly retryableByDefault: boolean = true;
}

/** The call was cancelled. */
export class CancelledError extends AmalgamError {}

/** The server has no such method or path. */
export class UnsupportedError extends AmalgamError {
  protected static override readonly suggestionByDefault: string =
    "Check the versions of the server and of this package.";
}

/** The server could not be reached, or the connection broke. */
export class ConnectError extends AmalgamError {
  protected static override readonly retryableByDefault: boolean = true;
  protected static override readonly suggestionByDefault: string =
    "Check the URL (AMALGAM_URL), and that `amalgam serve` runs there.";
}

/** No answer came within the timeout of the client. */
export class RequestTimeoutError extends AmalgamError {
  protected static override readonly retryableByDefault: boolean = true;
  protected static override readonly suggestionByDefault: string =
    "Try again, or raise the timeout: client.withOptions({ timeoutMs }).";
}

/** The answer does not look like one of an Amalgam server. */
export class ProtocolError extends AmalgamError {
  protected static override readonly suggestionByDefault: string =
    "Check that the URL is that of an Amalgam server.";
}

/** A directory has files that look like secrets; `details.paths` lists them. Nothing was sent. */
export class SecretsFoundError extends AmalgamError {
  protected static override readonly suggestionByDefault: string =
    "Leave them out with exclude, or pass allowSecrets: true.";
}

/** All attempts of an exploration failed; `attempts` has the error of each. */
export class ExploreError extends AmalgamError {
  constructor(
    message: string,
    readonly attempts: readonly { readonly error?: unknown }[],
    fields: ErrorFields = {},
  ) {
    super(message, fields);
  }
}

/** There is no such sandbox. */
export class SandboxNotFoundError extends NotFoundError {}

/** There is no such template. */
export class TemplateNotFoundError extends NotFoundError {
  protected static override readonly suggestionByDefault: string =
    "client.templates.list() has the templates of the server.";
}

/** The sandbox has no such command. */
export class CommandNotFoundError extends NotFoundError {}

/** The sandbox has no such terminal. */
export class PTYNotFoundError extends NotFoundError {}

/** The key or the server has as many sandboxes as it may have. */
export class SandboxLimitExceededError extends TooManyError {
  protected static override readonly suggestionByDefault: string =
    "Delete sandboxes that are not needed, then try again.";
}

/** The sandbox has as many terminals as it may have. */
export class PTYLimitExceededError extends TooManyError {
  protected static override readonly suggestionByDefault: string = "Kill a terminal, then try again.";
}

/** The sandbox does not run, or its agent is not connected. */
export class SandboxNotReadyError extends NotPossibleError {
  protected static override readonly suggestionByDefault: string =
    "sandbox.refresh() tells the state and its reason; make a new sandbox on its workspace.";
}

/** Nothing listens at a port of the sandbox, or what listens does not answer. */
export class PortUnreachableError extends UnavailableError {
  protected static override readonly suggestionByDefault: string =
    "Start the program in the sandbox first, and wait until it listens.";
  protected static override readonly retryableByDefault: boolean = false;
}

/** Nothing on the server enforces a limit that was given. */
export class LimitNotEnforcedError extends NotPossibleError {
  protected static override readonly suggestionByDefault: string = "Leave the limit out, or pass bestEffort.";
}

/** The command could not be started. */
export class CommandFailedError extends NotPossibleError {}

/** The server's machine cannot isolate processes, so it starts no sandbox. */
export class NotIsolatedError extends UnsupportedError {
  protected static override readonly suggestionByDefault: string =
    "The message names the setting of the server's machine to change.";
}

/** The command did not end in time; `details` has its `commandId`, and `killed` if it was killed. */
export class ProcessTimeoutError extends ServerTimeoutError {
  protected static override readonly retryableByDefault: boolean = false;
}

type ErrorClass = new (message: string, fields?: ErrorFields) => AmalgamError;

const BY_REASON: Record<string, ErrorClass> = {
  STALE_HEAD: StaleHeadError,
  STALE_FILE: StaleFileError,
  NOT_UNIQUE: NotUniqueError,
  PATCH_FAILED: PatchFailedError,
  NOTHING_TO_REVERT: NothingToRevertError,
};

const BY_NAME: Record<string, ErrorClass> = {
  UNAUTHORIZED: AuthenticationError,
  FORBIDDEN: ForbiddenError,
  KEY_EXPIRED: KeyExpiredError,
  KEY_REVOKED: KeyRevokedError,
  LOCAL_ONLY: LocalOnlyError,
  NOT_FOUND: NotFoundError,
  ALREADY_EXISTS: AlreadyExistsError,
  MOVED: MovedError,
  CONFLICT: ConflictError,
  GONE: GoneError,
  NOT_POSSIBLE: NotPossibleError,
  REQUEST_ID_REUSED: RequestIdReusedError,
  OUT_OF_RANGE: OutOfRangeError,
  DAMAGED: DamagedError,
  INTERNAL_ERROR: InternalError,
  RATE_LIMITED: RateLimitedError,
  INVALID_ARGUMENT: InvalidArgumentError,
  TOO_LARGE: TooLargeError,
  UNSUPPORTED_MEDIA: InvalidArgumentError,
  UNAVAILABLE: UnavailableError,
  NO_SPACE: NoSpaceError,
  DEADLINE_EXCEEDED: ServerTimeoutError,
  CANCELLED: CancelledError,
  UNIMPLEMENTED: UnsupportedError,
  METHOD_NOT_ALLOWED: UnsupportedError,
  TOO_MANY: TooManyError,
  SANDBOX_NOT_FOUND: SandboxNotFoundError,
  TEMPLATE_NOT_FOUND: TemplateNotFoundError,
  COMMAND_NOT_FOUND: CommandNotFoundError,
  PTY_NOT_FOUND: PTYNotFoundError,
  SANDBOX_LIMIT_EXCEEDED: SandboxLimitExceededError,
  PTY_LIMIT_EXCEEDED: PTYLimitExceededError,
  SANDBOX_NOT_READY: SandboxNotReadyError,
  PORT_UNREACHABLE: PortUnreachableError,
  LIMIT_NOT_ENFORCED: LimitNotEnforcedError,
  COMMAND_FAILED: CommandFailedError,
  NOT_ISOLATED: NotIsolatedError,
  PROCESS_TIMEOUT: ProcessTimeoutError,
};

const BY_STATUS: Record<number, ErrorClass> = {
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
};

/** Returns the error that an error body of the REST API describes. */
export function errorFromBody(
  body: unknown,
  status: number,
  requestId = "",
  retryAfterSeconds?: number,
  suggestion?: string,
): AmalgamError {
  const found = (body as { error?: unknown } | null | undefined)?.error;
  if (typeof found !== "object" || found === null) {
    const kind = BY_STATUS[status] ?? (status >= 500 ? InternalError : ProtocolError);
    const message = `the server answered with HTTP status ${status} and no error body`;
    return new kind(message, { status, requestId, retryAfterSeconds });
  }
  const fields = found as Record<string, unknown>;
  const details = (fields["details"] ?? {}) as Record<string, unknown>;
  const codeName = String(fields["name"] ?? "");
  const kind = BY_REASON[String(details["reason"] ?? "")] ?? BY_NAME[codeName] ?? AmalgamError;
  return new kind(String(fields["message"] ?? ""), {
    code: Number(fields["code"] ?? 0),
    codeName,
    requestId: String(fields["requestId"] || requestId),
    details,
    status,
    retryAfterSeconds,
    suggestion,
  });
}

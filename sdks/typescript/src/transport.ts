/** Sends calls, and sends them again where that is safe. Knows the form of the API, not its nouns. */
import { setMaxListeners } from "node:events";

import {
  AmalgamError,
  CancelledError,
  ConnectError,
  InvalidArgumentError,
  ProtocolError,
  RateLimitedError,
  RequestTimeoutError,
  UnavailableError,
  errorFromBody,
} from "./errors.js";
import { OPERATIONS, type Operations } from "./generated/api.js";
import { type AnswerHeaders, type Content, type HttpResponse, NodeSender, type Sender, isStream } from "./http.js";
import { LOCAL_URL, LocalStore, defaultStore, userName } from "./local.js";
import { segment } from "./text.js";
import { VERSION } from "./version.js";

const ROOT = "/api/v1";
const RETRY_STATUSES: ReadonlySet<number> = new Set([429, 502, 503, 504]);
const RETRY_DELAY_MS_MAX = 60_000;
/** The connection failed before a request could be sent. */
const UNSENT_CODES: ReadonlySet<string> = new Set([
  "ECONNREFUSED",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENOENT",
  "ENOTFOUND",
  "UND_ERR_CONNECT_TIMEOUT",
]);

/** How a client calls its server. */
export interface Options {
  /** The address of the server; without one the local store of this user, whose process is started if it does not run. */
  readonly url: string;
  /** The API key. */
  readonly apiKey: string;
  /** The project; empty for the only project of the key, or `default`. */
  readonly project: string;
  /** The time to wait for an answer, and for each piece of it. */
  readonly timeoutMs: number;
  /** How often a safe call is sent again. */
  readonly retries: number;
  /** The delay before the first retry. */
  readonly retryDelayMs: number;
  /** The factor by which the delay grows with each retry. */
  readonly retryBackoff: number;
  /** The author of what the caller does in the local store. */
  readonly actor: string;
}

/** Options of every call. */
export interface CallOptions {
  /** Ends the call when it is aborted. The call then throws the reason of the signal. */
  signal?: AbortSignal | undefined;
  /** The timeout of this call instead of the client's. */
  timeoutMs?: number | undefined;
}

/** Options of a call that changes something and can be made safe to repeat. */
export interface ChangeOptions extends CallOptions {
  /** The same call with the same key again returns the first result. A new one is made without it. */
  idempotencyKey?: string | undefined;
}

export type { Content } from "./http.js";

type OperationName = keyof Operations;
/** Calls with one answer, and calls with a stream of them. */
export type UnaryName = { [N in OperationName]: (typeof OPERATIONS)[N]["isStream"] extends true ? never : N }[OperationName];
export type StreamName = { [N in OperationName]: (typeof OPERATIONS)[N]["isStream"] extends true ? N : never }[OperationName];

type Loose<T> = { [K in keyof T]?: T[K] | undefined };
/** The fields of a call: those of its path, and those of its query or of its body. */
export type Input<N extends OperationName> = (object extends Operations[N]["path"]
  ? { path?: undefined }
  : { path: Operations[N]["path"] }) & {
  query?: Loose<Operations[N]["query"]>;
  body?: Loose<NonNullable<Operations[N]["body"]>>;
};

/** A request below the root of the API. */
export interface RawRequest {
  verb: string;
  /** Encoded, with the query. */
  path: string;
  headers?: Record<string, string>;
  content?: Content | undefined;
  /** Whether the request may be sent again although the first one may have been done. */
  isSafe: boolean;
  /** A status above 299 that the caller reads. */
  accepted?: number;
}

/** An HTTP answer with its whole body. */
export interface RawAnswer {
  status: number;
  headers: AnswerHeaders;
  content: Uint8Array;
}

/** A server-sent event. */
export interface ServerEvent {
  data: string;
  id: string;
}

/** Returns the options of a client; the environment has those that were not given. */
export function completeOptions(given: Partial<Options>): Options {
  const environment = globalThis.process?.env ?? {};
  const url = given.url || environment["AMALGAM_URL"] || LOCAL_URL;
  if (!/^https?:\/\//.test(url)) {
    throw new InvalidArgumentError(`url ${JSON.stringify(url)}: it begins with http:// or https://`);
  }
  return {
    url: url.replace(/\/+$/, "").replace(/\/api\/v1$/, ""),
    apiKey: given.apiKey ?? environment["AMALGAM_API_KEY"] ?? "",
    project: given.project ?? environment["AMALGAM_PROJECT"] ?? "",
    timeoutMs: given.timeoutMs ?? 30_000,
    retries: given.retries ?? 3,
    retryDelayMs: given.retryDelayMs ?? 1_000,
    retryBackoff: given.retryBackoff ?? 2,
    actor: given.actor ?? (url === LOCAL_URL ? userName() : ""),
  };
}

/** Returns the store of a client; nothing for one that has a server. */
export function localStore(options: Options, directory: string | undefined): LocalStore | undefined {
  if (options.url === LOCAL_URL) return new LocalStore(directory || defaultStore());
  if (directory === undefined) return undefined;
  throw new InvalidArgumentError("a client has a URL or a store, not both");
}

/** One attempt of a request: its abort signal and its timeout, which each piece of both bodies starts again. */
class Attempt {
  readonly controller = new AbortController();
  hasTimedOut = false;
  private hasEnded = false;
  private timer: NodeJS.Timeout | undefined;
  private readonly abort = (): void => this.controller.abort();
  private readonly expire = (): void => {
    this.hasTimedOut = true;
    this.controller.abort();
  };

  constructor(
    private readonly timeoutMs: number,
    private readonly sources: readonly AbortSignal[],
    /** Whether the attempt before it could not connect. */
    readonly isAfterConnectError: boolean,
  ) {
    this.restartTimer();
    for (const source of sources) {
      // One signal may end any number of calls.
      setMaxListeners(0, source);
      source.addEventListener("abort", this.abort, { once: true });
      if (source.aborted) this.abort();
    }
  }

  restartTimer(): void {
    if (this.hasEnded) return;
    if (this.timer) this.timer.refresh();
    else this.timer = setTimeout(this.expire, this.timeoutMs);
  }

  /** Stops the timeout until `restartTimer`, while the caller works and nothing is waited for. */
  pauseTimer(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
  }

  end(): void {
    this.hasEnded = true;
    this.pauseTimer();
    for (const source of this.sources) source.removeEventListener("abort", this.abort);
  }
}

export class Transport {
  constructor(
    readonly options: Options,
    /** Ends all calls of the client when it is closed. */
    readonly lifetime: AbortController,
    /** The local store that is called; nothing if it is a server. */
    readonly store: LocalStore | undefined,
    private readonly sender: Sender = new NodeSender(),
  ) {}

  /** Returns a transport with other options that ends together with this one. */
  withOptions(changes: Partial<Options>): Transport {
    const given = Object.fromEntries(Object.entries(changes).filter(([, value]) => value !== undefined));
    return new Transport(completeOptions({ ...this.options, ...given }), this.lifetime, this.store, this.sender);
  }

  /** Ends all calls. Later ones fail. */
  close(): void {
    this.lifetime.abort();
    this.sender.close();
  }

  /** Makes a call with one answer. */
  async call<N extends UnaryName>(
    name: N,
    input: Input<N>,
    options: ChangeOptions = {},
    isSafe?: boolean,
  ): Promise<Operations[N]["answer"]> {
    const answer = await this.send(prepare(name, input, options, isSafe), options);
    return parseJson(answer) as Operations[N]["answer"];
  }

  /** Makes a call again and again, with the token of the next page, and yields each answer. */
  async *pages<N extends UnaryName>(
    name: N,
    input: Input<N>,
    options: CallOptions = {},
  ): AsyncGenerator<Operations[N]["answer"], void, undefined> {
    let token: string | undefined = "";
    do {
      const query: Record<string, unknown> = { ...input.query, pageToken: token };
      const answer: Operations[N]["answer"] = await this.call(name, { ...input, query } as Input<N>, options);
      yield answer;
      token = (answer as { nextPageToken?: string }).nextPageToken;
    } while (token);
  }

  /** Yields the messages of a stream of JSON lines. It is begun again only before its first message. */
  async *messages<N extends StreamName>(
    name: N,
    input: Input<N>,
    options: CallOptions = {},
  ): AsyncGenerator<Operations[N]["answer"], void, undefined> {
    for await (const line of this.lines(prepare(name, input, options), options)) {
      if (line) yield messageOfLine(line) as Operations[N]["answer"];
    }
  }

  /**
   * Yields the server-sent events of a stream, and nothing for each line that completes none. The server sends a comment
   * every 15 seconds, so that an idle stream does not reach the timeout.
   */
  async *events<N extends StreamName>(
    name: N,
    input: Input<N>,
    options: CallOptions = {},
    lastEventId = "",
  ): AsyncGenerator<ServerEvent | undefined, void, undefined> {
    const request = prepare(name, input, options, false);
    request.headers = { ...request.headers, accept: "text/event-stream" };
    if (lastEventId) request.headers["last-event-id"] = lastEventId;
    let fields: Record<string, string> = {};
    for await (const line of this.lines(request, options)) {
      if (line !== "") {
        const [name = "", ...rest] = line.split(":");
        const value = rest.join(":").replace(/^ /, "");
        if (name) fields[name] = name === "data" && "data" in fields ? `${fields["data"]}\n${value}` : value;
        yield undefined;
        continue;
      }
      const found = fields;
      fields = {};
      if (found["event"] === "error") {
        const value: unknown = JSON.parse(found["data"] ?? "null");
        // A command has events of this name, too.
        if (typeof (value as { error?: unknown } | null)?.error === "object") throw errorFromBody(value, 200);
      }
      yield found["data"] === undefined ? undefined : { data: found["data"], id: found["id"] ?? "" };
    }
  }

  /** Sends a request, and returns its whole answer. */
  async send(request: RawRequest, options: CallOptions): Promise<RawAnswer> {
    return this.repeated(request, options, async (attempt) => {
      const response = await this.begin(request, attempt);
      const content = await response.whole(() => attempt.restartTimer());
      const answer = { status: response.status, headers: response.headers, content };
      if (response.status > 299 && response.status !== request.accepted) throw errorOf(answer);
      return answer;
    });
  }

  /** Yields the bytes of a body as they arrive. It is begun again only before its first bytes. */
  async *pieces(request: RawRequest, options: CallOptions): AsyncGenerator<Uint8Array, void, undefined> {
    const { attempt, response } = await this.repeated(
      request,
      options,
      async (attempt) => {
        const response = await this.begin(request, attempt);
        if (response.status > 299 && response.status !== request.accepted) {
          const content = await response.whole(() => attempt.restartTimer());
          throw errorOf({ status: response.status, headers: response.headers, content });
        }
        return { attempt, response };
      },
      true,
    );
    try {
      if (response.status === request.accepted) return;
      for await (const piece of response.pieces()) {
        attempt.pauseTimer();
        yield piece;
        attempt.restartTimer();
      }
    } catch (error) {
      throw this.failure(error, request, options, attempt);
    } finally {
      attempt.end();
      // Ends the connection of a caller that does not read to the end.
      attempt.controller.abort();
    }
  }

  private async *lines(request: RawRequest, options: CallOptions): AsyncGenerator<string, void, undefined> {
    const decoder = new TextDecoder();
    let rest = "";
    for await (const piece of this.pieces(request, options)) {
      // Only LF ends a line: JSON may contain the other separators of Unicode.
      const lines = (rest + decoder.decode(piece, { stream: true })).split("\n");
      rest = lines.pop() ?? "";
      yield* lines.map((line) => line.replace(/\r$/, ""));
    }
    if (rest) yield rest;
  }

  /** Runs attempts until one succeeds, or the request must not be sent again. */
  private async repeated<T>(
    request: RawRequest,
    options: CallOptions,
    run: (attempt: Attempt) => Promise<T>,
    staysOpen = false,
  ): Promise<T> {
    const sources = [this.lifetime.signal, ...(options.signal ? [options.signal] : [])];
    let isAfterConnectError = false;
    for (let count = 0; ; count += 1) {
      const attempt = new Attempt(options.timeoutMs ?? this.options.timeoutMs, sources, isAfterConnectError);
      let isOpen = false;
      try {
        const result = await run(attempt);
        isOpen = staysOpen;
        return result;
      } catch (error) {
        const failure = this.failure(error, request, options, attempt);
        const delay = failure instanceof AmalgamError ? this.retryDelay(failure, request, count) : undefined;
        if (delay === undefined) throw failure;
        isAfterConnectError = failure instanceof ConnectError;
        await sleep(delay, sources);
      } finally {
        if (!isOpen) attempt.end();
      }
    }
  }

  private async begin(request: RawRequest, attempt: Attempt): Promise<HttpResponse> {
    const headers: Record<string, string> = {
      "user-agent": `amalgam-sdk-typescript/${VERSION}`,
      accept: "application/json",
      ...request.headers,
    };
    if (this.options.apiKey) headers["authorization"] = `Bearer ${this.options.apiKey}`;
    if (this.options.project) headers["amalgam-project"] = this.options.project;
    // A header has plain characters only; the command writes the same name.
    if (this.options.actor) headers["amalgam-actor"] = this.options.actor.replace(/[^!-~]/gu, "-");
    const socketPath = await this.store?.socket(attempt.isAfterConnectError);
    const { verb, content } = request;
    const url = `${this.options.url}${ROOT}${request.path}`;
    const onSent = (): void => attempt.restartTimer();
    return this.sender.send({ verb, url, headers, content, signal: attempt.controller.signal, socketPath, onSent });
  }

  /** Returns the error that the caller sees. */
  private failure(error: unknown, request: RawRequest, options: CallOptions, attempt: Attempt): unknown {
    if (options.signal?.aborted) return options.signal.reason;
    if (this.lifetime.signal.aborted) return new CancelledError("the client is closed");
    if (error instanceof AmalgamError) return error;
    const place = `${request.verb} ${this.options.url}${ROOT}${request.path}`;
    if (attempt.hasTimedOut) {
      const timeout = options.timeoutMs ?? this.options.timeoutMs;
      return new RequestTimeoutError(`${place}: no answer within ${timeout / 1000} s`, {
        details: { sent: true },
        cause: error,
      });
    }
    // The error of `fetch` has the one of the connection as its cause.
    type Failure = { code?: string; message?: string; cause?: Failure };
    const found = error as Failure;
    const cause = found.code === undefined ? (found.cause ?? found) : found;
    const code = cause?.code ?? "";
    const message = `${place}: ${cause?.message || code || String(error)}`;
    return new ConnectError(message, { details: { sent: !UNSENT_CODES.has(code) }, cause: error });
  }

  /**
   * Returns the delay before a failed request is sent again; nothing if it must not be. A request that was never sent, or
   * that the rate limit refused, may always be sent again. Any other one only if it is safe.
   */
  private retryDelay(error: AmalgamError, request: RawRequest, count: number): number | undefined {
    if (count >= this.options.retries || isStream(request.content)) return undefined;
    let isPermitted = false;
    if (error instanceof ConnectError || error instanceof RequestTimeoutError) {
      isPermitted = request.isSafe || error.details["sent"] === false;
    } else if (error instanceof RateLimitedError) {
      isPermitted = true;
    } else {
      isPermitted = request.isSafe && (error instanceof UnavailableError || RETRY_STATUSES.has(error.status));
    }
    if (!isPermitted) return undefined;
    // Clients that failed together must not come back together.
    const delay = this.options.retryDelayMs * this.options.retryBackoff ** count * (1 + Math.random() / 4);
    return Math.min(Math.max(delay, (error.retryAfterSeconds ?? 0) * 1000), RETRY_DELAY_MS_MAX);
  }
}

/** Returns the request of a call. */
function prepare<N extends OperationName>(
  name: N,
  input: Input<N>,
  options: ChangeOptions,
  isSafe?: boolean,
): RawRequest {
  const { verb, path: template, hasRequestId } = OPERATIONS[name];
  const fields = (input.path ?? {}) as Record<string, string>;
  const path = template.replace(/\{([^}]+)\}/g, (_, field: string) => segment(fields[field] ?? ""));
  const headers: Record<string, string> = {};
  if (hasRequestId) headers["idempotency-key"] = options.idempotencyKey ?? crypto.randomUUID();
  let content: string | undefined;
  if (input.body !== undefined) {
    content = JSON.stringify(input.body, (_, value: unknown) => (value === false ? undefined : value));
    headers["content-type"] = "application/json";
  }
  const query = queryText((input.query ?? {}) as Record<string, unknown>);
  return { verb, path: path + query, headers, content, isSafe: isSafe ?? (verb === "GET" || hasRequestId) };
}

/** Returns the text of a query. An array becomes several pairs of one name. */
export function queryText(query: Record<string, unknown>): string {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === undefined || value === null || value === false || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) pairs.append(name, String(one));
  }
  const text = pairs.toString();
  return text && `?${text}`;
}

function errorOf(answer: RawAnswer): AmalgamError {
  let body: unknown;
  try {
    body = JSON.parse(new TextDecoder().decode(answer.content));
  } catch {
    body = undefined;
  }
  const seconds = answer.headers.get("retry-after") ?? "";
  const requestId = answer.headers.get("x-request-id") ?? "";
  return errorFromBody(body, answer.status, requestId, /^\d+$/.test(seconds) ? Number(seconds) : undefined);
}

/** Returns the JSON of an answer. */
export function parseJson(answer: RawAnswer): unknown {
  try {
    return JSON.parse(new TextDecoder().decode(answer.content));
  } catch (error) {
    const message = `the answer with status ${answer.status} is not JSON`;
    throw new ProtocolError(message, { status: answer.status, cause: error });
  }
}

/** Returns the message of a line of a stream. Throws the error with which the stream ended. */
function messageOfLine(line: string): unknown {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch (error) {
    throw new ProtocolError("a line of the stream is not JSON", { cause: error });
  }
  if (typeof (value as { error?: unknown } | null)?.error === "object") throw errorFromBody(value, 200);
  return value;
}

/** Waits. Ends at once when a signal is aborted; the next attempt then fails. */
export async function sleep(milliseconds: number, signals: readonly AbortSignal[]): Promise<void> {
  if (signals.some((signal) => signal.aborted)) return;
  await new Promise<void>((resolve) => {
    const end = (): void => {
      clearTimeout(timer);
      for (const signal of signals) signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    for (const signal of signals) signal.addEventListener("abort", end, { once: true });
  });
}

/**
 * Sends HTTP requests, by `node:http` or by a `fetch` of the user's own.
 *
 * A small call by `node:http` takes a fraction of the processor time of `fetch`, and reaches Unix sockets.
 */
import { Agent as HttpAgent, type ClientRequest, type IncomingMessage, request as httpRequest } from "node:http";
import { Agent as HttpsAgent, request as httpsRequest } from "node:https";
import { Readable } from "node:stream";
import type { ReadableStream as NodeReadableStream } from "node:stream/web";

/** A longer body is sent in pieces of this length. */
const PIECE_BYTES = 1 << 20;

/** The bytes of a file that is written. Only a stream cannot be sent again. */
export type Content = string | Uint8Array | Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;

/** A request with its whole address. */
export interface HttpRequest {
  verb: string;
  url: string;
  headers: Record<string, string>;
  content?: Content | undefined;
  /** Ends the request, and the reading of its answer. */
  signal: AbortSignal;
  /** The Unix socket that takes the place of the host in the address. */
  socketPath?: string | undefined;
  /** Called with each piece of a long body that the connection takes. A `fetch` does not tell them. */
  onSent?: (() => void) | undefined;
}

/** The headers of an answer. */
export interface AnswerHeaders {
  /** Returns a header by its name in lower case. */
  get(name: string): string | null;
}

/** An answer whose body has not been read. */
export interface HttpResponse {
  status: number;
  headers: AnswerHeaders;
  /** Yields the body as it arrives. */
  pieces(): AsyncIterable<Uint8Array>;
  /** Reads the whole body; calls a function for each piece of it. */
  whole(onPiece: () => void): Promise<Uint8Array>;
}

/** Sends requests to a server. */
export interface Sender {
  send(request: HttpRequest): Promise<HttpResponse>;
  /** Closes idle connections. */
  close(): void;
}

/** Returns whether contents can be read only once. */
export function isStream(content: Content | undefined): content is ReadableStream<Uint8Array> | AsyncIterable<Uint8Array> {
  return !(content === undefined || typeof content === "string" || content instanceof Uint8Array || content instanceof Blob);
}

/** Sends requests by `node:http` over connections that are used again. */
export class NodeSender implements Sender {
  private readonly http = new HttpAgent({ keepAlive: true });
  private readonly https = new HttpsAgent({ keepAlive: true });

  async send(request: HttpRequest): Promise<HttpResponse> {
    const { verb: method, content: given, signal, socketPath, onSent } = request;
    const isLongText = typeof given === "string" && given.length > PIECE_BYTES;
    const content: Content | undefined = isLongText ? Buffer.from(given) : given;
    const isTls = request.url.startsWith("https:");
    const headers: Record<string, string> = { ...request.headers };
    if (content instanceof Blob) headers["content-length"] = String(content.size);
    else if (content instanceof Uint8Array) headers["content-length"] = String(content.byteLength);
    const settings = { method, headers, signal, agent: isTls ? this.https : this.http };
    return new Promise((resolve, reject) => {
      const options = socketPath === undefined ? settings : { ...settings, socketPath };
      const outgoing = (isTls ? httpsRequest : httpRequest)(request.url, options);
      outgoing.once("response", (incoming) => resolve(new NodeResponse(incoming)));
      // Errors after the answer has begun are those of its body.
      outgoing.on("error", reject);
      write(outgoing, content, onSent);
    });
  }

  close(): void {
    this.http.destroy();
    this.https.destroy();
  }
}

function write(outgoing: ClientRequest, content: Content | undefined, onSent: (() => void) | undefined): void {
  const isShort = content instanceof Uint8Array && content.byteLength <= PIECE_BYTES;
  if (content === undefined || typeof content === "string" || isShort) {
    outgoing.end(content);
    return;
  }
  let source: Readable;
  if (content instanceof Uint8Array) source = Readable.from(slicesOf(content));
  else if (content instanceof Blob) source = Readable.from(piecesOfBlob(content));
  else if (content instanceof ReadableStream) source = Readable.fromWeb(content as NodeReadableStream);
  else source = Readable.from(content);
  source.once("error", (error) => outgoing.destroy(error));
  outgoing.once("close", () => source.destroy());
  source.pipe(outgoing);
  if (onSent) source.on("data", onSent);
}

function* slicesOf(content: Uint8Array): Generator<Uint8Array, void, undefined> {
  for (let offset = 0; offset < content.byteLength; offset += PIECE_BYTES) {
    yield content.subarray(offset, offset + PIECE_BYTES);
  }
}

/** Yields pieces of a blob; its `stream` may have all of it in one piece. */
async function* piecesOfBlob(content: Blob): AsyncGenerator<Uint8Array, void, undefined> {
  for (let offset = 0; offset < content.size; offset += PIECE_BYTES) {
    yield new Uint8Array(await content.slice(offset, offset + PIECE_BYTES).arrayBuffer());
  }
}

class NodeResponse implements HttpResponse {
  readonly status: number;
  readonly headers: AnswerHeaders;

  constructor(private readonly incoming: IncomingMessage) {
    this.status = incoming.statusCode ?? 0;
    this.headers = {
      get: (name) => {
        const value = incoming.headers[name];
        return value === undefined ? null : String(value);
      },
    };
  }

  async *pieces(): AsyncIterable<Uint8Array> {
    for await (const piece of this.incoming as AsyncIterable<Buffer>) {
      yield new Uint8Array(piece.buffer, piece.byteOffset, piece.byteLength);
    }
  }

  async whole(onPiece: () => void): Promise<Uint8Array> {
    const { incoming } = this;
    const pieces: Buffer[] = [];
    await new Promise<void>((resolve, reject) => {
      incoming.on("data", (piece: Buffer) => {
        pieces.push(piece);
        onPiece();
      });
      incoming.once("end", resolve);
      incoming.once("error", reject);
      // A body that ends early without an error event.
      incoming.once("close", () => reject(new Error("the connection ended before the answer")));
    });
    return joined(pieces);
  }
}

/** Sends requests by a function of the form of `fetch`. */
export class FetchSender implements Sender {
  constructor(private readonly fetchFunction: typeof fetch) {}

  async send(request: HttpRequest): Promise<HttpResponse> {
    const { verb: method, headers, content, signal } = request;
    const init: RequestInit & { duplex?: "half" } = { method, headers, redirect: "manual", signal };
    if (content !== undefined) {
      init.body = content as NonNullable<RequestInit["body"]>;
      if (isStream(content)) init.duplex = "half";
    }
    const response = await this.fetchFunction(request.url, init);
    const pieces = (): AsyncIterable<Uint8Array> => piecesOf(response);
    const whole = async (onPiece: () => void): Promise<Uint8Array> => {
      const found: Uint8Array[] = [];
      for await (const piece of pieces()) {
        found.push(piece);
        onPiece();
      }
      return joined(found);
    };
    return { status: response.status, headers: response.headers, pieces, whole };
  }

  close(): void {}
}

async function* piecesOf(response: Response): AsyncGenerator<Uint8Array, void, undefined> {
  const reader = response.body?.getReader();
  if (!reader) return;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

function joined(pieces: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let offset = 0;
  for (const piece of pieces) {
    whole.set(piece, offset);
    offset += piece.length;
  }
  return whole;
}

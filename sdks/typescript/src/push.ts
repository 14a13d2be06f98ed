/**
 * Sends a directory of this machine to a server by difference, with the `amalgam` program.
 *
 * The directory is captured in a store of its own in the user's cache directory, and the program sends the objects that the
 * server lacks. A later upload of the same directory reads and sends only what has changed.
 */
import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdir, realpath } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";

import { SecretsFoundError } from "./errors.js";
import type { Options } from "./transport.js";

/** A smaller directory is sent in one or two calls, which is sooner than starting the program. */
export const PUSH_BYTES_MIN = 4 << 20;
const WORKSPACE = "source";
const OUTPUT_BYTES_MAX = 64 << 20;

/** A directory that has arrived at a server. */
export interface Pushed {
  /** The workspace there; it is for one use. */
  readonly workspace: string;
  readonly snapshot: string;
  readonly sentBytes: number;
}

interface Line {
  type?: string;
  path?: string;
  snapshot?: string;
  bytes?: number;
}

/** Captures a directory, and sends the server what it lacks. Returns nothing where the program cannot do so. */
export async function pushDirectory(
  directory: string,
  exclude: readonly string[],
  options: Options,
  allowSecrets: boolean,
  signal?: AbortSignal,
): Promise<Pushed | undefined> {
  const cache = process.env["AMALGAM_UPLOAD_CACHE"] ?? "";
  // With a slash, patterns of the program mean something else.
  if (cache === "off" || exclude.some((pattern) => pattern.includes("/"))) return undefined;
  const path = await realpath(directory);
  // Other patterns leave out other files: the captures of both must not mix.
  const mark = createHash("sha256").update([path, ...exclude].join("\0")).digest("hex").slice(0, 16);
  const under = `upload-${crypto.randomUUID().slice(0, 13)}`;
  const stores = cache || defaultCache();
  await mkdir(stores, { recursive: true }).catch(() => undefined);
  const common = ["--store", join(stores, mark), "--in-process", "--json", "--no-input"];
  const message = ["--message", `files of ${directory}`];
  const captured = await run([...common, "commit", "--workspace", WORKSPACE, ...message], options, signal);
  if (captured.code !== 0) {
    const patterns = exclude.flatMap((one) => ["--exclude", one]);
    const words = ["init", path, "--workspace", WORKSPACE, "--yes", ...patterns];
    if ((await run([...common, ...words], options, signal)).code !== 0) return undefined;
  }
  const target = options.project ? `${options.url}/${options.project}` : options.url;
  const words = ["push", WORKSPACE, "--under", under, "--server", target, ...(allowSecrets ? ["--allow-secrets"] : [])];
  const { code, lines } = await run([...common, ...words], options, signal);
  const secrets = lines.flatMap(({ type, path: found }) => (type === "secret" && found ? [found] : []));
  if (secrets.length > 0 && code !== 0) {
    const text = `${directory} has contents that look like secrets: ${secrets.join(", ")}; nothing was sent`;
    throw new SecretsFoundError(text, { details: { paths: secrets } });
  }
  const pushed = lines.find(({ type }) => type === "pushed");
  if (code !== 0 || !pushed?.snapshot) return undefined;
  return { workspace: `${under}/${WORKSPACE}`, snapshot: pushed.snapshot, sentBytes: pushed.bytes ?? 0 };
}

function defaultCache(): string {
  const cache = process.env["XDG_CACHE_HOME"] ?? "";
  return join(cache.startsWith("/") ? cache : join(homedir(), ".cache"), "amalgam", "uploads");
}

/** Runs the program. A program that is missing has the code of one that failed. */
async function run(words: string[], options: Options, signal?: AbortSignal): Promise<{ code: number; lines: Line[] }> {
  signal?.throwIfAborted();
  // Other users of the machine can see arguments, so that the key is in the environment.
  const env: NodeJS.ProcessEnv = { ...process.env, AMALGAM_API_KEY: options.apiKey };
  delete env["AMALGAM_SERVER"];
  const program = process.env["AMALGAM_BIN"] ?? "amalgam";
  return new Promise((resolve) => {
    const settings = { env, signal, maxBuffer: OUTPUT_BYTES_MAX };
    execFile(program, words, settings, (error, stdout) => {
      const lines = stdout.split("\n").flatMap((line) => (line.startsWith("{") ? [JSON.parse(line) as Line] : []));
      resolve({ code: error ? 1 : 0, lines });
    });
  });
}

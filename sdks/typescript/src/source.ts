/** A directory of this machine whose files become those of a workspace: its entries, and those that look like secrets. */
import { openAsBlob } from "node:fs";
import { open, readFile, readdir, readlink, stat } from "node:fs/promises";
import { join } from "node:path";

import * as edits from "./edits.js";
import { InvalidArgumentError, SecretsFoundError } from "./errors.js";
import { escapeBytes, escapePath } from "./text.js";
import type { CallOptions } from "./transport.js";
import type { Workspace } from "./workspace.js";

const BATCH_BYTES = 4 << 20;
const BATCH_EDITS = 2000;
const SCANNED_BYTES = 256 << 10;
const SHOWN_MAX = 20;

const SECRET_NAMES: ReadonlySet<string> = new Set(
  (
    ".env .envrc .netrc _netrc .npmrc .pypirc .pgpass .my.cnf .htpasswd .git-credentials credentials credentials.json " +
    "secrets.yml secrets.yaml secrets.json secrets.toml kubeconfig id_rsa id_dsa id_ecdsa id_ed25519"
  ).split(" "),
);
const SECRET_EXTENSIONS: ReadonlySet<string> = new Set(
  "pem key p12 pfx jks keystore kdbx ovpn tfstate ppk".split(" "),
);
const EXAMPLE = /example|sample|template|dist/;
const SHAPES = new RegExp(
  [
    "-----BEGIN [A-Z ]*PRIVATE KEY-----",
    String.raw`\b(?:AKIA|ASIA)[0-9A-Z]{16}\b`,
    String.raw`\bgh[pousr]_[0-9A-Za-z]{36}`,
    String.raw`\bgithub_pat_\w{50}`,
    String.raw`\bglpat-[\w-]{20}`,
    String.raw`\bxox[bpas]-[\w-]{20}`,
    String.raw`\b[sr]k_live_[0-9A-Za-z]{20}`,
    String.raw`\bsk-(?:ant|proj)-[\w-]{40}`,
    String.raw`\bAIza[\w-]{35}`,
    String.raw`\bnpm_[0-9A-Za-z]{36}`,
    String.raw`\bpypi-[\w-]{50}`,
    String.raw`\bhf_[0-9A-Za-z]{34}`,
    String.raw`\bAGE-SECRET-KEY-1[0-9A-Z]{50}`,
  ].join("|"),
);

/** An entry of the directory. */
export interface SourceEntry {
  /** Relative to the directory. */
  readonly path: string;
  readonly hostPath: string;
  readonly mode: number;
  readonly size: number;
  readonly kind: "file" | "directory" | "symlink";
}

/** Returns the entries of a directory, parents before children. Sockets, pipes and devices are left out. */
export async function walk(directory: string, exclude: readonly string[]): Promise<SourceEntry[]> {
  const found = await stat(directory).catch(() => undefined);
  if (!found?.isDirectory()) {
    throw new InvalidArgumentError(`source ${JSON.stringify(directory)}: there is no such directory`);
  }
  const patterns = exclude.map(globExpression);
  const entries: SourceEntry[] = [];
  const visit = async (hostDirectory: string, below: string): Promise<void> => {
    const children = await readdir(hostDirectory, { withFileTypes: true });
    children.sort((one, other) => (one.name < other.name ? -1 : 1));
    for (const child of children) {
      const path = `${below}${child.name}`;
      if (path.includes("\uFFFD")) throw new InvalidArgumentError(`${join(hostDirectory, child.name)}: the name is not UTF-8`);
      if (patterns.some((pattern) => pattern.test(child.name) || pattern.test(path))) continue;
      const hostPath = join(hostDirectory, child.name);
      if (child.isSymbolicLink()) {
        entries.push({ path, hostPath, mode: 0o777, size: 0, kind: "symlink" });
        continue;
      }
      if (!child.isDirectory() && !child.isFile()) continue;
      const { mode, size } = await stat(hostPath);
      const kind = child.isDirectory() ? "directory" : "file";
      entries.push({ path, hostPath, mode: mode & 0o7777, size: child.isFile() ? size : 0, kind });
      if (child.isDirectory()) await visit(hostPath, `${path}/`);
    }
  };
  await visit(directory, "");
  return entries;
}

/** Throws `SecretsFoundError` if files look like credentials. */
export async function refuseSecrets(directory: string, entries: readonly SourceEntry[]): Promise<void> {
  const paths: string[] = [];
  for (const entry of entries) if (entry.kind === "file" && (await looksSecret(entry))) paths.push(entry.path);
  if (paths.length === 0) return;
  const more = paths.length > SHOWN_MAX ? ` and ${paths.length - SHOWN_MAX} more` : "";
  const shown = paths.slice(0, SHOWN_MAX).join(", ");
  const message = `${directory} has files that look like secrets: ${shown}${more}; nothing was sent`;
  throw new SecretsFoundError(message, { details: { paths } });
}

async function looksSecret(entry: SourceEntry): Promise<boolean> {
  const folders = entry.path.toLowerCase().split("/");
  const name = folders.pop() ?? "";
  const folder = folders.at(-1);
  const dot = name.lastIndexOf(".");
  const extension = name.slice(dot + 1);
  if (SECRET_NAMES.has(name) || (dot > 0 && SECRET_EXTENSIONS.has(extension))) return true;
  const isAccount = name.startsWith("service-account") && extension === "json";
  if (!EXAMPLE.test(name) && (name.startsWith(".env.") || isAccount)) return true;
  if ((folder === ".docker" && name === "config.json") || (folder === ".kube" && name === "config")) return true;
  const file = await open(entry.hostPath).catch(() => undefined);
  if (!file) return false;
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(SCANNED_BYTES), 0, SCANNED_BYTES, 0);
    return SHAPES.test(buffer.subarray(0, bytesRead).toString("latin1"));
  } finally {
    await file.close();
  }
}

/** Writes entries into the live tree of a workspace, and commits them as one snapshot. */
export async function upload(
  workspace: Workspace,
  directory: string,
  entries: readonly SourceEntry[],
  options: CallOptions,
): Promise<void> {
  const { signal, timeoutMs } = options;
  let group: edits.Edit[] = [];
  let bytes = 0;
  const flush = async (): Promise<void> => {
    if (group.length > 0) await workspace.files.apply(group, { signal, timeoutMs });
    group = [];
    bytes = 0;
  };
  for (const entry of entries) {
    if (entry.size > BATCH_BYTES) {
      const data = await openAsBlob(entry.hostPath);
      await workspace.files.write(entry.path, data, { mode: entry.mode, signal, timeoutMs });
      continue;
    }
    if (bytes + entry.size > BATCH_BYTES || group.length >= BATCH_EDITS) await flush();
    group.push(await editOf(entry));
    bytes += Math.ceil((entry.size * 4) / 3) + 200;
  }
  await flush();
  await workspace.commit(`files of ${directory}`, { metadata: { source: directory }, signal, timeoutMs });
}

async function editOf(entry: SourceEntry): Promise<edits.Edit> {
  if (entry.kind === "directory") return edits.mkdir(entry.path, { mode: entry.mode });
  if (entry.kind === "symlink") {
    // A target is bytes, which need not be UTF-8.
    const target = escapeBytes(await readlink(entry.hostPath, { encoding: "buffer" }));
    return { createSymlink: { path: escapePath(entry.path), target, createParents: true } };
  }
  return edits.write(entry.path, await readFile(entry.hostPath), { mode: entry.mode });
}

/** Returns the regular expression of a glob with `*`, `?` and `[...]`, in which `*` fits slashes, too. */
export function globExpression(glob: string): RegExp {
  const text = glob.replace(/\[!?[^\]]+\]|[\s\S]/g, (found) => {
    if (found === "*") return "[\\s\\S]*";
    if (found === "?") return "[\\s\\S]";
    if (found.length > 1) return found.replace(/^\[!/, "[^").replaceAll("\\", "\\\\");
    return found.replace(/[.+^${}()|[\]\\/-]/, "\\$&");
  });
  return new RegExp(`^${text}$`);
}

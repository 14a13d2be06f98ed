/** The local store of the user: where it is, and its process, which is started if it does not run. */
import { execFile } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { homedir, userInfo } from "node:os";
import { join, resolve } from "node:path";

import { type AmalgamError, ConnectError, errorFromBody } from "./errors.js";

/** Stands for the local store; nothing looks the name up. */
export const LOCAL_URL = "http://amalgam.local";
const START_MS = 60_000;
const OUTPUT_BYTES_MAX = 64 << 20;

/** Returns the directory of the store that the command uses, too. */
export function defaultStore(): string {
  const given = process.env["AMALGAM_STORE"];
  if (given) return given;
  const data = process.env["XDG_DATA_HOME"] ?? "";
  return join(data.startsWith("/") ? data : join(homedir(), ".local", "share"), "amalgam");
}

/** Returns the `amalgam` program: `AMALGAM_BIN`, or that of the shell. */
export function programName(): string {
  return process.env["AMALGAM_BIN"] || "amalgam";
}

/** Returns the author of what a program does in the local store. */
export function userName(): string {
  const given = process.env["AMALGAM_AUTHOR"];
  if (given) return given;
  try {
    return userInfo().username;
  } catch {
    return `uid-${process.getuid?.() ?? 0}`;
  }
}

/** A store of this user, on this machine. */
export class LocalStore {
  readonly directory: string;
  private known = "";
  private starting: Promise<string> | undefined;

  constructor(directory: string) {
    this.directory = resolve(directory);
  }

  /** Returns the Unix socket for REST; starts the process of the store if it does not listen there. */
  async socket(restart = false): Promise<string> {
    if (!restart && this.known && existsSync(this.known)) return this.known;
    this.starting ??= this.find(restart).finally(() => {
      this.starting = undefined;
    });
    return this.starting;
  }

  private async find(restart: boolean): Promise<string> {
    const found = restart ? "" : this.recorded();
    if (found) this.known = found;
    else this.known = String((await this.run("connection")).at(-1)?.["rest"] ?? "");
    return this.known;
  }

  /** The socket that the running process recorded in the directory of the store. */
  private recorded(): string {
    let recorded: string;
    try {
      recorded = readFileSync(join(this.directory, "socket"), "utf8");
    } catch {
      return "";
    }
    const rest = recorded.replace(/\.[^./]*$/, "") + ".rest";
    return existsSync(rest) ? rest : "";
  }

  /** Runs a command of the program, and returns the lines that it prints. */
  async run(...words: string[]): Promise<Record<string, unknown>[]> {
    const all = ["--store", this.directory, "--json", "--no-input", ...words];
    return new Promise((resolve, reject) => {
      const settings = { maxBuffer: OUTPUT_BYTES_MAX, timeout: START_MS };
      const child = execFile(programName(), all, settings, (error, stdout, stderr) => {
        // 3: all but some files, which are reported, was done.
        if (error && error.code !== 3) reject(failureOf(error, stderr));
        else resolve(stdout.split("\n").flatMap((line) => (line ? [JSON.parse(line) as Record<string, unknown>] : [])));
      });
      child.stdin?.end();
    });
  }
}

function failureOf(error: NodeJS.ErrnoException | Error, stderr: string): AmalgamError {
  if ("code" in error && error.code === "ENOENT") {
    return new ConnectError("the local store needs the `amalgam` program, and there is none in the PATH", {
      suggestion: "Install it, name it in AMALGAM_BIN, or pass the URL of a server.",
      cause: error,
    });
  }
  const text = stderr.trim();
  let told: { message: string; reason: string; hint?: string };
  try {
    told = JSON.parse(text.split("\n").at(-1) ?? "") as typeof told;
  } catch {
    return new ConnectError(text || `the \`amalgam\` program cannot be run: ${error.message}`, { cause: error });
  }
  const body = { error: { message: told.message, name: "", details: { reason: told.reason } } };
  return errorFromBody(body, 0, "", undefined, told.hint);
}

/**
 * Conversion between JavaScript values and the text forms of the API: paths, names, times.
 *
 * A path of a tree is bytes. JavaScript has it as a string in which a byte that is not UTF-8 is a lone surrogate,
 * U+DC80 to U+DCFF, as Python does; JSON has it as text in which such a byte is `\xHH` and a backslash is `\\`; a URL has
 * its bytes percent-encoded.
 */
import { InvalidArgumentError } from "./errors.js";

const LONE_SURROGATE = /(?<![\uD800-\uDBFF])[\uDC80-\uDCFF]/g;

/** Returns a path after a check that it is one of a tree. The empty path is the root. */
export function checkedPath(path: string): string {
  if (path === "" || path === ".") return "";
  if (path.split("/").some((name) => name === "" || name === "." || name === "..")) {
    throw new InvalidArgumentError(
      `path ${JSON.stringify(path)}: a path is relative to the root of the workspace, without \`.\` and \`..\`, ` +
        "and without leading, trailing or double slashes",
    );
  }
  return path;
}

/** Returns the text that JSON has for a path, or for a symlink's target. */
export function escape(text: string): string {
  return text
    .replaceAll("\\", "\\\\")
    .replace(LONE_SURROGATE, (found) => `\\x${(found.charCodeAt(0) - 0xdc00).toString(16).padStart(2, "0")}`);
}

/** Returns the text that JSON has for a path, after a check that it is one of a tree. */
export function escapePath(path: string): string {
  return escape(checkedPath(path));
}

/** Returns the path of a text in JSON. */
export function unescape(text: string): string {
  if (!text.includes("\\")) return text;
  return text.replace(/\\(\\|x([0-9a-f]{2}))/g, (_, word: string, digits: string | undefined) =>
    word === "\\" ? "\\" : String.fromCharCode(0xdc00 + Number.parseInt(digits ?? "", 16)),
  );
}

/** Returns the part of a URL for a file's path. */
export function urlPath(path: string): string {
  const text = checkedPath(path);
  if (text === "") throw new InvalidArgumentError("the path is empty: it names the root directory, not a file");
  return text.split("/").map(encodeBytes).join("/");
}

/** Returns one part of a URL's path for a name. Slashes are encoded, and `.` cannot lead elsewhere. */
export function segment(name: string): string {
  if (name === "") throw new InvalidArgumentError("a name is empty");
  return encodeBytes(name);
}

function encodeBytes(text: string): string {
  // A URL parser takes `.` and `..` out of a path, encoded or not: only the server's own decoding may see them.
  if (text === "." || text === "..") throw new InvalidArgumentError(`\`${text}\` cannot be a name in a URL`);
  const pieces = text.split(/((?<![\uD800-\uDBFF])[\uDC80-\uDCFF])/);
  return pieces
    .map((piece, index) =>
      index % 2 === 1
        ? `%${(piece.charCodeAt(0) - 0xdc00).toString(16).toUpperCase()}`
        : encodeURIComponent(piece).replaceAll("%40", "@"),
    )
    .join("");
}

/** Returns a resource name without its collection: `a/b` of `workspaces/a/b`. */
export function short(name: string | undefined): string {
  return name === undefined ? "" : name.slice(name.indexOf("/") + 1);
}

/** Returns the time of a JSON timestamp, with milliseconds; the API has nanoseconds. */
export function timeOf(text: string | null | undefined): Date | undefined {
  if (!text) return undefined;
  const time = new Date(text);
  return Number.isNaN(time.getTime()) ? undefined : time;
}

/** Returns the word of an enum's value in JSON: `file` of `ENTRY_KIND_FILE`. */
export function enumWord(text: string | undefined, prefix: string): string {
  return (text ?? "").replace(prefix, "").toLowerCase();
}

/** Returns the text that JSON has for bytes that are mostly text. */
export function escapeBytes(data: string | Uint8Array): string {
  if (typeof data === "string") return data.replaceAll("\\", "\\\\");
  try {
    return escapeBytes(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data));
  } catch {
    const byte = (one: number): string => (one < 0x80 ? String.fromCharCode(one) : `\\x${one.toString(16)}`);
    return Array.from(data, (one) => (one === 0x5c ? "\\\\" : byte(one))).join("");
  }
}

/** Returns the bytes of a text in JSON. */
export function unescapeBytes(text: string): Uint8Array {
  if (!text.includes("\\")) return new TextEncoder().encode(text);
  const pieces = text.split(/\\(\\|x[0-9a-f]{2})/).map((piece, index) => {
    if (index % 2 === 0) return Buffer.from(piece);
    return Buffer.from([piece === "\\" ? 0x5c : Number.parseInt(piece.slice(1), 16)]);
  });
  return new Uint8Array(Buffer.concat(pieces));
}

/** Returns the base64 that JSON has for bytes. */
export function base64Of(data: string | Uint8Array): string {
  const bytes = typeof data === "string" ? Buffer.from(data) : Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  return bytes.toString("base64");
}

/** Returns the bytes of base64. */
export function bytesOf(text: string): Uint8Array {
  return new Uint8Array(Buffer.from(text, "base64"));
}

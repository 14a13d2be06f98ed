/** Edits for `ws.files.apply` and `ws.commitEdits`: many changes in one call, all or none. */
import type { FileEdit } from "./generated/api.js";
import type { JsonValue } from "./models.js";
import { base64Of, escape, escapePath } from "./text.js";

/** One edit. The functions of this module make them. */
export type Edit = FileEdit;

/** Returns an object without the fields that are undefined or false. */
function given<T extends object>(fields: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  const entries = Object.entries(fields).filter(([, value]) => value !== undefined && value !== false);
  return Object.fromEntries(entries) as { [K in keyof T]: Exclude<T[K], undefined> };
}

/** Writes a file; with `offset` only the bytes from there on. */
export function write(
  path: string,
  data: string | Uint8Array,
  options: { mode?: number; ifMatch?: string; ifAbsent?: boolean; offset?: number; parents?: boolean } = {},
): Edit {
  const { mode, ifMatch, ifAbsent, offset, parents = true } = options;
  const content = typeof data === "string" ? { text: data } : { data: base64Of(data) };
  return {
    write: given({ path: escapePath(path), ...content, mode, ifMatch, ifAbsent, offset, createParents: parents }),
  };
}

/** Replaces a text that the file has exactly once, or with `replaceAll` all places of it. */
export function replace(
  path: string,
  oldText: string,
  newText: string,
  options: { replaceAll?: boolean; ifMatch?: string } = {},
): Edit {
  return { replace: given({ path: escapePath(path), oldText, newText, ...options }) };
}

/** Applies a unified patch to one file. */
export function patch(path: string, text: string, options: { ifMatch?: string } = {}): Edit {
  return { patch: given({ path: escapePath(path), patch: text, ...options }) };
}

/** Makes a directory; with `parents` also those above it, and one that exists is accepted. */
export function mkdir(path: string, options: { mode?: number; parents?: boolean } = {}): Edit {
  return { makeDirectory: given({ path: escapePath(path), mode: options.mode, parents: options.parents ?? true }) };
}

/** Removes an entry. */
export function remove(
  path: string,
  options: { recursive?: boolean; missingOk?: boolean; ifMatch?: string } = {},
): Edit {
  const { recursive, missingOk, ifMatch } = options;
  return { remove: given({ path: escapePath(path), recursive, allowMissing: missingOk, ifMatch }) };
}

/** Gives an entry another path. */
export function rename(
  path: string,
  newPath: string,
  options: { replace?: boolean; parents?: boolean; ifMatch?: string } = {},
): Edit {
  const { replace: isReplaced = true, parents = true, ifMatch } = options;
  const fields = { path: escapePath(path), newPath: escapePath(newPath), noReplace: !isReplaced, ifMatch };
  return { rename: given({ ...fields, createParents: parents }) };
}

/** Makes a symlink at `path` that points to `target`. */
export function symlink(path: string, target: string, options: { parents?: boolean } = {}): Edit {
  return {
    createSymlink: given({
      path: escapePath(path),
      target: escape(target),
      createParents: options.parents ?? true,
    }),
  };
}

/** Attributes of an entry. An extended attribute with the value `null` is removed. */
export interface Attributes {
  mode?: number;
  modifyTime?: Date;
  xattrs?: Record<string, Uint8Array | null>;
  ifMatch?: string;
}

/** Sets attributes of an entry. */
export function attributes(path: string, values: Attributes): Edit {
  return { setAttributes: attributeFields(path, values) };
}

/** Returns the fields of an `AttributesEdit`. */
export function attributeFields(path: string, values: Attributes): NonNullable<FileEdit["setAttributes"]> {
  const xattrs = Object.entries(values.xattrs ?? {});
  const set = xattrs.flatMap(([name, value]) => (value === null ? [] : [[name, base64Of(value)] as const]));
  return given({
    path: escapePath(path),
    mode: values.mode,
    modifyTime: values.modifyTime?.toISOString(),
    setXattrs: Object.fromEntries(set),
    removeXattrs: xattrs.filter(([, value]) => value === null).map(([name]) => name),
    ifMatch: values.ifMatch,
  });
}

/** Sets a state value to any value that JSON has. `unsetState` removes one. */
export function state(key: string, value: JsonValue, options: { ifMatch?: string; ifAbsent?: boolean } = {}): Edit {
  return { setState: given({ key, json: JSON.stringify(value), ...options }) };
}

/** Removes a state value. */
export function unsetState(key: string, options: { missingOk?: boolean; ifMatch?: string } = {}): Edit {
  return { setState: given({ key, allowMissing: options.missingOk, ifMatch: options.ifMatch }) };
}

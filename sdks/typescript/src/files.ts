/** Files of a workspace: of its live tree, or of any revision. */
import { type Attributes, type Edit, attributeFields } from "./edits.js";
import { AmalgamError, InvalidArgumentError } from "./errors.js";
import type { EditFileRequest, WatchFilesResponse } from "./generated/api.js";
import {
  type Change,
  type Edited,
  type FileInfo,
  type Match,
  type Revision,
  type Written,
  change,
  fileInfo,
  match,
  revisionText,
} from "./models.js";
import { checkedPath, escape, escapePath, segment, urlPath } from "./text.js";
import { type CallOptions, type Content, type RawRequest, type Transport, parseJson, queryText } from "./transport.js";

const PAGE_SIZE = 1000;
const STAT_MANY_PATHS = 1000;

/** Options of reads: without a revision they work on the live tree. */
export interface ReadOptions extends CallOptions {
  revision?: Revision;
}

/** Options of reads of a range. */
export interface RangeOptions extends ReadOptions {
  offset?: number;
  length?: number;
}

/**
 * The files of a workspace, as `ws.files`.
 *
 * Reads and writes work on the live tree: the files with all changes since the last commit. With `revision` a read works
 * on a snapshot. A path is relative to the root of the tree; symlinks are not followed.
 */
export class Files {
  constructor(
    private readonly transport: Transport,
    private readonly workspace: string,
  ) {}

  private get path(): { workspace: string } {
    return { workspace: this.workspace };
  }

  private file(path: string, query: Record<string, unknown> = {}): string {
    return `/workspaces/${segment(this.workspace)}/files/${urlPath(path)}${queryText(query)}`;
  }

  /** Returns the bytes of a file, or a range of them. A range behind the end is empty. */
  async read(path: string, options: RangeOptions = {}): Promise<Uint8Array> {
    const request = this.readRequest(path, options);
    if (options.length === 0) return new Uint8Array();
    const answer = await this.transport.send(request, options);
    return answer.status === request.accepted ? new Uint8Array() : answer.content;
  }

  private readRequest(path: string, { revision, offset = 0, length }: RangeOptions): RawRequest {
    const headers: Record<string, string> = {};
    if (offset || length !== undefined) {
      headers["range"] = `bytes=${offset}-${length === undefined ? "" : offset + length - 1}`;
    }
    const place = this.file(path, { revision: revisionText(revision) });
    return { verb: "GET", path: place, headers, isSafe: true, accepted: 416 };
  }

  /** Returns the text of a file in UTF-8. Line ends stay as they are. Other bytes are an error of `TextDecoder`. */
  async readText(path: string, options: ReadOptions = {}): Promise<string> {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await this.read(path, options));
  }

  /** Yields the bytes of a file as they arrive, for files that do not fit into memory. */
  async *stream(path: string, options: RangeOptions = {}): AsyncGenerator<Uint8Array, void, undefined> {
    const request = this.readRequest(path, options);
    if (options.length !== 0) yield* this.transport.pieces(request, options);
  }

  /**
   * Replaces a file, or makes it with the directories above it. Readers see the old file or the new one.
   *
   * `mode` are permission bits; without it those that the file has, or 0644 for a new one. `ifMatch` writes only if the
   * file has this etag, `ifAbsent` only if there is nothing at the path.
   */
  async write(
    path: string,
    data: Content,
    options: CallOptions & { mode?: number; ifMatch?: string; ifAbsent?: boolean } = {},
  ): Promise<Written> {
    const headers: Record<string, string> = {
      "content-type": "application/octet-stream",
      "idempotency-key": crypto.randomUUID(),
    };
    if (options.ifMatch) headers["if-match"] = `"${options.ifMatch}"`;
    if (options.ifAbsent) headers["if-none-match"] = "*";
    const request: RawRequest = {
      verb: "PUT",
      path: this.file(path, { mode: options.mode?.toString(8) }),
      headers,
      content: data,
      // The request id makes a retry one that is done once.
      isSafe: true,
    };
    const found = parseJson(await this.transport.send(request, options)) as Partial<Written>;
    return { path, etag: found.etag ?? "", size: found.size ?? 0, digest: found.digest ?? "" };
  }

  /** Replaces a text that the file has exactly once, or with `replaceAll` all places of it. Otherwise `NotUniqueError`. */
  async edit(
    path: string,
    oldText: string,
    newText: string,
    options: CallOptions & { replaceAll?: boolean; ifMatch?: string } = {},
  ): Promise<Edited> {
    const { replaceAll = false, ifMatch = "" } = options;
    return this.editFile({ replace: { path: escapePath(path), oldText, newText, replaceAll, ifMatch } }, options);
  }

  /** Applies a unified patch to one file. Throws `PatchFailedError` if a hunk fits nowhere. */
  async patch(path: string, patch: string, options: CallOptions & { ifMatch?: string } = {}): Promise<Edited> {
    return this.editFile({ patch: { path: escapePath(path), patch, ifMatch: options.ifMatch ?? "" } }, options);
  }

  private async editFile(body: EditFileRequest, options: CallOptions): Promise<Edited> {
    const answer = await this.transport.call("EditFile", { path: this.path, body }, options);
    return { file: fileInfo(answer.file ?? {}), replacements: answer.replacements ?? 0 };
  }

  /** Makes many edits of the live tree, all or none. Returns the entry after each edit. */
  async apply(edits: readonly Edit[], options: CallOptions = {}): Promise<FileInfo[]> {
    const answer = await this.transport.call("ApplyEdits", { path: this.path, body: { edits: [...edits] } }, options);
    return (answer.files ?? []).map(fileInfo);
  }

  /** Returns the metadata of a path. Throws `NotFoundError` if there is nothing. */
  async stat(path = "", options: ReadOptions = {}): Promise<FileInfo> {
    const query = { path: escapePath(path), revision: revisionText(options.revision) };
    const answer = await this.transport.call("StatFile", { path: this.path, query }, options);
    return fileInfo(answer.file ?? {});
  }

  /**
   * Returns the metadata of many paths; nothing for a missing one. Up to 1,000 paths are those of one state of the tree. More
   * of them are asked for in several calls.
   */
  async statMany(paths: readonly string[], options: ReadOptions = {}): Promise<(FileInfo | undefined)[]> {
    const found: (FileInfo | undefined)[] = [];
    for (let begin = 0; begin < paths.length; begin += STAT_MANY_PATHS) {
      found.push(...(await this.statGroup(paths.slice(begin, begin + STAT_MANY_PATHS), options)));
    }
    return found;
  }

  private async statGroup(paths: readonly string[], options: ReadOptions): Promise<(FileInfo | undefined)[]> {
    const body = { paths: paths.map(escapePath), revision: revisionText(options.revision) };
    const answer = await this.transport.call("StatFiles", { path: this.path, body }, options, true);
    return (answer.results ?? []).map(({ file, failure }) => {
      if (failure && failure.reason !== "NOT_FOUND") {
        throw new AmalgamError(failure.message ?? "", { details: { reason: failure.reason } });
      }
      return file ? fileInfo(file) : undefined;
    });
  }

  /** Returns whether there is something at a path. A workspace that does not exist is an error. */
  async exists(path: string, options: ReadOptions = {}): Promise<boolean> {
    return (await this.statMany([path], options))[0] !== undefined;
  }

  /** Yields the entries of a directory, sorted by name; with `recursive` everything below it. */
  async *list(
    path = "",
    options: ReadOptions & { recursive?: boolean; withoutGit?: boolean } = {},
  ): AsyncGenerator<FileInfo, void, undefined> {
    const query = {
      path: escapePath(path),
      recursive: options.recursive,
      revision: revisionText(options.revision),
      withoutGit: options.withoutGit,
      pageSize: PAGE_SIZE,
    };
    for await (const page of this.transport.pages("ListFiles", { path: this.path, query }, options)) {
      yield* (page.files ?? []).map(fileInfo);
    }
  }

  /**
   * Yields the entries that match a glob. A pattern without a slash is compared with names, one with a slash with whole
   * paths; `**` stands for any number of directories.
   */
  async *glob(
    pattern: string,
    options: ReadOptions & { path?: string; limit?: number; withoutGit?: boolean } = {},
  ): AsyncGenerator<FileInfo, void, undefined> {
    const query = {
      pattern,
      path: escapePath(options.path ?? ""),
      limit: options.limit,
      revision: revisionText(options.revision),
      withoutGit: options.withoutGit,
    };
    for await (const message of this.transport.messages("GlobFiles", { path: this.path, query }, options)) {
      yield* (message.files ?? []).map(fileInfo);
    }
  }

  /** Yields the lines that match a regular expression of the Rust crate `regex`; with `fixed` a plain text. */
  async *grep(
    pattern: string,
    options: ReadOptions & {
      paths?: readonly string[];
      globs?: readonly string[];
      fixed?: boolean;
      ignoreCase?: boolean;
      limit?: number;
      withoutGit?: boolean;
    } = {},
  ): AsyncGenerator<Match, void, undefined> {
    const query = {
      pattern,
      paths: (options.paths ?? []).map(escapePath),
      globs: [...(options.globs ?? [])],
      fixed: options.fixed,
      ignoreCase: options.ignoreCase,
      limit: options.limit,
      revision: revisionText(options.revision),
      withoutGit: options.withoutGit,
    };
    for await (const message of this.transport.messages("GrepFiles", { path: this.path, query }, options)) {
      yield* (message.matches ?? []).map(match);
    }
  }

  /**
   * Yields the paths of the live tree that change, as they change.
   *
   * The first list is empty: the watch has begun. A list with one change of the kind `unspecified` means that too many
   * paths changed at once: list the tree again.
   */
  async *watch(path = "", options: CallOptions = {}): AsyncGenerator<Change[], void, undefined> {
    const query = { path: escapePath(path) };
    for await (const event of this.transport.events("WatchFiles", { path: this.path, query }, options)) {
      if (!event) continue;
      const message = JSON.parse(event.data) as WatchFilesResponse;
      yield message.resync
        ? [change({ path: escapePath(path), kind: "CHANGE_KIND_UNSPECIFIED" })]
        : (message.changes ?? []).map(change);
    }
  }

  /** Makes a directory; with `parents`, the default, also those above it, and one that exists is accepted. */
  async mkdir(path: string, options: CallOptions & { mode?: number; parents?: boolean } = {}): Promise<FileInfo> {
    const body = { path: escapePath(path), mode: options.mode, parents: options.parents ?? true };
    const answer = await this.transport.call("MakeDirectory", { path: this.path, body }, options);
    return fileInfo(answer.file ?? {});
  }

  /** Removes an entry; a directory that is not empty only with `recursive`. */
  async remove(
    path: string,
    options: CallOptions & { recursive?: boolean; missingOk?: boolean; ifMatch?: string } = {},
  ): Promise<void> {
    if (checkedPath(path) === "") {
      throw new InvalidArgumentError("the path is empty: the root directory cannot be removed");
    }
    const { recursive, missingOk: allowMissing, ifMatch } = options;
    const body = { path: escapePath(path), recursive, allowMissing, ifMatch };
    await this.transport.call("RemoveFile", { path: this.path, body }, options);
  }

  /** Gives an entry another path. With `replace`, the default, a file replaces a file, and a directory an empty one. */
  async rename(
    path: string,
    newPath: string,
    options: CallOptions & { replace?: boolean; parents?: boolean; ifMatch?: string } = {},
  ): Promise<FileInfo> {
    const body = {
      path: escapePath(path),
      newPath: escapePath(newPath),
      noReplace: options.replace === false,
      createParents: options.parents ?? true,
      ifMatch: options.ifMatch,
    };
    const answer = await this.transport.call("RenameFile", { path: this.path, body }, options);
    return fileInfo(answer.file ?? {});
  }

  /** Makes a symlink at `path` that points to `target`, which may be any text. */
  async symlink(path: string, target: string, options: CallOptions & { parents?: boolean } = {}): Promise<FileInfo> {
    const body = { path: escapePath(path), target: escape(target), createParents: options.parents ?? true };
    const answer = await this.transport.call("CreateSymlink", { path: this.path, body }, options);
    return fileInfo(answer.file ?? {});
  }

  /** Sets attributes of an entry. */
  async setAttributes(path: string, values: Attributes, options: CallOptions = {}): Promise<FileInfo> {
    const body = { attributes: attributeFields(path, values) };
    const answer = await this.transport.call("SetAttributes", { path: this.path, body }, options);
    return fileInfo(answer.file ?? {});
  }
}

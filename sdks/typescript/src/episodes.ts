/** Episodes: the steps of runs, recorded and queried. */
import type { Edit } from "./edits.js";
import {
  type EpisodeInfo,
  type JsonValue,
  type Revision,
  type Step,
  type StepComparison,
  episodeInfo,
  revisionText,
  step,
  stepComparison,
  workspaceName,
} from "./models.js";
import type { CallOptions, ChangeOptions, Transport } from "./transport.js";

const PAGE_SIZE = 1000;

/** A step, or its number. */
export type StepNumber = number | Step;

function numberOf(step: StepNumber): number {
  return typeof step === "number" ? step : step.number;
}

/** The steps of one run. `client.episodes` makes and finds them. */
export class Episode {
  constructor(
    private readonly transport: Transport,
    /** The episode as the server described it last. */
    public info: EpisodeInfo,
  ) {}

  /** The name, which may hold slashes. */
  get name(): string {
    return this.info.name;
  }

  private get path(): { name: string } {
    return { name: this.name };
  }

  /**
   * Records a step: a snapshot, or edits on one, which are committed in the same transaction.
   *
   * Without `revision` the edits are made on the snapshot of the parent step; without `edits` the snapshot itself is
   * recorded. `parent` 0, the default, makes a root.
   */
  async record(
    options: ChangeOptions & {
      revision?: Revision;
      edits?: readonly Edit[];
      parent?: StepNumber;
      reward?: number;
      visits?: number;
      total?: number;
      message?: string;
      metadata?: Record<string, string>;
      workspace?: string;
      buffered?: boolean;
    } = {},
  ): Promise<Step> {
    const body = {
      revision: revisionText(options.revision),
      edits: [...(options.edits ?? [])],
      parent: numberOf(options.parent ?? 0),
      reward: options.reward,
      visits: options.visits ?? 0,
      total: options.total ?? 0,
      message: options.message ?? "",
      metadata: { ...options.metadata },
      workspace: workspaceName(options.workspace),
      buffered: options.buffered,
    };
    return step((await this.transport.call("RecordStep", { path: this.path, body }, options)).step);
  }

  /** Sets the reward, visits and total of steps, all or none. `{ ...step, reward: 1 }` makes a changed step. */
  async update(steps: readonly Step[], options: ChangeOptions & { buffered?: boolean } = {}): Promise<void> {
    const updates = steps.map(({ number, visits, total, reward }) => ({
      number,
      visits,
      total,
      ...(reward === undefined ? {} : { reward }),
    }));
    const body = { updates, buffered: options.buffered };
    await this.transport.call("UpdateSteps", { path: this.path, body }, options);
  }

  /** Yields the steps by number; with `parent` only its children, with 0 only the roots. */
  async *steps(options: CallOptions & { parent?: StepNumber } = {}): AsyncGenerator<Step, void, undefined> {
    const parent = options.parent === undefined ? undefined : numberOf(options.parent);
    const query = { parent, pageSize: PAGE_SIZE };
    for await (const page of this.transport.pages("ListSteps", { path: this.path, query }, options)) {
      yield* (page.steps ?? []).map(step);
    }
  }

  /** Returns the best steps, best first: the leaf with the highest reward, or by reward or mean of all steps. */
  async best(options: CallOptions & { order?: "leaf" | "reward" | "mean"; count?: number } = {}): Promise<Step[]> {
    const orders = { leaf: undefined, reward: "STEP_ORDER_REWARD", mean: "STEP_ORDER_MEAN" } as const;
    const query = { order: orders[options.order ?? "leaf"], count: options.count ?? 1 };
    const answer = await this.transport.call("GetBestSteps", { path: this.path, query }, options);
    return (answer.steps ?? []).map(step);
  }

  /** Returns the steps from a root to a step. */
  async pathTo(to: StepNumber, options: CallOptions = {}): Promise<Step[]> {
    const query = { number: numberOf(to) };
    const answer = await this.transport.call("GetStepPath", { path: this.path, query }, options);
    return (answer.steps ?? []).map(step);
  }

  /** Compares two steps: their last common step, the steps to each, and the difference of their trees. */
  async compare(before: StepNumber, after: StepNumber, options: CallOptions = {}): Promise<StepComparison> {
    const query = { before: numberOf(before), after: numberOf(after) };
    return stepComparison(await this.transport.call("CompareSteps", { path: this.path, query }, options));
  }

  /** Yields the lines of the exported episode: a header, then each step. */
  async *export(options: CallOptions = {}): AsyncGenerator<{ [name: string]: JsonValue }, void, undefined> {
    const decoder = new TextDecoder();
    let rest = "";
    for await (const message of this.transport.messages("ExportEpisode", { path: this.path }, options)) {
      const lines = (rest + decoder.decode(Buffer.from(message.data ?? "", "base64"), { stream: true })).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) yield JSON.parse(line) as { [name: string]: JsonValue };
    }
    if (rest) yield JSON.parse(rest) as { [name: string]: JsonValue };
  }

  /** Finishes the episode: it is kept, and cannot be dropped until it is released. */
  async finish(options: ChangeOptions = {}): Promise<void> {
    const answer = await this.transport.call("FinishEpisode", { path: this.path, body: {} }, options);
    this.info = episodeInfo(answer.episode);
  }

  /** Releases a finished episode, so that it can be dropped. */
  async release(options: ChangeOptions = {}): Promise<void> {
    const answer = await this.transport.call("ReleaseEpisode", { path: this.path, body: {} }, options);
    this.info = episodeInfo(answer.episode);
  }

  /** Drops the episode, so that it no longer keeps its snapshots. Returns the number of its steps. */
  async drop(options: ChangeOptions = {}): Promise<number> {
    return (await this.transport.call("DropEpisode", { path: this.path }, options)).steps ?? 0;
  }
}

/** The episodes of a project, as `client.episodes`. */
export class Episodes {
  constructor(private readonly transport: Transport) {}

  /** Begins an episode without steps. */
  async begin(name: string, options: ChangeOptions & { metadata?: Record<string, string> } = {}): Promise<Episode> {
    const body = { episodeId: name, metadata: { ...options.metadata } };
    const answer = await this.transport.call("BeginEpisode", { body }, options);
    return new Episode(this.transport, episodeInfo(answer.episode));
  }

  /** Returns an episode. */
  async get(name: string, options: CallOptions = {}): Promise<Episode> {
    const answer = await this.transport.call("GetEpisode", { path: { name } }, options);
    return new Episode(this.transport, episodeInfo(answer.episode));
  }

  /** Yields the episodes by name. */
  async *list(prefix = "", options: CallOptions = {}): AsyncGenerator<Episode, void, undefined> {
    const query = { prefix, pageSize: PAGE_SIZE };
    for await (const page of this.transport.pages("ListEpisodes", { query }, options)) {
      for (const found of page.episodes ?? []) yield new Episode(this.transport, episodeInfo(found));
    }
  }
}

/** The client of a server. */
import { Keys, Projects, Reviews } from "./admin.js";
import { Episodes } from "./episodes.js";
import { InvalidArgumentError } from "./errors.js";
import { Events } from "./events.js";
import { Policies } from "./policy.js";
import { Radar } from "./radar.js";
import { Sandboxes, Templates } from "./sandboxes.js";
import { Labels, Snapshots } from "./snapshots.js";
import { FetchSender } from "./http.js";
import { LOCAL_URL } from "./local.js";
import { type Options, Transport, completeOptions, localStore } from "./transport.js";
import { Workspaces } from "./workspaces.js";

/** Options of a client. Those that are not given come from `AMALGAM_URL`, `AMALGAM_API_KEY` and `AMALGAM_PROJECT`. */
export interface ClientOptions extends Partial<Options> {
  /** A `fetch` of your own, for example with certificates or a proxy. It needs a `url`. */
  fetch?: typeof fetch;
  /** The directory of the local store, for a client without a URL; `AMALGAM_STORE` without it. */
  store?: string;
}

/** A client of the local store, or of an Amalgam server. */
export class Amalgam implements AsyncDisposable {
  /** Named lines of work. */
  readonly workspaces: Workspaces;
  /** Trees at one moment, and their differences. */
  readonly snapshots: Snapshots;
  /** Names on snapshots. */
  readonly labels: Labels;
  /** The steps of runs. */
  readonly episodes: Episodes;
  /** The log of operations. */
  readonly events: Events;
  /** Merges that wait for a person. */
  readonly reviews: Reviews;
  /** Isolated commands beside workspaces. */
  readonly sandboxes: Sandboxes;
  /** What sandboxes can be started from. */
  readonly templates: Templates;
  /** The permissions of agents. */
  readonly policy: Policies;
  /** Open workspaces that change the same files. */
  readonly radar: Radar;
  /** The projects of the server. */
  readonly projects: Projects;
  /** The API keys of the server. */
  readonly keys: Keys;
  private readonly transport: Transport;

  constructor(options: ClientOptions | Transport = {}) {
    const transport = options instanceof Transport ? options : transportFor(options);
    this.transport = transport;
    this.workspaces = new Workspaces(transport);
    this.snapshots = new Snapshots(transport);
    this.labels = new Labels(transport);
    this.episodes = new Episodes(transport);
    this.events = new Events(transport);
    this.reviews = new Reviews(transport);
    this.sandboxes = new Sandboxes(transport);
    this.templates = new Templates(transport);
    this.policy = new Policies(transport);
    this.radar = new Radar(transport);
    this.projects = new Projects(transport);
    this.keys = new Keys(transport);
  }

  /** How this client calls its server. */
  get options(): Options {
    return this.transport.options;
  }

  /** Returns a client with other options, which is closed together with this one. */
  withOptions(changes: Partial<Omit<Options, "url">>): Amalgam {
    return new Amalgam(this.transport.withOptions(changes));
  }

  /** Ends all calls and subscriptions. Later calls fail. `await using` does it at the end of a block. */
  close(): void {
    this.transport.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }
}

function transportFor(given: ClientOptions): Transport {
  const options = completeOptions(given);
  if (given.fetch && options.url === LOCAL_URL) {
    throw new InvalidArgumentError("a client with a fetch of its own needs the URL of a server");
  }
  const sender = given.fetch ? new FetchSender(given.fetch) : undefined;
  return new Transport(options, new AbortController(), localStore(options, given.store), sender);
}

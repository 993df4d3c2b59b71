/** The REST API of `dtj ui`, as operator/dtj/ui/answers.py describes it. */

export interface Progress {
  step?: number;
  totalSteps?: number;
  epoch?: number;
  percent?: number;
  examplesPerSecond?: number;
  stepsPerSecond?: number;
  loss?: number;
  accuracy?: number;
  etaSeconds?: number;
}

export interface About {
  version: string;
  place: "cluster" | "bucket" | "machine";
  /** Of the jobs; null: the jobs are those of all namespaces. */
  namespace: string | null;
  context: string | null;
  /** The `artifacts.uri` that the user named for the jobs of the past. */
  history: string | null;
  /** Whether the page can create and change jobs. */
  changes: boolean;
  strategies: string[];
}

export interface JobRow {
  namespace: string;
  name: string;
  uid: string;
  phase: string;
  /** The phase, or the lasting trouble in its place. */
  state?: string | null;
  /** Why, in one line. */
  reason?: string | null;
  gpus?: number | null;
  sentence: string;
  strategy: string | null;
  workers: number | null;
  attempt: number;
  restarts: number;
  created: string | null;
  ended: string | null;
  suspended: boolean;
  arguments: Record<string, string>;
  progress: Progress | null;
  past: boolean;
}

export interface JobView {
  row: JobRow;
  note: string | null;
  failure: { attempt?: number; class?: string; message?: string; pod?: string; node?: string; lastLogLines?: string[] } | null;
  conditions: { type: string; status: string; reason: string; message?: string; lastTransitionTime: string }[];
  pods: { name: string; role: string; index: number; ranks: string; node: string | null; state: string; attempt: number }[];
  morePods: number;
  events: { time: string | null; type: string; reason: string; message: string; count: number; object: string }[];
  artifacts: { uri?: string; checkpoint?: { step?: number; time?: string; uri: string; new?: string[] }; model?: string } | null;
  tensorboard: { url?: string; ready?: boolean; message?: string } | null;
  code: string | null;
  spec: Record<string, unknown>;
  yaml: string;
  commands: { action: string; command: string }[];
}

export interface Curve {
  name: string;
  steps: number[];
  values: number[];
  times: number[];
}

export interface Curves {
  curves: Curve[];
  restarts: number[];
  /** Steps and their epochs, by step. */
  epochs?: [number, number][];
  started: number | null;
  leftOut: number;
}

export interface Logs {
  sources: string[];
  lines: [string, string, string | null][];
  cut: boolean;
}

export interface Artifact {
  key: string;
  size: number;
}

export interface Checked {
  faults: { line: number; field: string; message: string }[];
  sentence: string;
}

export interface ReportTable {
  title: string;
  headings: string[];
  rows: string[][];
}

export interface Report {
  tables: ReportTable[];
  notes: string[];
  pictures: { name: string; alternative: string; png: string }[];
  noPictures: string | null;
  leftOut: { job: string; reason: string }[];
  baselines: string[];
  command: string;
}

export interface PastOptions {
  uid: string;
  arguments: Record<string, string>;
}

/** What the server says of a request that it refuses. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly remedy: string | null,
  ) {
    super(message);
  }
}

const KEY = "dtj-ui-token";
/** The pauses before a question is asked again whose answer did not come. */
const PAUSES_MILLISECONDS = [200, 1000];

/** Take the token from the address once, so that the address can be shared without it. */
export function takeToken(): void {
  const given = /^#token=(.+)$/.exec(location.hash)?.[1];
  if (given) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", "#/");
  }
}

/** A job by its name, and by its uid where the cluster may no longer have it. */
export interface JobKey {
  namespace: string;
  name: string;
  uid?: string | undefined;
}

export function keyOf(row: JobRow): JobKey {
  return { namespace: row.namespace, name: row.name, uid: row.past ? row.uid : undefined };
}

/** Whether a job has a bucket. A job of the past was found in one. */
export function hasBucket(view: JobView): boolean {
  return view.row.past || view.artifacts !== null;
}

/** The path of a job in the API, or of something of the job. */
export function jobPath(job: JobKey, words: string[] = [], query: Record<string, string> = {}): string {
  const path = ["jobs", job.namespace, job.name, ...words].map(encodeURIComponent).join("/");
  const asked = new URLSearchParams({ ...(job.uid ? { uid: job.uid } : {}), ...query }).toString();
  return asked ? `${path}?${asked}` : path;
}

/** The path of the report of jobs in the API. */
export function reportPath(
  name: "report" | "report.html",
  jobs: JobKey[],
  wishes: { baseline: string; price: string; groupBy: string[] },
): string {
  const query = new URLSearchParams();
  for (const job of jobs) query.append("job", [job.namespace, job.name, ...(job.uid ? [job.uid] : [])].join("/"));
  if (wishes.baseline) query.set("baseline", wishes.baseline);
  if (wishes.price) query.set("price", wishes.price);
  for (const field of wishes.groupBy) query.append("group_by", field);
  return `${name}?${query}`;
}

/**
 * The answer to a request. A browser ends its requests when the machine gets or loses a network device, also requests
 * to the machine itself, so a question is asked again. An action is sent once: the server may have done it.
 */
async function answered(path: string, init: RequestInit): Promise<Response> {
  for (const pause of init.method === undefined ? PAUSES_MILLISECONDS : []) {
    try {
      return await fetch(path, init);
    } catch (error) {
      if (error instanceof DOMException) throw error;
      await new Promise((then) => setTimeout(then, pause));
    }
  }
  return fetch(path, init);
}

async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  headers.set("Authorization", `Bearer ${sessionStorage.getItem(KEY) ?? ""}`);
  let answer: Response;
  try {
    answer = await answered(`/api/v1/${path}`, { ...init, headers });
  } catch (error) {
    if (error instanceof DOMException) throw error;
    throw new Refused(0, "dtj ui does not answer", "start it again with `dtj ui`, and open the address that it prints");
  }
  if (answer.ok) return answer;
  if (answer.status === 401) {
    throw new Refused(401, "this page has no token of the server", "open the address that `dtj ui` printed");
  }
  const said = (await answer.json().catch(() => ({}))) as { message?: string; remedy?: string };
  throw new Refused(answer.status, said.message ?? `the server answered ${answer.status}`, said.remedy ?? null);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await ask(path, { signal: signal ?? null })).json() as Promise<T>;
}

export async function send<T>(method: "POST" | "DELETE", path: string, body?: unknown): Promise<T> {
  const init: RequestInit = { method };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { "Content-Type": "application/json" };
  }
  return (await ask(path, init)).json() as Promise<T>;
}

/** Save a file of a job where the browser puts downloads. */
export async function download(path: string, name: string): Promise<void> {
  const address = URL.createObjectURL(await (await ask(path)).blob());
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

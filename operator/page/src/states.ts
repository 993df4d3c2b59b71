/** The states of jobs: which sort of state a word is, and how many jobs are in each. All functions are pure. */

export type Sort = "running" | "trouble" | "queued" | "failed" | "good" | "rests";

interface Stated {
  phase: string;
  state?: string | null;
  gpus?: number | null;
}

const PHASES: Record<string, Sort> = {
  Running: "running",
  New: "queued",
  Starting: "queued",
  Pending: "queued",
  Restarting: "trouble",
  Suspended: "rests",
  Deleting: "rests",
  Succeeded: "good",
  Failed: "failed",
};
const HOLDS_GPUS = new Set(["Running", "Starting", "Restarting"]);

/** The word that matters: the lasting trouble, or else the phase. */
export function stateOf(job: Stated): string {
  return job.state || job.phase;
}

/** A word in place of the phase is trouble, but that of an ended job says how it failed. */
export function sortOf(job: Stated): Sort {
  const of = PHASES[job.phase] ?? "rests";
  if (stateOf(job) === job.phase || of === "failed" || of === "good") return of;
  return PHASES[stateOf(job)] ?? "trouble";
}

/** The GPUs that a job holds now. */
export function gpusInUse(job: Stated): number {
  return HOLDS_GPUS.has(job.phase) ? (job.gpus ?? 0) : 0;
}

export interface Totals {
  sorts: Record<Sort, number>;
  gpus: number;
}

export function totalsOf(jobs: Stated[]): Totals {
  const sorts = { running: 0, trouble: 0, queued: 0, failed: 0, good: 0, rests: 0 };
  let gpus = 0;
  for (const job of jobs) {
    sorts[sortOf(job)] += 1;
    gpus += gpusInUse(job);
  }
  return { sorts, gpus };
}

/** Jobs by what they have in common: the groups in the order of their names, the jobs of each in their own order. */
export function grouped<T>(jobs: T[], by: (job: T) => string): [string, T[]][] {
  const groups = new Map<string, T[]>();
  for (const job of jobs) {
    const name = by(job);
    const members = groups.get(name);
    if (members) members.push(job);
    else groups.set(name, [job]);
  }
  const words = new Intl.Collator("en", { numeric: true });
  return [...groups].sort(([a], [b]) => words.compare(a, b));
}

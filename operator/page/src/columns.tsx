/** The columns of the list of jobs: what each shows, and which ones one has chosen. */

import { NONE, number, rateOf, since } from "./format";
import { ProgressBar, State } from "./parts";
import { stateOf } from "./states";
import type { JobRow } from "./api";
import type { ComponentChildren } from "preact";

type Value = string | number | null | undefined;

export interface Column {
  name: string;
  /** What the column is sorted by. */
  value: (job: JobRow) => Value;
  cell?: (job: JobRow) => ComponentChildren;
}

export const COLUMNS: Column[] = [
  { name: "State", value: stateOf, cell: (job) => <State job={job} /> },
  {
    name: "Progress",
    value: (job) => job.progress?.percent,
    cell: (job) => <ProgressBar progress={job.progress} name={job.name} />,
  },
  {
    name: "Examples/s",
    value: (job) => job.progress?.examplesPerSecond,
    cell: (job) => rateOf(job.progress) ?? NONE,
  },
  { name: "GPUs", value: (job) => job.gpus },
  { name: "Age", value: (job) => job.created && -Date.parse(job.created), cell: (job) => since(job.created) },
  { name: "Namespace", value: (job) => job.namespace },
  { name: "Phase", value: (job) => job.phase },
  { name: "Sentence", value: (job) => job.sentence },
  { name: "Strategy", value: (job) => job.strategy },
  { name: "Workers", value: (job) => job.workers },
  { name: "Step", value: (job) => job.progress?.step },
  { name: "Loss", value: (job) => job.progress?.loss },
  { name: "Accuracy", value: (job) => job.progress?.accuracy },
  { name: "Attempt", value: (job) => job.attempt },
  { name: "Restarts", value: (job) => job.restarts },
  {
    name: "Took",
    value: (job) => job.ended && job.created && Date.parse(job.ended) - Date.parse(job.created),
    cell: (job) => (job.ended ? since(job.created, Date.parse(job.ended)) : NONE),
  },
];
export const NUMBERS = new Set(["Examples/s", "GPUs", "Age", "Workers", "Step", "Loss", "Accuracy", "Attempt", "Restarts", "Took"]);
const SHOWN = ["State", "Progress", "Examples/s", "GPUs", "Age", "Loss", "Accuracy"];
const CHOICE = "dtj-ui-columns-2";

export function chosen(): string[] {
  try {
    const stored: unknown = JSON.parse(localStorage.getItem(CHOICE) ?? "null");
    return Array.isArray(stored) ? stored.map(String) : SHOWN;
  } catch {
    return SHOWN;
  }
}

export function keep(columns: string[]): void {
  localStorage.setItem(CHOICE, JSON.stringify(columns));
}

/** All columns: those of every job, and one for each option of a program's command line. */
export function offeredFor(jobs: JobRow[]): Column[] {
  const names = new Set<string>();
  for (const job of jobs) for (const name in job.arguments) names.add(name);
  const options = [...names].sort().map((name) => ({
    name: `--${name}`,
    value: (job: JobRow) => {
      const text = job.arguments[name];
      return text === undefined || text === "" || Number.isNaN(Number(text)) ? text : Number(text);
    },
    cell: (job: JobRow) => job.arguments[name] ?? NONE,
  }));
  return [...COLUMNS, ...options];
}

export function cellOf(column: Column, job: JobRow): ComponentChildren {
  if (column.cell) return column.cell(job);
  const value = column.value(job);
  return typeof value === "number" ? number(value) : (value ?? NONE);
}

/** Jobs in the order of a column. What is unknown comes last, in either direction. */
export function ordered(jobs: JobRow[], by: Column, down: boolean): JobRow[] {
  const known: [JobRow, string | number][] = [];
  const unknown: JobRow[] = [];
  for (const job of jobs) {
    const value = by.value(job);
    if (value === null || value === undefined) unknown.push(job);
    else known.push([job, value]);
  }
  known.sort(([, a], [, b]) => compared(a, b) * (down ? -1 : 1));
  return [...known.map(([job]) => job), ...unknown];
}

const words = new Intl.Collator("en", { numeric: true });

function compared(a: string | number, b: string | number): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return words.compare(String(a), String(b));
}

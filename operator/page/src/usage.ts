/** What the API says of the ranks of a job, as operator/dtj/ui/utilisation.py and stacks.py describe it. */

import { bytes, NONE, number } from "./format";
import type { Form } from "./format";

export interface RankRow {
  rank: string;
  stays: { attempt: number; pod: string; began: number; ended: number }[];
  present: boolean[];
  cores: (number | null)[];
  gpu: (number | null)[];
  latelyCores: number | null;
  latelyGpu: number | null;
  latelyMemory: number | null;
  stepSeconds: number | null;
  remark: "idle" | "busy" | "slow" | "missing" | null;
}

export interface Measure {
  name: string;
  unit: string;
  curves: { rank: string; times: number[]; values: number[] }[];
}

export interface Utilisation {
  began: number | null;
  cellSeconds: number;
  rows: RankRow[];
  mostCores: number;
  rowsLeftOut: number;
  measures: Measure[];
  curvesLeftOut: number;
  ranks: number;
  attempts: { attempt: number; time: number }[];
  findings: string[];
  filesUnread: number;
  bytesRead: number;
  linesLeftOut: number;
}

export interface StackFile {
  file: string;
  attempt: number;
  dump: number;
  rank: string;
  size: number;
  time: string | null;
  where: string | null;
  calledFrom: string | null;
}

export interface Dump {
  attempt: number;
  dump: number;
  groups: { where: string | null; ranks: string[] }[];
  files: StackFile[];
}

export interface Stacks {
  dumps: Dump[];
  files: number;
  leftOut: number;
}

export interface StackText {
  text: string;
  cut: boolean;
}

export function rankName(rank: string): string {
  return /^\d+$/.test(rank) ? `rank ${rank}` : rank;
}

/** Ranks in a few words: `ranks 0–3, 7`. */
export function rankNames(ranks: string[]): string {
  const numbers = ranks.filter((rank) => /^\d+$/.test(rank)).map(Number);
  const others = ranks.filter((rank) => !/^\d+$/.test(rank));
  const runs: [number, number][] = [];
  for (const each of numbers.sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && each === last[1] + 1) last[1] = each;
    else runs.push([each, each]);
  }
  const words = runs.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
  return [...(words ? [`${numbers.length === 1 ? "rank" : "ranks"} ${words}`] : []), ...others].join(", ");
}

/** A time of day in UTC; with its day where the run is longer than one. */
export function clock(seconds: number, withDay = false): string {
  const text = new Date(seconds * 1000).toISOString();
  return withDay ? text.slice(5, 16).replace("T", " ") : text.slice(11, 19);
}

/** How values of a unit are written. */
export function shown(unit: string): Form {
  return (value, digits = 3, size = Math.abs(value ?? 0)) => {
    if (typeof value !== "number") return NONE;
    if (unit === "share") return `${number(value * 100, digits, size * 100)} %`;
    if (unit === "bytes") return bytes(value, digits, size);
    if (unit === "bytes/s") return `${bytes(value, digits, size)}/s`;
    return number(value, digits, size);
  };
}

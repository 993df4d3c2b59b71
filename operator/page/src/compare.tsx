/** Several jobs beside each other: which was the fastest, curves over each other, the report, and what differs. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { get, hasBucket, jobPath, Refused } from "./api";
import { axesOf, Charts, curveOver, useColours } from "./charts";
import { duration, NONE, number } from "./format";
import { Head, Loading, Run, State, Table, Title } from "./parts";
import { ReportOf } from "./report";
import { href, jobWord } from "./route";
import type { Curves, JobKey, JobView } from "./api";
import type { Chart } from "./charts";
import type { Line } from "./plot";
import type { X } from "./series";

interface Compared {
  view: JobView;
  curves: Curves;
  /** Why there are no curves. */
  noCurves?: string;
}

/** What is known of a job: nothing yet, what was found, or why nothing was. */
interface Answered {
  found?: Compared;
  problem?: string | undefined;
}

const NO_CURVES: Curves = { curves: [], restarts: [], started: null, leftOut: 0 };
const SECONDS = 10;

/** Each job is asked for on its own: one that does not answer spoils its own row alone. */
function useCompared(jobs: JobKey[]): Answered[] {
  const key = JSON.stringify(jobs);
  const [answers, setAnswers] = useState<{ key: string; states: Map<string, Answered> }>({ key, states: new Map() });
  useEffect(() => {
    const stop = new AbortController();
    const timers: number[] = [];
    const ask = async (job: JobKey, place: number) => {
      const put = (change: (before: Answered) => Answered) =>
        setAnswers((before) => {
          const states = new Map(before.key === key ? before.states : []);
          states.set(jobWord(job), change(states.get(jobWord(job)) ?? {}));
          return { key, states };
        });
      let ended = false;
      if (!document.hidden) {
        try {
          const found = await both(job, stop.signal);
          ended = Boolean(found.view.row.ended) && !found.noCurves;
          put(() => ({ found }));
        } catch (error) {
          if (stop.signal.aborted) return;
          // The last answer stays.
          put((before) => ({ ...before, problem: said(error) }));
        }
      }
      if (!ended && !stop.signal.aborted) timers[place] = window.setTimeout(() => void ask(job, place), SECONDS * 1000);
    };
    jobs.forEach((job, place) => void ask(job, place));
    return () => {
      stop.abort();
      timers.forEach(clearTimeout);
    };
  }, [key]);
  return jobs.map((job) => (answers.key === key ? answers.states.get(jobWord(job)) : undefined) ?? {});
}

function said(error: unknown): string {
  return error instanceof Refused ? [error.message, error.remedy].filter(Boolean).join(": ") : String(error);
}

export function Compare({ jobs }: { jobs: JobKey[] }) {
  const states = useCompared(jobs);
  const [goal, setGoal] = useState(90);
  const [x, choose] = useState<X>("step");
  const found = states.map((each) => each.found).filter((each) => each !== undefined);
  const known = found.map(({ curves, view }) => [view, curves]).flat();
  const places = useColours(found.map(({ view }) => view.row.uid));
  const charts = useMemo(() => together(found, x, places), [...padded(known, jobs.length), x, places]);
  const differences = useMemo(() => differing(found), padded(known, jobs.length));
  const waits = states.some((each) => !each.found && !each.problem);
  const rows = states
    .map((each, place) => ({ ...each, job: jobs[place]!, seconds: each.found ? secondsTo(each.found.curves, goal / 100) : Infinity }))
    .sort((a, b) => (a.seconds === b.seconds ? 0 : a.seconds - b.seconds));
  return (
    <>
      <Title>{jobs.length} jobs compared</Title>
      <p>
        <label>
          Accuracy to reach, in %{" "}
          <input
            type="number"
            min={0}
            max={100}
            step="any"
            value={goal}
            onInput={(event) => setGoal(event.currentTarget.valueAsNumber)}
          />
        </label>
      </p>
      <Table label="Compared jobs">
        <Head names={["Job", "State", "Accuracy", `Time to ${goal} %`]} />
        <tbody>
          {rows.map(({ found: one, problem, job, seconds }) => (
            <tr key={jobWord(job)}>
              <th scope="row">
                {one ? (
                  <Run place={places[one.view.row.uid] ?? 0}>
                    <a href={href("jobs", jobWord(job))}>{label(one.view)}</a>
                  </Run>
                ) : (
                  <a href={href("jobs", jobWord(job))}>{`${job.namespace}/${job.name}`}</a>
                )}
                {(problem ?? one?.noCurves) && (
                  <span class="reason failed" role="alert">
                    {problem ?? one?.noCurves}
                  </span>
                )}
              </th>
              <td>{one ? <State job={one.view.row} /> : problem ? NONE : "Loading…"}</td>
              <td>{number(one?.view.row.progress?.accuracy)}</td>
              <td>{Number.isFinite(seconds) ? duration(seconds) : one && !one.noCurves ? "not reached" : NONE}</td>
            </tr>
          ))}
        </tbody>
      </Table>
      <h2>Curves</h2>
      {waits && <Loading what="the curves" />}
      {!waits && charts.length === 0 && <p>The jobs have no curve in common.</p>}
      <Charts charts={charts} restarts={NO_CURVES.restarts} group="curves" x={{ at: x, offered: axesOf(found.map(({ curves }) => curves)), choose }} />
      <ReportOf jobs={jobs} />
      <h2>What differs</h2>
      {waits ? (
        <Loading what="the specs" />
      ) : differences.length === 0 ? (
        <p>The specs of the jobs are equal.</p>
      ) : (
        <Table label="What differs">
          <Head names={["Field", ...found.map(({ view }) => label(view))]} />
          <tbody>
            {differences.map(([field, values]) => (
              <tr key={field}>
                <th scope="row">
                  <code>{field}</code>
                </th>
                {values.map((value, place) => (
                  <td key={place}>{value ?? NONE}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </Table>
      )}
    </>
  );
}

async function both(job: JobKey, signal: AbortSignal): Promise<Compared> {
  const view = await get<JobView>(jobPath(job), signal);
  if (!hasBucket(view)) return { view, curves: NO_CURVES };
  try {
    return { view, curves: await get<Curves>(jobPath(job, ["curves"]), signal) };
  } catch (error) {
    if (signal.aborted) throw error;
    return { view, curves: NO_CURVES, noCurves: said(error) };
  }
}

/** The number of what a hook depends on may not change. */
function padded<T>(values: T[], jobs: number): (T | null)[] {
  return Array.from({ length: 2 * jobs }, (_, place) => values[place] ?? null);
}

function label(view: JobView): string {
  const { namespace, name, past, uid } = view.row;
  return past ? `${namespace}/${name} (${uid.slice(0, 8)})` : `${namespace}/${name}`;
}

function together(found: Compared[], x: X, places: Record<string, number>): Chart[] {
  const groups = new Map<string, Line[]>();
  for (const { view, curves } of found) {
    for (const curve of curves.curves) {
      const lines = groups.get(curve.name) ?? [];
      lines.push({ label: label(view), curve: curveOver(curve, curves, x), place: places[view.row.uid] ?? 0 });
      groups.set(curve.name, lines);
    }
  }
  return [...groups].filter(([, lines]) => lines.length > 1).map(([title, lines]) => ({ title, lines }));
}

/** Seconds from the first report of a run to the first accuracy of at least `goal`, of validation or test. */
function secondsTo(curves: Curves, goal: number): number {
  const reached = curves.curves
    .filter((curve) => /^(test|validation|end) accuracy$/.test(curve.name))
    .map((curve) => curve.times[curve.values.findIndex((value) => value >= goal)] ?? Infinity);
  return Math.min(Infinity, ...reached) - (curves.started ?? 0);
}

/** Fields of the specs whose values are not equal, and the value of each job. */
function differing(found: Compared[]): [string, (string | undefined)[]][] {
  const specs = found.map(({ view }) => {
    const words = view.row.arguments;
    const flat = flattened(view.spec);
    for (const [name, value] of Object.entries(words)) flat.set(`--${name}`, value);
    return flat;
  });
  const fields = [...new Set(specs.flatMap((spec) => [...spec.keys()]))].sort();
  return fields
    .map((field): [string, (string | undefined)[]] => [field, specs.map((spec) => spec.get(field))])
    .filter(([, values]) => new Set(values).size > 1);
}

function flattened(value: unknown, path = "", into = new Map<string, string>()): Map<string, string> {
  // The words of a command line stand as options: a new one would move all after it.
  if (path === "args" || path === "command") return into;
  if (value !== null && typeof value === "object") {
    for (const [name, inner] of Object.entries(value)) flattened(inner, path ? `${path}.${name}` : name, into);
  } else {
    into.set(path, String(value));
  }
  return into;
}

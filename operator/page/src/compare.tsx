/** Several jobs beside each other: which was the fastest, curves over each other, the report, and what differs. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { get, jobPath, keyOf, Refused } from "./api";
import { duration, NONE, number } from "./format";
import { Head, Phase, Problem, Table, Title } from "./parts";
import { Plot } from "./plot";
import { ReportOf } from "./report";
import { href, jobWord } from "./route";
import type { Curves, JobKey, JobView } from "./api";
import type { Line } from "./plot";

interface Compared {
  view: JobView;
  curves: Curves;
}

export function Compare({ jobs }: { jobs: JobKey[] }) {
  const [found, setFound] = useState<Compared[]>();
  const [problem, setProblem] = useState<Refused>();
  const [goal, setGoal] = useState(90);
  const key = JSON.stringify(jobs);
  useEffect(() => {
    const stop = new AbortController();
    setFound(undefined);
    setProblem(undefined);
    Promise.all(jobs.map((job) => both(job, stop.signal))).then(
      setFound,
      (error: unknown) => {
        if (!stop.signal.aborted) setProblem(error instanceof Refused ? error : new Refused(0, String(error), null));
      },
    );
    return () => stop.abort();
  }, [key]);
  const groups = useMemo(() => together(found ?? []), [found]);
  const differences = useMemo(() => differing(found ?? []), [found]);
  return (
    <>
      <Title>{jobs.length} jobs compared</Title>
      <Problem problem={problem} />
      {found && (
        <>
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
          <Table label="Compared jobs">
            <Head names={["Job", "Phase", "Accuracy", `Time to ${goal} %`]} />
            <tbody>
              {found
                .map((each) => ({ ...each, seconds: secondsTo(each.curves, goal / 100) }))
                .sort((a, b) => a.seconds - b.seconds)
                .map(({ view, seconds }) => (
                  <tr key={label(view)}>
                    <th scope="row">
                      <a href={href("jobs", jobWord(keyOf(view.row)))}>{label(view)}</a>
                    </th>
                    <td>
                      <Phase phase={view.row.phase} />
                    </td>
                    <td>{number(view.row.progress?.accuracy)}</td>
                    <td>{Number.isFinite(seconds) ? duration(seconds) : "not reached"}</td>
                  </tr>
                ))}
            </tbody>
          </Table>
          <h2>Curves</h2>
          <div class="plots">
            {groups.map(([title, lines]) => (
              <Plot key={title} title={title} lines={lines} restarts={[]} />
            ))}
          </div>
          <ReportOf jobs={jobs} />
          <h2>What differs</h2>
          {differences.length === 0 ? (
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
      )}
    </>
  );
}

async function both(job: JobKey, signal: AbortSignal): Promise<Compared> {
  const view = await get<JobView>(jobPath(job), signal);
  const none: Curves = { curves: [], restarts: [], started: null, leftOut: 0 };
  const curves = view.artifacts ? await get<Curves>(jobPath(job, ["curves"]), signal) : none;
  return { view, curves };
}

function label(view: JobView): string {
  const { namespace, name, past, uid } = view.row;
  return past ? `${namespace}/${name} (${uid.slice(0, 8)})` : `${namespace}/${name}`;
}

function together(found: Compared[]): [string, Line[]][] {
  const groups = new Map<string, Line[]>();
  for (const { view, curves } of found) {
    for (const curve of curves.curves) {
      groups.set(curve.name, [...(groups.get(curve.name) ?? []), { label: label(view), curve }]);
    }
  }
  return [...groups].filter(([, lines]) => lines.length > 1);
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

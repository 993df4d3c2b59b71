/** The jobs as a table with columns one chooses, filtered, sorted, and selected for a comparison. */

import { useMemo, useState } from "preact/hooks";
import { usePastOptions } from "./past";
import { usePolled } from "./polled";
import { NONE, number, since } from "./format";
import { Phase, Problem, ProgressBar, Table, Title } from "./parts";
import { keyOf } from "./api";
import { href, jobWord } from "./route";
import type { About, JobRow } from "./api";
import type { ComponentChildren } from "preact";

interface Column {
  name: string;
  /** What the column is sorted by. */
  value: (job: JobRow) => string | number | null | undefined;
  cell?: (job: JobRow) => ComponentChildren;
}

const COLUMNS: Column[] = [
  { name: "Namespace", value: (job) => job.namespace },
  { name: "Phase", value: (job) => job.phase, cell: (job) => <Phase phase={job.phase} /> },
  { name: "State", value: (job) => job.sentence },
  { name: "Strategy", value: (job) => job.strategy },
  { name: "Workers", value: (job) => job.workers },
  {
    name: "Progress",
    value: (job) => job.progress?.percent,
    cell: (job) => <ProgressBar progress={job.progress} name={job.name} />,
  },
  { name: "Step", value: (job) => job.progress?.step },
  { name: "Loss", value: (job) => job.progress?.loss },
  { name: "Accuracy", value: (job) => job.progress?.accuracy },
  { name: "Examples/s", value: (job) => job.progress?.examplesPerSecond },
  { name: "Attempt", value: (job) => job.attempt },
  { name: "Restarts", value: (job) => job.restarts },
  { name: "Age", value: (job) => job.created && -Date.parse(job.created), cell: (job) => since(job.created) },
  {
    name: "Took",
    value: (job) => job.ended && job.created && Date.parse(job.ended) - Date.parse(job.created),
    cell: (job) => (job.ended ? since(job.created, Date.parse(job.ended)) : NONE),
  },
];
const SHOWN = ["Phase", "Strategy", "Workers", "Progress", "Loss", "Accuracy", "Examples/s", "Age"];
const WHERE = { cluster: "on the cluster", bucket: "in the bucket", machine: "on this machine" };
const CHOICE = "dtj-ui-columns";

function chosen(): string[] {
  try {
    const stored: unknown = JSON.parse(localStorage.getItem(CHOICE) ?? "null");
    return Array.isArray(stored) ? stored.map(String) : SHOWN;
  } catch {
    return SHOWN;
  }
}

function compared(a: string | number | null | undefined, b: string | number | null | undefined): number {
  const [first, second] = [a ?? "", b ?? ""];
  // What is unknown comes last, in either direction.
  if (first === "" || second === "") return 0;
  if (typeof first === "number" && typeof second === "number") return first - second;
  return String(first).localeCompare(String(second), "en", { numeric: true });
}

export function List({ about }: { about: About | undefined }) {
  const [wide, setEverywhere] = useState(false);
  const everywhere = wide || about?.namespace === null;
  const [wanted, setWanted] = useState("");
  const [columns, setColumns] = useState(chosen);
  const [order, setOrder] = useState<{ column: string; down: boolean }>();
  const [pastAsked, setWithPast] = useState(false);
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const { data: present, problem } = usePolled<JobRow[]>(`jobs?all_namespaces=${everywhere}`, 3);
  // A cluster that does not answer does not hide the past.
  const withPast = pastAsked || about?.place === "bucket" || Boolean(about?.history && problem && !present);
  const { data: past, problem: noPast } = usePolled<JobRow[]>(withPast ? "past?limit=1000" : null, 60);
  const [choosing, setChoosing] = useState(false);
  const withOptions = withPast && (choosing || columns.some((name) => name.startsWith("--")));
  const { options, problem: noOptions } = usePastOptions(withOptions, past);
  const jobs = useMemo(
    () =>
      present || past
        ? [
            ...(present ?? []),
            ...(past ?? [])
              .filter((job) => everywhere || job.namespace === about?.namespace)
              .map((job) => ({ ...job, arguments: options.get(job.uid) ?? job.arguments })),
          ]
        : undefined,
    [present, past, options, everywhere, about],
  );

  const offered = useMemo(() => {
    const names = new Set((jobs ?? []).flatMap((job) => Object.keys(job.arguments)));
    const options = [...names].sort().map((name) => ({
      name: `--${name}`,
      value: (job: JobRow) => {
        const text = job.arguments[name];
        return text === undefined || text === "" || Number.isNaN(Number(text)) ? text : Number(text);
      },
      cell: (job: JobRow) => job.arguments[name] ?? NONE,
    }));
    return [...COLUMNS, ...options];
  }, [jobs]);
  const shown = offered.filter((column) => columns.includes(column.name));

  const rows = useMemo(() => {
    const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
    const found = (jobs ?? []).filter((job) => {
      const text = `${job.namespace} ${job.name} ${job.phase} ${job.strategy ?? ""} ${job.sentence}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    const by = offered.find((column) => column.name === order?.column);
    if (!by || !order) return found;
    const known = found.filter((job) => by.value(job) !== null && by.value(job) !== undefined);
    const unknown = found.filter((job) => !known.includes(job));
    known.sort((a, b) => compared(by.value(a), by.value(b)) * (order.down ? -1 : 1));
    return [...known, ...unknown];
  }, [jobs, wanted, order, offered]);

  const choose = (name: string, on: boolean) => {
    const next = on ? [...columns, name] : columns.filter((each) => each !== name);
    localStorage.setItem(CHOICE, JSON.stringify(next));
    setColumns(next);
  };
  const select = (key: string, on: boolean) => {
    const next = new Set(selected);
    if (on) next.add(key);
    else next.delete(key);
    setSelected(next);
  };
  const sort = (column: string) => setOrder({ column, down: order?.column === column ? !order.down : false });
  const among = rows.map((job) => jobWord(keyOf(job))).filter((key) => selected.has(key));

  return (
    <>
      <Title>Jobs</Title>
      <Problem problem={problem} />
      <Problem problem={withPast ? (noPast ?? noOptions) : undefined} />
      <div class="bar">
        <label>
          Filter <input type="search" value={wanted} onInput={(event) => setWanted(event.currentTarget.value)} />
        </label>
        {about?.namespace !== null && (
          <label>
            <input type="checkbox" checked={wide} onChange={(event) => setEverywhere(event.currentTarget.checked)} />{" "}
            All namespaces
          </label>
        )}
        {about?.place !== "bucket" && (
          <label>
            <input type="checkbox" checked={withPast} onChange={(event) => setWithPast(event.currentTarget.checked)} />{" "}
            Past jobs
          </label>
        )}
        <details onToggle={(event) => setChoosing(event.currentTarget.open)}>
          <summary>Columns</summary>
          <fieldset class="columns">
            <legend>Shown columns</legend>
            {offered.map((column) => (
              <label key={column.name}>
                <input
                  type="checkbox"
                  checked={columns.includes(column.name)}
                  onChange={(event) => choose(column.name, event.currentTarget.checked)}
                />{" "}
                {column.name}
              </label>
            ))}
          </fieldset>
        </details>
        {among.length > 1 && (
          <a class="button" href={href("compare", ...among)}>
            Compare {among.length} jobs
          </a>
        )}
        {about?.changes && (
          <a class="button" href={href("new")}>
            New job
          </a>
        )}
      </div>
      {jobs && rows.length === 0 && (
        <p>
          {jobs.length ? "No job fits the filter." : `There are no jobs ${everywhere ? WHERE[about?.place ?? "cluster"] : `in namespace ${about?.namespace ?? ""}`}.`}
        </p>
      )}
      {rows.length > 0 && (
        <Table label="Jobs">
          <thead>
            <tr>
              <th scope="col">
                <span class="for-readers">Selected</span>
              </th>
              {[{ name: "Name", value: (job: JobRow) => job.name }, ...shown].map((column) => (
                <th
                  key={column.name}
                  scope="col"
                  aria-sort={order?.column === column.name ? (order.down ? "descending" : "ascending") : "none"}
                >
                  <button type="button" class="head" onClick={() => sort(column.name)}>
                    {column.name}
                    <span aria-hidden="true">{order?.column === column.name ? (order.down ? " ▼" : " ▲") : ""}</span>
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((job) => {
              const key = jobWord(keyOf(job));
              return (
                <tr key={key}>
                  <td>
                    <input
                      type="checkbox"
                      aria-label={`Select ${job.name}${job.past ? `, ${job.uid}` : ""}`}
                      checked={selected.has(key)}
                      onChange={(event) => select(key, event.currentTarget.checked)}
                    />
                  </td>
                  <th scope="row">
                    <a href={href("jobs", key)}>{job.name}</a>
                  </th>
                  {shown.map((column) => (
                    <td key={column.name}>{cellOf(column, job)}</td>
                  ))}
                </tr>
              );
            })}
          </tbody>
        </Table>
      )}
    </>
  );
}

function cellOf(column: Column, job: JobRow): ComponentChildren {
  if (column.cell) return column.cell(job);
  const value = column.value(job);
  return typeof value === "number" ? number(value) : (value ?? NONE);
}

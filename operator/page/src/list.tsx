/** The jobs as a table with columns one chooses, filtered, sorted, and selected for a comparison. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { usePastOptions } from "./past";
import { usePolled } from "./polled";
import { cellOf, chosen, keep, NUMBERS, offeredFor, ordered } from "./columns";
import { number } from "./format";
import { Icon, Loading, Problem, Table, Title } from "./parts";
import { keyOf } from "./api";
import { href, jobWord } from "./route";
import { gpusInUse, grouped, sortOf, stateOf, totalsOf } from "./states";
import type { About, JobRow } from "./api";
import type { Sort, Totals } from "./states";

/** Rows of one page of the table. */
const PAGE = 50;
const WORDS: [Sort, string][] = [
  ["running", "running"],
  ["trouble", "in trouble"],
  ["queued", "queued"],
  ["failed", "failed"],
  ["good", "succeeded"],
];
type Among = Sort | "gpus" | undefined;
const WHERE = { cluster: "on the cluster", bucket: "in the bucket", machine: "on this machine" };

export function List({ about }: { about: About | undefined }) {
  const [wide, setEverywhere] = useState(false);
  const everywhere = wide || about?.namespace === null;
  const [wanted, setWanted] = useState("");
  const [columns, setColumns] = useState(chosen);
  const [order, setOrder] = useState<{ column: string; down: boolean }>();
  const [pastAsked, setWithPast] = useState(false);
  const [sort, setAmong] = useState<Among>();
  const [by, setBy] = useState("");
  const [closed, setClosed] = useState<ReadonlySet<string>>(new Set());
  const [pageWanted, setPage] = useState(0);
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

  const offered = useMemo(() => offeredFor(jobs ?? []), [jobs]);
  const shown = columns.map((name) => offered.find((column) => column.name === name)).filter((column) => column !== undefined);

  const texts = useMemo(() => (jobs ?? []).map(textOf), [jobs]);
  const fitting = useMemo(() => {
    const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
    return (jobs ?? []).filter((_, place) => words.every((word) => texts[place]?.includes(word)));
  }, [jobs, texts, wanted]);
  const totals = useMemo(() => totalsOf(fitting), [fitting]);
  const rows = useMemo(() => {
    const found = sort ? fitting.filter((job) => (sort === "gpus" ? gpusInUse(job) > 0 : sortOf(job) === sort)) : fitting;
    const column = offered.find((each) => each.name === order?.column);
    const name = { name: "Name", value: (job: JobRow) => job.name };
    return order ? ordered(found, column ?? name, order.down) : found;
  }, [fitting, sort, order, offered]);
  const groups = useMemo((): [string, JobRow[]][] => {
    const column = offered.find((each) => each.name === by);
    return column ? grouped(rows, (job) => String(column.value(job) ?? "–")) : [["", rows]];
  }, [rows, by, offered]);
  // A closed group takes no place on a page.
  const visible = useMemo(
    () => groups.flatMap(([group, members]) => (closed.has(group) ? [] : members.map((job) => ({ group, job })))),
    [groups, closed],
  );
  const pages = Math.max(1, Math.ceil(visible.length / PAGE));
  const page = Math.min(pageWanted, pages - 1);
  const onPage = visible.slice(page * PAGE, (page + 1) * PAGE);
  const groupsOnPage = groups
    .map(([group, members]) => ({ group, members, here: onPage.filter((each) => each.group === group) }))
    .filter(({ group, here }) => here.length || closed.has(group));
  useEffect(() => setPage(0), [wanted, sort, order, by]);
  useEffect(() => setClosed(new Set()), [by]);

  const choose = (name: string, on: boolean) => {
    const next = on ? [...columns, name] : columns.filter((each) => each !== name);
    keep(next);
    setColumns(next);
  };
  const select = (key: string, on: boolean) => {
    const next = new Set(selected);
    if (on) next.add(key);
    else next.delete(key);
    setSelected(next);
  };
  const sortBy = (column: string) => setOrder({ column, down: order?.column === column ? !order.down : false });
  const fold = (group: string) => {
    const next = new Set(closed);
    if (!next.delete(group)) next.add(group);
    setClosed(next);
  };
  const among = useMemo(
    () => (selected.size ? rows.map((job) => jobWord(keyOf(job))).filter((key) => selected.has(key)) : []),
    [rows, selected],
  );

  return (
    <>
      <Title>Jobs</Title>
      <Problem problem={problem} />
      <Problem problem={withPast ? (noPast ?? noOptions) : undefined} />
      {!jobs && !problem && <Loading what="the jobs" />}
      {jobs && jobs.length > 0 && <Sums totals={totals} all={fitting.length} chosen={sort} choose={setAmong} />}
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
        <label>
          Group by{" "}
          <select value={by} onChange={(event) => setBy(event.currentTarget.value)}>
            <option value="">nothing</option>
            {offered
              .filter(({ name }) => ["Namespace", "Strategy", "State"].includes(name) || name.startsWith("--"))
              .map(({ name }) => (
                <option key={name}>{name}</option>
              ))}
          </select>
        </label>
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
                  class={NUMBERS.has(column.name) ? "number" : undefined}
                  aria-sort={order?.column === column.name ? (order.down ? "descending" : "ascending") : "none"}
                >
                  <button type="button" class="head" onClick={() => sortBy(column.name)}>
                    {column.name}
                    <span aria-hidden="true">{order?.column === column.name ? (order.down ? " ▼" : " ▲") : ""}</span>
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          {groupsOnPage.map(({ group, members, here }) => (
            <tbody key={group}>
              {by && (
                <tr class="group">
                  <th scope="rowgroup" colSpan={shown.length + 2}>
                    <button type="button" class="head" aria-expanded={!closed.has(group)} onClick={() => fold(group)}>
                      <span aria-hidden="true">{closed.has(group) ? "▸" : "▾"}</span> {by} {group} ({number(members.length)})
                    </button>
                  </th>
                </tr>
              )}
              {here.map(({ job }) => {
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
                    <th scope="row" class="name">
                      <a href={href("jobs", key)}>{job.name}</a>
                      {job.reason && (
                        <span class={`reason ${sortOf(job)}`} title={job.reason}>
                          {job.reason}
                        </span>
                      )}
                    </th>
                    {shown.map((column) => (
                      <td key={column.name} class={NUMBERS.has(column.name) ? "number" : undefined}>
                        {cellOf(column, job)}
                      </td>
                    ))}
                  </tr>
                );
              })}
            </tbody>
          ))}
        </Table>
      )}
      {pages > 1 && (
        <nav class="bar pages" aria-label="Pages of jobs">
          <button type="button" class="quiet" disabled={page === 0} onClick={() => setPage(page - 1)}>
            Previous
          </button>
          <span aria-live="polite">
            {number(page * PAGE + 1)}–{number(page * PAGE + onPage.length)} of {number(visible.length)}
          </span>
          <button type="button" class="quiet" disabled={page === pages - 1} onClick={() => setPage(page + 1)}>
            Next
          </button>
        </nav>
      )}
    </>
  );
}

/** What the filter looks in. */
function textOf(job: JobRow): string {
  return [job.namespace, job.name, job.phase, stateOf(job), job.strategy, job.sentence, job.reason].join(" ").toLowerCase();
}

/** How many jobs are in each sort of state. A press shows these alone; a second press shows all again. */
function Sums({ totals, all, chosen: now, choose }: { totals: Totals; all: number; chosen: Among; choose: (among: Among) => void }) {
  const one = (among: Among, count: number, word: string, icon: Sort | undefined) => (
    <button
      key={word}
      type="button"
      class={`sum ${icon ?? ""}`}
      aria-pressed={now === among}
      disabled={count === 0 && now !== among}
      onClick={() => choose(now === among ? undefined : among)}
    >
      <strong>{number(count)}</strong> {icon && count > 0 && <Icon sort={icon} />} {word}
    </button>
  );
  return (
    <div class="sums" role="group" aria-label="Totals">
      {one(undefined, all, "jobs", undefined)}
      {WORDS.map(([each, word]) => one(each, totals.sorts[each], word, each))}
      {one("gpus", totals.gpus, "GPUs in use", undefined)}
    </div>
  );
}

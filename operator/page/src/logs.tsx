/** The output of a job, merged or of one rank, with a search. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { jobPath, keyOf } from "./api";
import { Loading, Problem } from "./parts";
import { usePolled } from "./polled";
import type { JobView, Logs as Answer } from "./api";

const SETTLE_MILLISECONDS = 300;

export function Logs({ view }: { view: JobView }) {
  const [open, setOpen] = useState(false);
  const [source, setSource] = useState("");
  const [typed, setTyped] = useState("");
  const [search, setSearch] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => setSearch(typed), SETTLE_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [typed]);
  const { ended, past } = view.row;
  const rank = /^rank (\d+)$/.exec(source)?.[1];
  const path = open ? jobPath(keyOf(view.row), ["logs"], { search, ...(rank ? { rank } : {}) }) : null;
  const { data, problem } = usePolled<Answer>(path, ended || past ? 0 : 5);
  const [sources, setSources] = useState<string[]>([]);
  useEffect(() => {
    // The sources of one rank's lines are that rank alone: keep the others in the choice.
    if (data) setSources((known) => [...new Set([...known, ...data.sources])].sort(byNumber));
  }, [data]);
  const lines = (data?.lines ?? []).filter(([from]) => !source || from === source);
  // The end is shown, until somebody scrolls up.
  const shown = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  useLayoutEffect(() => {
    if (shown.current && atEnd.current) shown.current.scrollTop = shown.current.scrollHeight;
  }, [data, source]);
  const scrolled = ({ currentTarget: at }: { currentTarget: HTMLElement }) => {
    atEnd.current = at.scrollTop + at.clientHeight > at.scrollHeight - 8;
  };
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Output</summary>
      <div class="bar">
        <label>
          From{" "}
          <select value={source} onChange={(event) => setSource(event.currentTarget.value)}>
            <option value="">all</option>
            {sources.map((each) => (
              <option key={each} value={each}>
                {each}
              </option>
            ))}
          </select>
        </label>
        <label>
          Search <input type="search" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
        </label>
      </div>
      <Problem problem={problem} />
      {open && !data && !problem && <Loading what="the output" />}
      {data?.cut && <p>The oldest lines are left out; `dtj logs` prints all.</p>}
      {data && lines.length === 0 && <p>{search ? "No line has this text." : "There is no output yet."}</p>}
      {lines.length > 0 && (
        <pre ref={shown} tabIndex={0} class="output" onScroll={scrolled}>
          {lines.map(([from, text]) => `[${from}] ${text}`).join("\n")}
        </pre>
      )}
    </details>
  );
}

function byNumber(a: string, b: string): number {
  return a.localeCompare(b, "en", { numeric: true });
}

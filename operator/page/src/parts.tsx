/** Small pieces that several parts of the page show. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Refused } from "./api";
import { number } from "./format";
import { COLOURS } from "./series";
import { sortOf, stateOf } from "./states";
import type { JobRow, Progress } from "./api";
import type { Sort } from "./states";

const ICONS: Record<Sort, string> = { running: "▶", trouble: "⚠", queued: "◷", failed: "✕", good: "✓", rests: "‖" };

export function Icon({ sort }: { sort: Sort }) {
  return (
    <span class="icon" aria-hidden="true">
      {ICONS[sort]}
    </span>
  );
}

export function State({ job }: { job: JobRow }) {
  const sort = sortOf(job);
  return (
    <span class={`state ${sort}`}>
      <Icon sort={sort} /> {stateOf(job)}
    </span>
  );
}

/** What stands where an answer is awaited. */
export function Loading({ what }: { what: string }) {
  return (
    <p class="loading" role="status">
      Loading {what}…
    </p>
  );
}

export function Problem({ problem }: { problem: Refused | undefined }) {
  if (!problem) return null;
  return (
    <p class="problem" role="alert">
      {problem.message}
      {problem.remedy && <span class="remedy"> {problem.remedy}</span>}
    </p>
  );
}

export function ProgressBar({ progress, name }: { progress: Progress | null; name: string }) {
  if (progress?.percent === undefined || progress.percent === null) return null;
  const percent = Math.min(100, Math.max(0, progress.percent));
  return (
    <span class="progress">
      <progress max={100} value={percent} aria-label={`Progress of ${name}`} /> {number(percent, 2)} %
    </span>
  );
}

/** What is named by its colour and by its name. place: among the colours. */
export function Run({ place, children }: { place: number; children: ComponentChildren }) {
  return (
    <span class="run">
      <span class={`swatch line-${(place % COLOURS) + 1}`} aria-hidden="true" />
      <span>{children}</span>
    </span>
  );
}

/** A table that scrolls within its own frame where the window is narrow. A shadow says that there is more. */
export function Table({ label, children }: { label: string; children: ComponentChildren }) {
  const frame = useRef<HTMLDivElement>(null);
  const [more, setMore] = useState(false);
  useEffect(() => {
    const element = frame.current;
    if (!element) return;
    const look = () => setMore(element.scrollLeft + element.clientWidth < element.scrollWidth - 1);
    const sized = new ResizeObserver(look);
    sized.observe(element);
    if (element.firstElementChild) sized.observe(element.firstElementChild);
    element.addEventListener("scroll", look, { passive: true });
    return () => {
      sized.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, []);
  return (
    <div ref={frame} class={more ? "frame more" : "frame"} role="region" aria-label={label} tabIndex={0}>
      <table>{children}</table>
    </div>
  );
}

/** The heading of a table's columns. */
export function Head({ names }: { names: string[] }) {
  return (
    <thead>
      <tr>
        {names.map((name) => (
          <th key={name} scope="col">
            {name}
          </th>
        ))}
      </tr>
    </thead>
  );
}

export function Command({ command }: { command: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(command);
    setCopied(true);
  };
  return (
    <p class="command">
      <code>{command}</code>
      <button type="button" class="quiet" onClick={copy} aria-label="Copy the command">
        {copied ? "Copied" : "Copy"}
      </button>
    </p>
  );
}

/** The line that copies a file of a job. list: the line that lists its files; to: a folder, or `-` for the terminal. */
export function copyLine(list: string, key: string, to: string): string {
  const word = /^[\w@%+=:,./-]+$/.test(key) ? key : `'${key.replaceAll("'", `'"'"'`)}'`;
  const [, begin, end = ""] = /^(.*?)( -n .*)?$/.exec(list.replace(" ls ", " cp ")) ?? [];
  return `${begin} ${word} ${to}${end}`;
}

/** The heading of a page. It takes the focus, so that a screen reader begins there. */
export function Title({ children }: { children: ComponentChildren }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus(), []);
  return (
    <h1 ref={heading} tabIndex={-1}>
      {children}
    </h1>
  );
}

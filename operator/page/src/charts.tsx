/** Charts with one pointer, one part of the x axis that is looked at, and the tools for all of them. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { Plot } from "./plot";
import { epochAt, inOrder, placesOf, rankOf } from "./series";
import type { Curve, Curves } from "./api";
import type { Form } from "./format";
import type { Line, Look, Over, Range } from "./plot";
import type { Rank, X } from "./series";

export interface Chart {
  title: string;
  lines: Line[];
  form?: Form;
}

const KEPT = { look: "dtj-ui-charts", colours: "dtj-ui-colours" };
/** Runs whose colours a browser keeps. */
const MOST_KEPT = 500;
const MOST_SMOOTHING = 0.99;
const HEADS: Record<Rank, string> = {
  program: "Program",
  throughput: "Throughput",
  machine: "Machine",
  closed: "Bookkeeping and constants",
};

function kept<T extends object>(key: string, otherwise: T): T {
  try {
    const stored: unknown = JSON.parse(localStorage.getItem(key) ?? "null");
    return stored && typeof stored === "object" ? { ...otherwise, ...stored } : otherwise;
  } catch {
    return otherwise;
  }
}

/** The places of runs among the colours, the same on every page. */
export function useColours(runs: string[]): Record<string, number> {
  const key = JSON.stringify(runs);
  const places = useMemo(() => placesOf(runs, kept<Record<string, number>>(KEPT.colours, {})), [key]);
  useEffect(() => {
    const others = Object.entries(kept<Record<string, number>>(KEPT.colours, {})).filter(([run]) => !(run in places));
    const all = [...others, ...Object.entries(places)].slice(-MOST_KEPT);
    localStorage.setItem(KEPT.colours, JSON.stringify(Object.fromEntries(all)));
  }, [places]);
  return places;
}

/** A curve over steps, over minutes since the first report of its run, or over epochs. */
export function curveOver(curve: Curve, curves: Curves, x: X): Line["curve"] {
  const { name, steps, times, values } = curve;
  if (x === "step") return { name, xs: steps, values };
  if (x === "time") return { name, values, xs: times.map((time) => (time - (curves.started ?? 0)) / 60) };
  return { name, values, xs: steps.map((step) => epochAt(curves.epochs ?? [], step)) };
}

const AXES: Record<X, Over> = {
  step: { axis: "steps", head: "Step" },
  time: { axis: "minutes", head: "Minute" },
  epoch: { axis: "epochs", head: "Epoch" },
};

/** x: the choice of the axis, where there is one. */
interface Shown {
  charts: Chart[];
  restarts: number[];
  group: string;
  over?: Over;
  x?: { at: X; offered: X[]; choose: (x: X) => void };
}

export function Charts({ charts, restarts, group, over, x }: Shown) {
  const [look, setLook] = useState<Look>(() => kept(KEPT.look, { smoothing: 0, log: false }));
  const [zoom, setZoom] = useState<Range>();
  const [open, setOpen] = useState(false);
  useEffect(() => setZoom(undefined), [x?.at]);
  const change = (next: Partial<Look>) => {
    const all = { ...look, ...next };
    localStorage.setItem(KEPT.look, JSON.stringify(all));
    setLook(all);
  };
  const ranked = useMemo(() => {
    const ranks: Record<Rank, Chart[]> = { program: [], throughput: [], machine: [], closed: [] };
    for (const chart of charts) {
      ranks[x ? rankOf(chart.title, chart.lines.map(({ curve }) => curve.values)) : "machine"].push(chart);
    }
    return ranks;
  }, [charts, !x]);
  const drawn = (rank: Rank) => (
    <div class="plots">
      {inOrder(ranked[rank], ({ title }) => title).map(({ title, lines, form }) => (
        <Plot
          key={title}
          title={title}
          lines={lines}
          restarts={restarts}
          over={over ?? AXES[x?.at ?? "step"]}
          look={look}
          zoom={zoom}
          onZoom={setZoom}
          group={group}
          shown={form}
        />
      ))}
    </div>
  );
  if (!charts.length) return null;
  const ranks = (["program", "throughput", "machine"] as const).filter((rank) => ranked[rank].length);
  return (
    <>
      <div class="bar tools" role="group" aria-label="Tools of the charts">
        <label>
          Smoothing{" "}
          <input
            type="range"
            min={0}
            max={MOST_SMOOTHING}
            step={0.01}
            value={look.smoothing}
            onInput={(event) => change({ smoothing: event.currentTarget.valueAsNumber })}
          />{" "}
          <output>{look.smoothing.toFixed(2)}</output>
        </label>
        <label>
          <input type="checkbox" checked={look.log} onChange={(event) => change({ log: event.currentTarget.checked })} /> Log
          scale
        </label>
        {x && (
          <label>
            Over{" "}
            <select value={x.at} onChange={(event) => x.choose(event.currentTarget.value as X)}>
              {x.offered.map((each) => (
                <option key={each} value={each}>
                  {each}
                </option>
              ))}
            </select>
          </label>
        )}
        <button type="button" class="quiet" disabled={!zoom} onClick={() => setZoom(undefined)}>
          Whole range
        </button>
        <span class="hint">Drag over a chart to zoom; a double click, Escape or the button shows the whole range.</span>
      </div>
      {ranks.map((rank) => (
        <div key={rank}>
          {x && ranks.length > 1 && <p class="rank">{HEADS[rank]}</p>}
          {drawn(rank)}
        </div>
      ))}
      {ranked.closed.length > 0 && (
        <details class="closed" onToggle={(event) => setOpen(event.currentTarget.open)}>
          <summary>
            {HEADS.closed} ({ranked.closed.length})
          </summary>
          {open && drawn("closed")}
        </details>
      )}
    </>
  );
}

/** The axes that curves can be drawn over. */
export function axesOf(curves: Curves[]): X[] {
  return curves.some(({ epochs }) => epochs?.length) ? ["step", "time", "epoch"] : ["step", "time"];
}

/** Where on the axis restarts are. */
export function restartsOver(curves: Curves, x: X): number[] {
  if (x === "step") return curves.restarts;
  if (x === "epoch") return curves.restarts.map((step) => epochAt(curves.epochs ?? [], step));
  const longest = curves.curves.reduce<Curve | undefined>((a, b) => (a && a.steps.length >= b.steps.length ? a : b), undefined);
  return curves.restarts.map((step) => {
    const place = longest?.steps.findLastIndex((each) => each === step) ?? -1;
    return ((longest?.times[place] ?? NaN) - (curves.started ?? 0)) / 60;
  });
}

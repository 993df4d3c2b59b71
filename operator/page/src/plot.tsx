/** One drawing of curves over each other, and its last values as a table for those who do not see it. */

import uPlot from "uplot";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { number, ticks } from "./format";
import { Head, Run, Table } from "./parts";
import { COLOURS, nearest, PLACES, smoothed } from "./series";
import type { Form } from "./format";

export interface Line {
  label: string;
  curve: XCurve;
  /** Its place among the colours and the forms of lines. */
  place: number;
}

/** A curve over an axis that need not be that of steps. */
export interface XCurve {
  name: string;
  xs: number[];
  values: number[];
}

/** What an axis is called, and one of its values. */
export interface Over {
  axis: string;
  head: string;
}

const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
const HEIGHT = 220;
const FONT = "12px system-ui, sans-serif";
/** CSS pixels: of the marks of an axis, between them and the texts, and of the narrowest axis. */
const [MARK, GAP, NARROWEST] = [10, 5, 50];
/** A part of the x axis. */
export type Range = [number, number];
/** What is drawn of each value. */
export interface Look {
  /** The weight of the mean, from 0 to below 1. */
  smoothing: number;
  log: boolean;
}

interface Drawing {
  title: string;
  lines: Line[];
  /** Where on the axis an attempt after the first began. */
  restarts: number[];
  over: Over;
  look: Look;
  /** The part of the x axis that is looked at; undefined: all. */
  zoom: Range | undefined;
  onZoom: (zoom: Range | undefined) => void;
  /** Drawings of one group have one pointer. */
  group: string;
  /** A value as text. */
  shown?: Form | undefined;
}

export function Plot({ title, lines, restarts, over, look, zoom, onZoom, group, shown = number }: Drawing) {
  const frame = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [at, setAt] = useState<number>();
  const curves = useMemo(() => lines.map(({ curve }) => inOrder(curve)), [lines]);
  const unfit = look.log && curves.some(([, values]) => values.some((value) => value <= 0));
  const { smoothing, log } = look;
  useEffect(() => {
    const element = frame.current;
    if (!element) return;
    const draw = () => {
      plot.current = drawn(element, { lines, curves, restarts, look: { smoothing, log }, group, shown, onZoom, onPoint: setAt });
      zoomTo(plot.current, zoom);
    };
    draw();
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    sized.observe(element);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const recoloured = () => {
      plot.current?.destroy();
      draw();
    };
    scheme.addEventListener("change", recoloured);
    return () => {
      scheme.removeEventListener("change", recoloured);
      sized.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [lines, curves, restarts, shown, smoothing, log, group]);
  useEffect(() => {
    if (plot.current) zoomTo(plot.current, zoom);
  }, [zoom?.[0], zoom?.[1]]);
  const pressed = (event: KeyboardEvent) => {
    const drawing = plot.current;
    if (!drawing) return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) {
      const xs = drawing.data[0];
      const { min = 0, max = 0 } = drawing.scales.x ?? {};
      const from = nearest(xs as number[], at ?? (step > 0 ? (min ?? 0) : (max ?? 0)));
      const x = xs[Math.min(xs.length - 1, Math.max(0, at === undefined ? from : from + step))];
      if (x !== undefined) move(drawing, drawing.valToPos(x, "x"));
    } else if (event.key === "Escape") onZoom(undefined);
    else return;
    event.preventDefault();
  };
  return (
    <section class="plot">
      <h3>{title}</h3>
      <div
        ref={frame}
        class="drawing"
        role="group"
        tabIndex={0}
        onKeyDown={pressed}
        aria-label={`${title} over ${over.axis}; arrow keys move the pointer, and the table below has the values there`}
      />
      {unfit && <p class="hint">A log scale has no values of 0 and below.</p>}
      <Table label={`Values of ${title}`}>
        <Head names={["Curve", over.head, at === undefined ? "Last" : "Here", "Least", "Greatest"]} />
        <tbody>
          {lines.map(({ label, place }, number_) => {
            const [xs, values] = curves[number_] ?? [[], []];
            const point = at === undefined ? values.length - 1 : nearest(xs, at);
            return (
              <tr key={label}>
                <th scope="row">
                  <Run place={place}>{label}</Run>
                </th>
                <td>{number(xs[point])}</td>
                <td>{shown(values[point])}</td>
                <td>{shown(least(values))}</td>
                <td>{shown(-least(values.map((value) => -value)))}</td>
              </tr>
            );
          })}
        </tbody>
      </Table>
    </section>
  );
}

/** Move the pointer of a drawing, and of the others of its group. */
function move(plot: uPlot, left: number): void {
  // The third parameter tells the others. The types of uPlot lack it.
  const { setCursor } = plot as unknown as { setCursor: (at: { left: number; top: number }, hook: boolean, tell: boolean) => void };
  setCursor({ left, top: HEIGHT / 3 }, true, true);
}

function zoomTo(plot: uPlot, zoom: Range | undefined): void {
  const xs = plot.data[0];
  const [min, max] = zoom ?? [xs[0], xs.at(-1)];
  if (min !== undefined && max !== undefined && min < max) plot.setScale("x", { min, max });
}

function least(values: number[]): number {
  return values.reduce((a, b) => Math.min(a, b), Infinity);
}

interface Drawn {
  lines: Line[];
  curves: Points[];
  restarts: number[];
  look: Look;
  group: string;
  shown: Form;
  onZoom: (zoom: Range | undefined) => void;
  onPoint: (x: number | undefined) => void;
}

type Points = [number[], number[]];

function drawn(element: HTMLElement, { lines, curves, restarts, look, group, shown, onZoom, onPoint }: Drawn): uPlot {
  const style = getComputedStyle(element);
  const [ink, edge] = [style.getPropertyValue("--ink"), style.getPropertyValue("--grid")];
  const fit = look.log ? curves.map(([xs, values]): (number | null)[][] => [xs, values.map((each) => (each > 0 ? each : null))]) : curves;
  const smooth = look.smoothing > 0;
  // What is measured lies behind its mean.
  const means = smooth ? fit.map(([xs, values]) => [xs, smoothed((values ?? []).map((each) => each ?? NaN), look.smoothing).map((each) => (Number.isNaN(each) ? null : each))]) : [];
  const data = uPlot.join([...fit, ...means] as uPlot.AlignedData[]);
  const stroke = ({ place }: Line) => style.getPropertyValue(`--line-${(place % COLOURS) + 1}`);
  const dash = ({ place }: Line) => DASHES[Math.floor((place % PLACES) / COLOURS)] ?? [];
  const raw = lines.map((line) => ({
    label: line.label,
    stroke: stroke(line),
    dash: smooth ? [] : dash(line),
    width: smooth ? 1 : 2,
    alpha: smooth ? 0.35 : 1,
    spanGaps: true,
  }));
  const over = smooth ? lines.map((line) => ({ label: `${line.label}, smoothed`, stroke: stroke(line), dash: dash(line), width: 2, spanGaps: true })) : [];
  const axis = { font: FONT, gap: GAP, stroke: ink, grid: { stroke: edge }, ticks: { size: MARK, stroke: edge } };
  return new uPlot(
    {
      width: element.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      scales: { x: { time: false }, y: look.log ? { distr: 3 } : {} },
      cursor: {
        drag: { x: true, y: false, setScale: false },
        // A zoom is told to the others by the page, so that it outlives the next answer.
        sync: { key: group, scales: ["x", null], filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
        bind: {
          dblclick: () => () => {
            onZoom(undefined);
            return null;
          },
        },
      },
      axes: [
        {
          ...axis,
          values: (_plot, values, _axis, _space, apart) => ticks(values, apart),
          space: (plot, _axis, least, most) => room(plot, least, most),
        },
        {
          ...axis,
          values: (_plot, values, _axis, _space, apart) =>
            look.log ? values.map((each) => (each ? shown(each) : "")) : ticks(values, apart, shown),
          size: (plot, texts) => Math.max(NARROWEST, widest(plot, texts) + GAP + MARK),
        },
      ],
      // Half of the last text may stand beyond the end of the axis.
      padding: [null, (plot) => room(plot, plot.scales.x?.min, plot.scales.x?.max) / 2, null, null],
      series: [
        {},
        ...raw,
        ...over,
      ],
      hooks: {
        draw: [(plot) => markRestarts(plot, restarts, ink)],
        setCursor: [({ cursor, posToVal }) => onPoint((cursor.left ?? -1) < 0 ? undefined : posToVal(cursor.left ?? 0, "x"))],
        setSelect: [
          (plot) => {
            const { left, width } = plot.select;
            if (width < 1) return;
            onZoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
            plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          },
        ],
      },
    },
    data,
    element,
  );
}

/** The width of a text below the drawing with the gaps beside it. Before uPlot has data, the axis has no ends. */
function room(plot: uPlot, least?: number | null, most?: number | null): number {
  const [first, last] = [least ?? 0, most ?? 0];
  return Math.max(NARROWEST, 2 * GAP + widest(plot, ticks([first, last], (last - first) / 10)));
}

/** The width of the widest text of an axis. Before uPlot has data, the axis has no texts. */
function widest({ ctx }: uPlot, texts: string[] | null): number {
  ctx.font = FONT;
  return Math.max(0, ...(texts ?? []).map((text) => ctx.measureText(text).width));
}

/** The points by step. A step that a later attempt repeated has the value of the later attempt. */
function inOrder(curve: XCurve): Points {
  const values = new Map(curve.xs.map((x, place) => [x, curve.values[place] ?? NaN]));
  const steps = [...values.keys()].sort((a, b) => a - b);
  return [steps, steps.map((step) => values.get(step) ?? NaN)];
}

function markRestarts(plot: uPlot, restarts: number[], colour: string): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.setLineDash([4, 4]);
  for (const step of restarts) {
    const x = plot.valToPos(step, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

/** One drawing of curves over each other, and its last values as a table for those who do not see it. */

import uPlot from "uplot";
import { useEffect, useRef } from "preact/hooks";
import { number, ticks } from "./format";
import { Head, Table } from "./parts";
import type { Curve } from "./api";
import type { Form } from "./format";

export interface Line {
  label: string;
  curve: Curve;
}

const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
const HEIGHT = 220;
const FONT = "12px system-ui, sans-serif";
/** CSS pixels: of the marks of an axis, between them and the texts, and of the narrowest axis. */
const [MARK, GAP, NARROWEST] = [10, 5, 50];

interface Drawing {
  title: string;
  lines: Line[];
  /** Where on the axis an attempt after the first began. */
  restarts: number[];
  /** What the curves' `steps` are, and one of them. */
  over?: { axis: string; head: string };
  /** A value as text. */
  shown?: Form;
}

const STEPS = { axis: "steps", head: "Step" };

export function Plot({ title, lines, restarts, over = STEPS, shown = number }: Drawing) {
  const frame = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = frame.current;
    if (!element) return;
    const draw = () => drawn(element, lines, restarts, shown);
    let plot = draw();
    const sized = new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height: HEIGHT }));
    sized.observe(element);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const recoloured = () => {
      plot.destroy();
      plot = draw();
    };
    scheme.addEventListener("change", recoloured);
    return () => {
      scheme.removeEventListener("change", recoloured);
      sized.disconnect();
      plot.destroy();
    };
  }, [lines, restarts, shown]);
  return (
    <section class="plot">
      <h3>{title}</h3>
      <div ref={frame} role="img" aria-label={`${title} over ${over.axis}; the table below has the last values`} />
      <Table label={`Last values of ${title}`}>
        <Head names={["Curve", over.head, "Last", "Least", "Greatest"]} />
        <tbody>
          {lines.map(({ label, curve }, place) => (
            <tr key={label}>
              <th scope="row">
                <span class={`swatch line-${(place % COLOURS.length) + 1}`} aria-hidden="true" /> {label}
              </th>
              <td>{number(curve.steps.at(-1))}</td>
              <td>{shown(curve.values.at(-1))}</td>
              <td>{shown(least(curve.values))}</td>
              <td>{shown(-least(curve.values.map((value) => -value)))}</td>
            </tr>
          ))}
        </tbody>
      </Table>
    </section>
  );
}

function least(values: number[]): number {
  return values.reduce((a, b) => Math.min(a, b), Infinity);
}

function drawn(element: HTMLElement, lines: Line[], restarts: number[], shown: Form): uPlot {
  const style = getComputedStyle(element);
  const [ink, edge] = [style.getPropertyValue("--ink"), style.getPropertyValue("--grid")];
  const data = uPlot.join(lines.map(({ curve }) => inOrder(curve)));
  const axis = { font: FONT, gap: GAP, stroke: ink, grid: { stroke: edge }, ticks: { size: MARK, stroke: edge } };
  return new uPlot(
    {
      width: element.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      scales: { x: { time: false } },
      axes: [
        {
          ...axis,
          values: (_plot, values, _axis, _space, apart) => ticks(values, apart),
          space: (plot, _axis, least, most) => room(plot, least, most),
        },
        {
          ...axis,
          values: (_plot, values, _axis, _space, apart) => ticks(values, apart, shown),
          size: (plot, texts) => Math.max(NARROWEST, widest(plot, texts) + GAP + MARK),
        },
      ],
      // Half of the last text may stand beyond the end of the axis.
      padding: [null, (plot) => room(plot, plot.scales.x?.min, plot.scales.x?.max) / 2, null, null],
      series: [
        {},
        ...lines.map(({ label }, place) => ({
          label,
          stroke: style.getPropertyValue(COLOURS[place % COLOURS.length] ?? "--ink"),
          dash: DASHES[Math.floor(place / COLOURS.length) % DASHES.length] ?? [],
          width: 2,
          spanGaps: true,
        })),
      ],
      hooks: { draw: [(plot) => markRestarts(plot, restarts, ink)] },
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
function inOrder(curve: Curve): [number[], number[]] {
  const values = new Map(curve.steps.map((step, place) => [step, curve.values[place] ?? NaN]));
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

/** The strip of each rank: when it was there, and how busy. */

import { useMemo, useState } from "preact/hooks";
import { bytes, NONE, number } from "./format";
import { Head, Table } from "./parts";
import { clock, rankName, shown } from "./usage";
import type { RankRow, Utilisation } from "./usage";

const REMARKS = { idle: "▼ idle", busy: "▲ busy", slow: "◆ slow", missing: "○ gone" };
const HEIGHT = 20;
const MOST_STAYS = 3;
const DAY = 86400;

interface Shown {
  name: string;
  unit: string;
  cells: (row: RankRow) => (number | null)[];
  lately: (row: RankRow) => number | null;
  full: number;
}

export function Timeline({ data }: { data: Utilisation }) {
  const [gpus, setGpus] = useState(false);
  const [pointed, setPointed] = useState("");
  const hasGpus = data.rows.some((row) => row.gpu.some((value) => value !== null));
  const measure: Shown =
    gpus && hasGpus
      ? { name: "GPUs", unit: "share", cells: (row) => row.gpu, lately: (row) => row.latelyGpu, full: 1 }
      : { name: "processors", unit: "", cells: (row) => row.cores, lately: (row) => row.latelyCores, full: data.mostCores };
  const form = shown(measure.unit);
  const began = data.began ?? 0;
  const end = began + data.cellSeconds * (data.rows[0]?.present.length ?? 0);
  const withDay = end - began > DAY;
  const withSteps = data.rows.some((row) => row.stepSeconds !== null);
  const point = (event: PointerEvent, row: RankRow) => {
    const { left, width } = (event.currentTarget as Element).getBoundingClientRect();
    const cell = Math.min(row.present.length - 1, Math.max(0, Math.floor(((event.clientX - left) / width) * row.present.length)));
    const value = row.present[cell] ? `${form(measure.cells(row)[cell])} ${measure.name}` : "not there";
    setPointed(`${rankName(row.rank)}, ${clock(began + cell * data.cellSeconds, withDay)}: ${value}`);
  };
  return (
    <div class="strips">
      {hasGpus && (
        <label>
          Show{" "}
          <select value={gpus ? "gpus" : "cores"} onChange={(event) => setGpus(event.currentTarget.value === "gpus")}>
            <option value="cores">processors</option>
            <option value="gpus">GPUs</option>
          </select>
        </label>
      )}
      <Table label="Ranks over time">
        <Head
          names={[
            "Rank",
            `${clock(began, withDay)} – ${clock(end, withDay)} UTC`,
            `Lately, ${measure.name}`,
            "Memory",
            ...(withSteps ? ["Seconds a step"] : []),
          ]}
        />
        <tbody>
          {data.rows.map((row) => (
            <tr key={row.rank} class={row.remark ? "differs" : ""}>
              <th scope="row">
                {rankName(row.rank)}
                {row.remark && <strong class="warns">{REMARKS[row.remark]}</strong>}
              </th>
              <td class="strip" onPointerMove={(event) => point(event, row)} onPointerLeave={() => setPointed("")}>
                <Strip row={row} data={data} cells={measure.cells(row)} full={measure.full} withDay={withDay} />
              </td>
              <td>{form(measure.lately(row))}</td>
              <td>{row.latelyMemory === null ? NONE : bytes(row.latelyMemory)}</td>
              {withSteps && <td>{number(row.stepSeconds, 3)}</td>}
            </tr>
          ))}
        </tbody>
      </Table>
      <p class="readout">
        {pointed ||
          `Grey: the rank is there. The higher the bar, the busier: a full bar is ${form(measure.full)} ${measure.name}. ` +
            (data.attempts.length > 1 ? "Dashed lines: attempts begin." : "")}
      </p>
    </div>
  );
}

/** What a screen reader says of the strip. */
function presence(row: RankRow, withDay: boolean): string {
  const stays = row.stays.map(
    (each) => `attempt ${each.attempt} from ${clock(each.began, withDay)} to ${clock(each.ended, withDay)} in ${each.pod}`,
  );
  const more = stays.length > MOST_STAYS ? `${stays.length - MOST_STAYS} attempts before, ` : "";
  return `${rankName(row.rank)}: ${more}${stays.slice(-MOST_STAYS).join(", ")}`;
}

interface StripOf {
  row: RankRow;
  data: Utilisation;
  cells: (number | null)[];
  full: number;
  withDay: boolean;
}

function Strip({ row, data, cells, full, withDay }: StripOf) {
  const width = row.present.length;
  const there = useMemo(() => row.present.map((each, cell) => (each ? box(cell, HEIGHT) : "")).join(""), [row]);
  const busy = useMemo(
    () => cells.map((each, cell) => (each ? box(cell, (HEIGHT * Math.min(each, full)) / full) : "")).join(""),
    [cells, full],
  );
  return (
    <svg role="img" aria-label={presence(row, withDay)} viewBox={`0 0 ${width} ${HEIGHT}`} preserveAspectRatio="none">
      <path class="there" d={there} />
      <path class="busy" d={busy} />
      {data.attempts.slice(1).map(({ attempt, time }) => {
        const x = (time - (data.began ?? 0)) / data.cellSeconds;
        return <line key={attempt} class="begins" x1={x} x2={x} y1={0} y2={HEIGHT} />;
      })}
    </svg>
  );
}

function box(cell: number, height: number): string {
  const top = (HEIGHT - height).toFixed(2);
  return `M${cell} ${HEIGHT}V${top}H${cell + 1}V${HEIGHT}Z`;
}

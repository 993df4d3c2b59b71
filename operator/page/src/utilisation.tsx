/** The curves of what some ranks use. */

import { useMemo, useState } from "preact/hooks";
import { Charts, useColours } from "./charts";
import { rankName, shown } from "./usage";
import type { Line } from "./plot";
import type { Utilisation } from "./usage";

const HOUR = 3600;
const LONG = 3 * HOUR;

/** asked: the ranks whose curves the user wants; ask: asks for others. */
export function Curves({ data, asked, ask }: { data: Utilisation; asked: string; ask: (ranks: string) => void }) {
  const [open, setOpen] = useState(false);
  const [typed, setTyped] = useState(asked);
  const ranks = useMemo(() => [...new Set(data.measures.flatMap(({ curves }) => curves.map(({ rank }) => rankName(rank))))], [data]);
  const places = useColours(ranks);
  const drawings = useMemo(() => drawn(data, places), [data, places]);
  const drawnRanks = data.ranks - data.curvesLeftOut;
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Utilisation of each rank</summary>
      <form
        class="bar"
        onSubmit={(event) => {
          event.preventDefault();
          ask(typed.trim());
        }}
      >
        <label>
          Ranks{" "}
          <input type="text" placeholder="0, 3" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
        </label>
        <button type="submit" class="quiet">
          Draw
        </button>
      </form>
      {data.curvesLeftOut > 0 && (
        <p>
          Curves of {drawnRanks} of {data.ranks} ranks. Name up to 8 others, with commas between them.
        </p>
      )}
      {data.attempts.length > 1 && <p>Dashed vertical lines: attempts begin.</p>}
      {open && <Charts charts={drawings.charts} restarts={drawings.begins} over={drawings.over} group="ranks" />}
    </details>
  );
}

/** The curves over the time since the first sample. */
function drawn(data: Utilisation, places: Record<string, number>) {
  const began = data.began ?? 0;
  const length = Math.max(0, ...data.measures.flatMap(({ curves }) => curves.map(({ times }) => (times.at(-1) ?? 0) - began)));
  const unit = length > LONG ? HOUR : 60;
  const since = (time: number) => (time - began) / unit;
  return {
    over: unit === HOUR ? { axis: "hours", head: "Hour" } : { axis: "minutes", head: "Minute" },
    begins: data.attempts.slice(1).map(({ time }) => since(time)),
    charts: data.measures.map(({ name, unit: of, curves }) => ({
      title: name,
      form: shown(of),
      lines: curves.map(
        ({ rank, times, values }): Line => ({
          label: rankName(rank),
          place: places[rankName(rank)] ?? 0,
          curve: { name, xs: times.map(since), values },
        }),
      ),
    })),
  };
}

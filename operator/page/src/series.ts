/** What charts compute: smoothing, colours, order, and the x axis. All functions are pure, and need no browser. */

export type X = "step" | "time" | "epoch";
export type Rank = "program" | "throughput" | "machine" | "closed";

/** The mean of TensorBoard: exponential, and corrected for the missing past. weight: 0, as it is, to below 1. */
export function smoothed(values: number[], weight: number): number[] {
  let [mean, share] = [0, 1];
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    mean = mean * weight + (1 - weight) * value;
    share *= weight;
    return mean / (1 - share);
  });
}

/** The place of the point nearest to x, or -1 where there is none. xs: in ascending order. */
export function nearest(xs: number[], x: number): number {
  let [low, high] = [0, xs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((xs[middle] ?? 0) < x) low = middle + 1;
    else high = middle;
  }
  const [before, after] = [xs[low - 1], xs[low]];
  if (before === undefined) return xs.length ? 0 : -1;
  return after !== undefined && after - x < x - before ? low : low - 1;
}

/** The epoch of a step, between the known ones. known: pairs of step and epoch, by step. */
export function epochAt(known: [number, number][], step: number): number {
  const after = known.findIndex(([each]) => each >= step);
  const [end, begin] = [known[after === -1 ? known.length - 1 : after], known[after - 1]];
  if (!end) return NaN;
  if (after === -1 || !begin || end[0] === begin[0]) return end[1];
  return begin[1] + ((end[1] - begin[1]) * (step - begin[0])) / (end[0] - begin[0]);
}

const FIRST = ["loss", "accuracy", "top5accuracy", "perplexity", "learningrate", "lr"];
const THROUGHPUT = /(persecond|_per_sec|\/s$|throughput|rate$|steptime|stepseconds|bandwidth)/;
const MACHINE = /(memory|gpu|cpu|disk|network|bytes|processor|temperature|power)/;
const BOOKKEEPING = /^(seconds|steps?|examples|tokens|time|timestamp|epochs?|totalsteps|rank|worldsize|bytes|reducedbytes)$/;

/** What is measured: a title may have the kind of the rows before it. */
function measureOf(title: string): string {
  return (title.split(" ").at(-1) ?? title).toLowerCase();
}

/** Where a chart stands: what the program says, then throughput, then the machine. `closed`: what says nothing new. */
export function rankOf(measure: string, curves: number[][]): Rank {
  const name = measureOf(measure);
  const constant = curves.every((values) => values.every((value) => value === values[0]));
  // One value may be the result of the run.
  const single = curves.every((values) => values.length < 2);
  if (BOOKKEEPING.test(name) || (constant && !single)) return "closed";
  if (/(^|_|\/)(lr|learning_?rate)$/.test(name)) return "program";
  if (THROUGHPUT.test(name)) return "throughput";
  return MACHINE.test(name) ? "machine" : "program";
}

/** The charts of one rank: loss, accuracy and learning rate come first, then as the API has them. */
export function inOrder<T>(charts: T[], measure: (chart: T) => string): T[] {
  const place = (chart: T) => (FIRST.indexOf(measureOf(measure(chart))) + FIRST.length + 1) % (FIRST.length + 1);
  return [...charts].sort((a, b) => place(a) - place(b));
}

/** Colours, and the forms of lines: 24 runs differ. The first six have whole lines. */
export const [COLOURS, PLACES] = [6, 24];

/**
 * A place among the colours for each run. A run keeps the place that it has in `kept`; a new one takes the place of
 * its name, or the next free one.
 */
export function placesOf(runs: string[], kept: Record<string, number>): Record<string, number> {
  const [places, taken]: [Record<string, number>, Set<number>] = [{}, new Set()];
  const known = (run: string) => (Object.hasOwn(kept, run) ? kept[run] : undefined);
  for (const run of [...runs].sort((a, b) => Number(known(b) !== undefined) - Number(known(a) !== undefined))) {
    let place = known(run) ?? hash(run) % COLOURS;
    for (let tried = 0; taken.has(place) && tried < PLACES; tried += 1) place = (place + 1) % PLACES;
    taken.add(place);
    places[run] = place;
  }
  return places;
}

function hash(text: string): number {
  let sum = 2166136261;
  for (let at = 0; at < text.length; at += 1) sum = Math.imul(sum ^ text.charCodeAt(at), 16777619) >>> 0;
  return sum;
}

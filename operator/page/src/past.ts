/** The options of the command lines of past jobs, which cost the server a file of each job that it does not know yet. */

import { useMemo } from "preact/hooks";
import { usePolled } from "./polled";
import type { JobRow, PastOptions, Refused } from "./api";

const SECONDS = 300;

/** The options by uid. They are asked for if they are wanted, and once the list of the jobs is there. */
export function usePastOptions(
  wanted: boolean,
  past: JobRow[] | undefined,
): { options: ReadonlyMap<string, Record<string, string>>; problem: Refused | undefined } {
  const path = wanted && past?.length ? "past/options?limit=1000" : null;
  const { data, problem } = usePolled<PastOptions[]>(path, SECONDS);
  const options = useMemo(() => new Map((data ?? []).map((each) => [each.uid, each.arguments])), [data]);
  return { options, problem: wanted ? problem : undefined };
}

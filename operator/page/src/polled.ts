/** Answers of the API that are asked for again and again while the page is looked at. */

import { useEffect, useState } from "preact/hooks";
import { get, Refused } from "./api";

export interface Polled<T> {
  data: T | undefined;
  /** Why the newest request had no answer. `data` then is the last answer. */
  problem: Refused | undefined;
  again: () => void;
}

/** Ask for a path now, and every so many seconds; 0: only once. Nothing is asked for while the page is hidden. */
export function usePolled<T>(path: string | null, seconds: number): Polled<T> {
  const [data, setData] = useState<{ path: string; answer: T }>();
  const [problem, setProblem] = useState<Refused>();
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (path === null) return;
    const stop = new AbortController();
    let timer: number | undefined;
    const look = async () => {
      if (!document.hidden) {
        try {
          const answer = await get<T>(path, stop.signal);
          setData({ path, answer });
          setProblem(undefined);
        } catch (error) {
          if (stop.signal.aborted) return;
          setProblem(error instanceof Refused ? error : new Refused(0, String(error), null));
        }
      }
      if (seconds && !stop.signal.aborted) timer = window.setTimeout(look, seconds * 1000);
    };
    void look();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [path, seconds, round]);
  const fresh = data?.path === path ? data?.answer : undefined;
  return { data: fresh, problem, again: () => setRound(round + 1) };
}

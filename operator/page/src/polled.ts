/** Answers of the API that are asked for again and again while the page is looked at. */

import { useEffect, useState } from "preact/hooks";
import { get, Refused } from "./api";

export interface Polled<T> {
  data: T | undefined;
  /** Why the newest request had no answer. `data` then is the last answer. */
  problem: Refused | undefined;
  again: () => void;
}

/** The time between two requests, in times of the last answer: thousands of jobs keep the server busy for a second. */
const TIMES_OF_ANSWER = 5;

/** Ask for a path now, and about every so many seconds; 0: only once. Nothing is asked for while the page is hidden. */
export function usePolled<T>(path: string | null, seconds: number): Polled<T> {
  const [data, setData] = useState<{ path: string; answer: T }>();
  const [problem, setProblem] = useState<Refused>();
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (path === null) return;
    const stop = new AbortController();
    let timer: number | undefined;
    const look = async () => {
      const began = performance.now();
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
      const pause = Math.max(seconds * 1000, TIMES_OF_ANSWER * (performance.now() - began));
      if (seconds && !stop.signal.aborted) timer = window.setTimeout(look, pause);
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

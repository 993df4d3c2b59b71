/** The part of the page that the address names, after its `#`. */

import { useEffect, useState } from "preact/hooks";
import type { JobKey } from "./api";

export type Route =
  | { page: "list" }
  | { page: "new"; from?: JobKey & { resume: boolean } }
  | { page: "job"; job: JobKey }
  | { page: "compare"; jobs: JobKey[] };

export function href(...words: string[]): string {
  return `#/${words.map(encodeURIComponent).join("/")}`;
}

/** A job in one word of an address. */
export function jobWord({ namespace, name, uid }: JobKey): string {
  return [namespace, name, ...(uid ? [uid] : [])].join("/");
}

function jobOf(word: string | undefined): JobKey | undefined {
  const [namespace, name, uid] = word?.split("/") ?? [];
  return namespace && name ? { namespace, name, uid } : undefined;
}

export function route(hash: string): Route {
  const [page, ...words] = hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  const job = jobOf(words[0]);
  if (page === "jobs" && job) return { page: "job", job };
  if (page === "new") return job ? { page, from: { ...job, resume: words[1] === "resume" } } : { page };
  if (page === "compare") return { page, jobs: words.map(jobOf).filter((each) => each !== undefined) };
  return { page: "list" };
}

export function useRoute(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener("hashchange", changed);
    changed(); // Effects run after the first drawing: the address may have changed meanwhile.
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route(hash);
}

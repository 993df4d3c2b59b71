/** The part of the page that the address names, after its `#`. */

import { useEffect, useState } from "preact/hooks";

export type Route =
  | { page: "list" }
  | { page: "new"; from?: { namespace: string; name: string; resume: boolean } }
  | { page: "job"; namespace: string; name: string }
  | { page: "compare"; jobs: [string, string][] };

export function href(...words: string[]): string {
  return `#/${words.map(encodeURIComponent).join("/")}`;
}

export function route(hash: string): Route {
  const [page, ...rest] = hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  const [first, second, third] = rest;
  if (page === "jobs" && first && second) return { page: "job", namespace: first, name: second };
  if (page === "new") {
    return first && second
      ? { page, from: { namespace: first, name: second, resume: third === "resume" } }
      : { page };
  }
  if (page === "compare") {
    const jobs = rest.map((pair) => pair.split("/") as [string, string]).filter((pair) => pair.length === 2);
    return { page, jobs };
  }
  return { page: "list" };
}

export function useRoute(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route(hash);
}

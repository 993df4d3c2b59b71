/** Is it slow or stuck, and which rank? What the ranks do, and the times at which they were there. */

import { useEffect, useState } from "preact/hooks";
import { hasBucket, jobPath, keyOf } from "./api";
import { Loading, Problem } from "./parts";
import { usePolled } from "./polled";
import { Timeline } from "./timeline";
import { Curves } from "./utilisation";
import type { JobView } from "./api";
import type { Utilisation } from "./usage";

/** Pods upload their samples every two minutes. */
const SECONDS = 60;
const YOUNG_MILLISECONDS = 300_000;
const MANY_WORKERS = 256;
const SECONDS_OF_MANY = 300;
const OF_INTEREST = ["Stalled", "Bottleneck"];

export function Ranks({ view }: { view: JobView }) {
  const { created, ended, past, workers } = view.row;
  const [asked, setAsked] = useState("");
  const path = hasBucket(view) ? jobPath(keyOf(view.row), ["utilisation"], asked ? { ranks: asked } : {}) : null;
  const live = (workers ?? 0) > MANY_WORKERS ? SECONDS_OF_MANY : SECONDS;
  const { data, problem } = usePolled<Utilisation>(path, ended || past ? 0 : live);
  // The last answer stays while other curves are asked for.
  const [last, setLast] = useState<Utilisation>();
  useEffect(() => {
    if (data) setLast(data);
  }, [data]);
  const found = data ?? last;
  const conditions = view.conditions.filter((each) => each.status === "True" && OF_INTEREST.includes(each.type));
  const findings = [...conditions.map((each) => each.message ?? each.reason), ...(found?.findings ?? [])];
  if (!path && !findings.length) return null;
  const young = !ended && created && Date.now() - Date.parse(created) < YOUNG_MILLISECONDS;
  return (
    <>
      <h2>Ranks</h2>
      <Problem problem={problem} />
      {path && !found && !problem && <Loading what="the ranks" />}
      {findings.length > 0 && (
        <ul class="findings" aria-label="Ranks that differ">
          {findings.map((each) => (
            <li key={each}>{each}</li>
          ))}
        </ul>
      )}
      {found && found.ranks === 0 && <p>There are no samples of the ranks{young ? ": the first arrive after two minutes" : ""}.</p>}
      {found && found.ranks > 1 && !found.findings.length && <p>The ranks use processors and GPUs alike.</p>}
      {found && found.ranks > 0 && (
        <>
          <Timeline data={found} />
          <LeftOut data={found} />
          <Curves data={found} asked={asked} ask={setAsked} />
        </>
      )}
    </>
  );
}

function LeftOut({ data }: { data: Utilisation }) {
  const said = [
    data.rowsLeftOut && `${data.rowsLeftOut} of ${data.ranks} ranks have no row: those that differ from the others come first`,
    data.filesUnread && `the samples of ${data.filesUnread} more pods are not read: there are too many`,
    data.linesLeftOut && `${data.linesLeftOut} lines are no samples`,
  ].filter(Boolean);
  return said.length ? <p>Left out: {said.join("; ")}.</p> : null;
}

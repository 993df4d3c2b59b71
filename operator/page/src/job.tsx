/** One job: its state in words, failure, ranks, curves, pods, events, output, files and YAML. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { Actions } from "./actions";
import { download, hasBucket, jobPath, keyOf, Refused } from "./api";
import { bytes, NONE, number, rateOf, since } from "./format";
import { Logs } from "./logs";
import { Command, copyLine, Head, Loading, Problem, ProgressBar, State, Table, Title } from "./parts";
import { axesOf, Charts, curveOver, restartsOver, useColours } from "./charts";
import { SaveAsFile } from "./saving";
import { usePolled } from "./polled";
import { Ranks } from "./ranks";
import { Stacks } from "./stacks";
import { COLOURS, PLACES } from "./series";
import type { About, Artifact, Curves, JobKey, JobView } from "./api";
import type { Chart } from "./charts";
import type { Line } from "./plot";
import type { X } from "./series";

const MOST_DOWNLOAD = 256 * 1024 * 1024;

export function Job({ job, about }: { job: JobKey; about: About | undefined }) {
  // What a bucket recorded of a job that is gone does not change.
  const { data: view, problem, again } = usePolled<JobView>(jobPath(job), job.uid ? 0 : 2);
  return (
    <>
      <Title>{job.name}</Title>
      <Problem problem={problem} />
      {!view && !problem && <Loading what="the job" />}
      {view && <Shown view={view} changed={again} about={about} />}
    </>
  );
}

function Shown({ view, changed, about }: { view: JobView; changed: () => void; about: About | undefined }) {
  const { row } = view;
  const facts: [string, string][] = [
    ["Strategy", row.strategy ?? NONE],
    ["Workers", number(row.workers)],
    ...(typeof row.gpus === "number" ? [["GPUs", number(row.gpus)] as [string, string]] : []),
    ["Attempt", number(row.attempt)],
    ["Age", since(row.created)],
  ];
  if (row.ended) facts.push(["Took", since(row.created, Date.parse(row.ended))]);
  if (view.code) facts.push(["Code", view.code]);
  const rate = rateOf(row.progress);
  if (rate) facts.push([row.progress?.examplesPerSecond ? "Examples/s" : "Rate", rate]);
  if (typeof row.progress?.loss === "number") facts.push(["Loss", number(row.progress.loss)]);
  if (typeof row.progress?.accuracy === "number") facts.push(["Accuracy", number(row.progress.accuracy)]);
  if (view.artifacts?.uri) facts.push(["Bucket", view.artifacts.uri]);
  if (view.artifacts?.checkpoint) {
    const { step, uri, new: names } = view.artifacts.checkpoint;
    const what = typeof step === "number" ? `step ${step}: ` : "";
    facts.push(["Checkpoint", `${what}${uri}${names?.length ? ` (${names.join(", ")})` : ""}`]);
  }
  if (view.artifacts?.model) facts.push(["Model", view.artifacts.model]);
  if (view.tensorboard?.url) facts.push(["TensorBoard, in the cluster", view.tensorboard.url]);
  const serve = view.commands.find((each) => each.action === "serve");
  return (
    <>
      <p class="sentence" aria-live="polite">
        <State job={row} /> {row.sentence}
      </p>
      {view.note && <p>{view.note}</p>}
      <ProgressBar progress={row.progress} name={row.name} />
      {about?.changes && <Actions view={view} changed={changed} />}
      {view.failure && row.phase !== "Succeeded" && (
        <section class="failure">
          <h2>Failure</h2>
          <p>
            {[view.failure.class, view.failure.pod, view.failure.node, view.failure.message].filter(Boolean).join(": ")}
          </p>
          {view.failure.lastLogLines && <pre tabIndex={0}>{view.failure.lastLogLines.join("\n")}</pre>}
        </section>
      )}
      <dl>
        {facts.map(([term, value]) => (
          <div key={term}>
            <dt>{term}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <Parts uid={row.uid} />
      {serve && (
        <>
          <h2>Serve the model</h2>
          <Command command={serve.command} />
        </>
      )}
      <Ranks view={view} />
      <Stacks view={view} />
      <CurvesOf view={view} />
      {about?.place !== "machine" && (
        <>
          <h2>Pods</h2>
          <Pods view={view} />
        </>
      )}
      <h2>Events</h2>
      <Events view={view} />
      <Logs view={view} />
      <Files view={view} />
      <SaveAsFile view={view} />
      <details>
        <summary>YAML</summary>
        <pre tabIndex={0}>{view.yaml}</pre>
      </details>
    </>
  );
}

/** A way to each part of a long page. Parts come and go with the answers. */
function Parts({ uid }: { uid: string }) {
  const [parts, setParts] = useState<HTMLElement[]>([]);
  useEffect(() => {
    const main = document.querySelector("main");
    if (!main) return;
    const look = () => {
      const found = [...main.querySelectorAll<HTMLElement>(":scope > h2, :scope > details:not(.closed) > summary")];
      setParts((known) => (found.length === known.length && found.every((each, at) => each === known[at]) ? known : found));
    };
    const changed = new MutationObserver(look);
    changed.observe(main, { childList: true });
    look();
    return () => changed.disconnect();
  }, [uid]);
  const show = (part: HTMLElement) => {
    if (part.parentElement instanceof HTMLDetailsElement) part.parentElement.open = true;
    else part.tabIndex = -1;
    part.scrollIntoView();
    part.focus({ preventScroll: true });
  };
  return (
    <nav class="parts" aria-label="Parts of the page">
      {parts.map((part) => (
        <button key={part.textContent} type="button" class="link" onClick={() => show(part)}>
          <span aria-hidden="true">↓ </span>
          {part.textContent}
        </button>
      ))}
    </nav>
  );
}

/** Curves of a running job are asked for less often than its state: the file grows with the training. */
function CurvesOf({ view }: { view: JobView }) {
  const { ended } = view.row;
  const path = hasBucket(view) ? jobPath(keyOf(view.row), ["curves"]) : null;
  const { data, problem } = usePolled<Curves>(path, ended ? 0 : 10);
  const [x, choose] = useState<X>("step");
  const { uid } = view.row;
  const place = useColours([uid])[uid] ?? 0;
  const charts = useMemo(() => grouped(data, x, place), [data, x, place]);
  const restarts = useMemo(() => (data ? restartsOver(data, x) : []), [data, x]);
  if (!path) return null;
  return (
    <>
      <h2>Curves</h2>
      <Problem problem={problem} />
      {!data && !problem && <Loading what="the curves" />}
      {data && charts.length === 0 && <p>The program has reported no metrics yet.</p>}
      {data && data.restarts.length > 0 && (
        <p>Dashed vertical lines: restarts, at {data.restarts.length === 1 ? "step" : "steps"} {data.restarts.join(", ")}.</p>
      )}
      {data && <Charts charts={charts} restarts={restarts} group="curves" x={{ at: x, offered: axesOf([data]), choose }} />}
    </>
  );
}

/** The same measure of training and test stands in one drawing. */
function grouped(curves: Curves | undefined, x: X, place: number): Chart[] {
  const groups = new Map<string, Line[]>();
  for (const curve of curves?.curves ?? []) {
    const [kind = "", ...words] = curve.name.split(" ");
    const title = words.join(" ") || curve.name;
    const lines = groups.get(title) ?? [];
    // The colour is that of the run, and the form of the line that of the kind.
    lines.push({ label: kind, curve: curveOver(curve, curves!, x), place: (place + COLOURS * lines.length) % PLACES });
    groups.set(title, lines);
  }
  return [...groups].map(([title, lines]) => ({ title, lines }));
}

function Pods({ view }: { view: JobView }) {
  if (!view.pods.length) return <p>The job has no pods now.</p>;
  return (
    <>
      <Table label="Pods">
        <Head names={["Pod", "Ranks", "Node", "State", "Attempt"]} />
        <tbody>
          {view.pods.map((pod) => (
            <tr key={pod.name}>
              <th scope="row">{pod.name}</th>
              <td>{pod.ranks}</td>
              <td>{pod.node ?? "–"}</td>
              <td>{pod.state}</td>
              <td>{pod.attempt}</td>
            </tr>
          ))}
        </tbody>
      </Table>
      {view.morePods > 0 && <p>and {view.morePods} more</p>}
    </>
  );
}

function Events({ view }: { view: JobView }) {
  if (!view.events.length) return <p>The cluster has no events of the job; most clusters keep events for an hour.</p>;
  return (
    <Table label="Events">
      <Head names={["Ago", "Type", "Reason", "Object", "Message"]} />
      <tbody>
        {view.events.toReversed().map((event, place) => (
          <tr key={place}>
            <td>
              {since(event.time)}
              {event.count > 1 ? ` (×${event.count})` : ""}
            </td>
            <td class={event.type === "Warning" ? "warns" : ""}>{event.type}</td>
            <td>{event.reason}</td>
            <td>{event.object}</td>
            <td>{event.message}</td>
          </tr>
        ))}
      </tbody>
    </Table>
  );
}

function Files({ view }: { view: JobView }) {
  const [open, setOpen] = useState(false);
  const [failed, setFailed] = useState<Refused>();
  const { data, problem } = usePolled<Artifact[]>(open ? jobPath(keyOf(view.row), ["artifacts"]) : null, 0);
  const save = async (file: Artifact) => {
    setFailed(undefined);
    const path = jobPath(keyOf(view.row), ["artifacts", ...file.key.split("/")]);
    try {
      await download(path, file.key.split("/").at(-1) ?? file.key);
    } catch (error) {
      setFailed(error instanceof Refused ? error : new Refused(0, String(error), null));
    }
  };
  const command = view.commands.find((each) => each.action === "artifacts")?.command;
  if (!command) return null;
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Files in the bucket</summary>
      <Problem problem={problem ?? failed} />
      {open && !data && !problem && <Loading what="the files" />}
      {data && (
        <Table label="Files in the bucket">
          <Head names={["File", "Size", "Save"]} />
          <tbody>
            {data.map((file) => (
              <tr key={file.key}>
                <th scope="row">{file.key}</th>
                <td>{bytes(file.size)}</td>
                <td>
                  {file.size <= MOST_DOWNLOAD ? (
                    <button type="button" class="quiet" aria-label={`Save ${file.key}`} onClick={() => save(file)}>
                      Save
                    </button>
                  ) : (
                    <code>{copyLine(command, file.key, ".")}</code>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </Table>
      )}
    </details>
  );
}

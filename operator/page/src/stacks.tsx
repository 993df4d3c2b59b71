/** Where each rank stands in a stall: its stacks, as its pod wrote them. */

import { useEffect, useState } from "preact/hooks";
import { hasBucket, jobPath, keyOf } from "./api";
import { bytes, NONE } from "./format";
import { Command, copyLine, Head, Loading, Problem, Table } from "./parts";
import { usePolled } from "./polled";
import { rankName, rankNames } from "./usage";
import type { JobView } from "./api";
import type { Dump, StackFile, Stacks as Answer, StackText } from "./usage";

const SETTLE_MILLISECONDS = 300;
const SECONDS = 30;

export function Stacks({ view }: { view: JobView }) {
  const stalled =
    view.failure?.class === "Stalled" || view.conditions.some((each) => each.type === "Stalled" && each.status === "True");
  const [open, setOpen] = useState(stalled);
  useEffect(() => {
    if (stalled) setOpen(true);
  }, [stalled]);
  if (!hasBucket(view)) return null;
  return (
    <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Stacks</summary>
      {open && <Written view={view} />}
    </details>
  );
}

function Written({ view }: { view: JobView }) {
  const [typed, setTyped] = useState("");
  const [search, setSearch] = useState("");
  const [chosen, setChosen] = useState<StackFile>();
  useEffect(() => {
    const timer = setTimeout(() => setSearch(typed.trim()), SETTLE_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [typed]);
  const { ended, past } = view.row;
  const path = jobPath(keyOf(view.row), ["stacks"], search ? { search } : {});
  const { data, problem } = usePolled<Answer>(path, ended || past ? 0 : SECONDS);
  return (
    <>
      <div class="bar">
        <label>
          Search <input type="search" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
        </label>
      </div>
      <Problem problem={problem} />
      {!data && !problem && <Loading what="the stacks" />}
      {data?.files === 0 && <None view={view} />}
      {data && data.files > 0 && data.dumps.length === 0 && <p>No stacks have this text.</p>}
      {data && data.leftOut > 0 && <p>{data.leftOut} of {data.files} files are left out; the newest are here.</p>}
      {data?.dumps.map((dump) => <OneDump key={`${dump.attempt}-${dump.dump}`} dump={dump} choose={setChosen} />)}
      {chosen && <Text view={view} file={chosen} />}
    </>
  );
}

function None({ view }: { view: JobView }) {
  const policy = view.spec["runPolicy"] as { stallTimeoutSeconds?: number } | undefined;
  const seconds = policy?.stallTimeoutSeconds;
  return seconds === undefined ? (
    <p>
      There are no stacks. A job with <code>runPolicy.stallTimeoutSeconds</code> writes the stacks of all its ranks when no step
      was made for so long.
    </p>
  ) : (
    <p>There are no stacks: the job writes them when no step was made for {seconds} s.</p>
  );
}

function OneDump({ dump, choose }: { dump: Dump; choose: (file: StackFile) => void }) {
  const title = `Attempt ${dump.attempt}, ${dump.files[0]?.time ?? `dump ${dump.dump}`}`;
  return (
    <section>
      <h3>{title}</h3>
      <ul class="findings">
        {dump.groups.map((group) => (
          <li key={group.where ?? ""}>
            {rankNames(group.ranks)}{" "}
            {group.where === null ? (
              "left no stack"
            ) : (
              <>
                {group.ranks.length === 1 ? "stands in" : "stand in"} <code>{group.where}</code>
              </>
            )}
          </li>
        ))}
      </ul>
      <Table label={`Stacks of ${title}`}>
        <Head names={["Rank", "Stacks", "Stands in", "Called from", "Size"]} />
        <tbody>
          {dump.files.map((file) => (
            <tr key={file.file}>
              <th scope="row">{rankName(file.rank)}</th>
              <td>
                <button
                  type="button"
                  class="quiet"
                  aria-label={`Show the stacks of ${rankName(file.rank)}, ${title}`}
                  onClick={() => choose(file)}
                >
                  Show
                </button>
              </td>
              <td>{file.where ?? "no stack in the file"}</td>
              <td>{file.calledFrom ?? NONE}</td>
              <td>{bytes(file.size)}</td>
            </tr>
          ))}
        </tbody>
      </Table>
    </section>
  );
}

function Text({ view, file }: { view: JobView; file: StackFile }) {
  const path = jobPath(keyOf(view.row), ["stacks", String(file.attempt), file.file]);
  const { data, problem } = usePolled<StackText>(path, 0);
  const command = view.commands.find((each) => each.action === "artifacts")?.command;
  return (
    <section aria-live="polite">
      <h3>
        Stacks of {rankName(file.rank)}, attempt {file.attempt}
      </h3>
      <Problem problem={problem} />
      {command && <Command command={copyLine(command, `logs/attempt-${file.attempt}/${file.file}`, "-")} />}
      {data && (
        <pre tabIndex={0} class="stack">
          {data.text}
        </pre>
      )}
      {data?.cut && <p>The end is left out; the command prints all.</p>}
    </section>
  );
}

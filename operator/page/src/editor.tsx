/** A job file to write, checked while it is written, with each fault at its line. */

import { useEffect, useState } from "preact/hooks";
import { get, jobPath, keyOf, Refused, send } from "./api";
import { Problem, Title } from "./parts";
import { href, jobWord } from "./route";
import type { About, Checked, JobKey, JobRow } from "./api";

const SETTLE_MILLISECONDS = 400;

type From = JobKey & { resume: boolean };

export function Editor({ from, about }: { from: From | undefined; about: About | undefined }) {
  const [text, setText] = useState("");
  const [strategy, setStrategy] = useState("Horovod");
  const [checked, setChecked] = useState<Checked>();
  const [problem, setProblem] = useState<Refused>();
  const [busy, setBusy] = useState(false);
  const refused = (error: unknown) =>
    setProblem(error instanceof Refused ? error : new Refused(0, String(error), null));

  const path = from
    ? jobPath(from, ["again"], { resume: String(from.resume) })
    : `templates/${encodeURIComponent(strategy)}`;
  useEffect(() => {
    get<{ text: string }>(path).then((answer) => setText(answer.text), refused);
  }, [path]);
  useEffect(() => {
    if (!text) return;
    // Answers may arrive in another order than their requests: only that for the present text counts.
    let present = true;
    const timer = setTimeout(
      () =>
        send<Checked>("POST", "validate", { text }).then(
          (answer) => present && setChecked(answer),
          (error: unknown) => present && refused(error),
        ),
      SETTLE_MILLISECONDS,
    );
    return () => {
      present = false;
      clearTimeout(timer);
    };
  }, [text]);

  const create = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(undefined);
    try {
      const job = await send<JobRow>("POST", "jobs", { text });
      location.hash = href("jobs", jobWord(keyOf(job)));
    } catch (error) {
      refused(error);
    } finally {
      setBusy(false);
    }
  };
  const faults = checked?.faults ?? [];
  return (
    <>
      <Title>{from ? `Run ${from.name} again` : "New job"}</Title>
      <form onSubmit={create}>
        {!from && (
          <p>
            <label>
              Template{" "}
              <select value={strategy} onChange={(event) => setStrategy(event.currentTarget.value)}>
                {(about?.strategies ?? [strategy]).map((each) => (
                  <option key={each}>{each}</option>
                ))}
              </select>
            </label>
          </p>
        )}
        <label for="job-file">Job file</label>
        <textarea
          id="job-file"
          rows={28}
          spellcheck={false}
          wrap="off"
          aria-describedby="faults"
          aria-invalid={faults.length > 0}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <div id="faults" role="status">
          {faults.length > 0 ? (
            <ul class="faults">
              {faults.map((fault, place) => (
                <li key={place}>
                  <button type="button" class="quiet" onClick={() => toLine(fault.line)}>
                    Line {fault.line}
                  </button>{" "}
                  {fault.field && <code>{fault.field}</code>} {fault.message}
                </li>
              ))}
            </ul>
          ) : (
            <p>{checked?.sentence}</p>
          )}
        </div>
        <Problem problem={problem} />
        <div class="bar">
          <button type="submit" disabled={busy || faults.length > 0}>
            Create
          </button>
        </div>
      </form>
    </>
  );
}

/** Select a line of the job file. */
function toLine(line: number): void {
  const area = document.querySelector<HTMLTextAreaElement>("#job-file");
  if (!area) return;
  const lines = area.value.split("\n");
  const start = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
  area.focus();
  area.setSelectionRange(start, start + (lines[line - 1]?.length ?? 0));
}

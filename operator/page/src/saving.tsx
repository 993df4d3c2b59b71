/** Saves a job as one HTML file to send. */

import { useState } from "preact/hooks";
import { download, jobPath, keyOf, Refused } from "./api";
import { Command, Problem } from "./parts";
import type { JobView } from "./api";

export function SaveAsFile({ view }: { view: JobView }) {
  const [failed, setFailed] = useState<Refused>();
  const [busy, setBusy] = useState(false);
  const save = async () => {
    setFailed(undefined);
    setBusy(true);
    try {
      await download(jobPath(keyOf(view.row), ["page.html"]), `run-${view.row.name}.html`);
    } catch (error) {
      setFailed(error instanceof Refused ? error : new Refused(0, String(error), null));
    } finally {
      setBusy(false);
    }
  };
  const command = view.commands.find((each) => each.action === "page")?.command;
  return (
    <details>
      <summary>Send this run</summary>
      <p>
        One HTML file with the state, the failure, curves, tables, options and YAML. Values whose names look secret are
        hidden; the last lines of the program are as it wrote them.
      </p>
      <div class="bar">
        <button type="button" disabled={busy} onClick={save}>
          Save as a file
        </button>
      </div>
      <Problem problem={failed} />
      {command && <Command command={command} />}
    </details>
  );
}

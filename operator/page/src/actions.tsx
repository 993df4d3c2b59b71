/** The buttons that change a job. Each asks once, and shows the command that does the same. */

import { useRef, useState } from "preact/hooks";
import { jobPath, keyOf, Refused, send } from "./api";
import { Command, Problem } from "./parts";
import { href, jobWord } from "./route";
import type { JobView } from "./api";

interface Action {
  name: string;
  label: string;
  question: string;
  done: (workers: number) => Promise<{ message: string }>;
}

function actionsOf(view: JobView): Action[] {
  const { name, suspended, workers } = view.row;
  if (view.row.past) return [];
  const ended = ["Succeeded", "Failed", "Deleting"].includes(view.row.phase);
  // With the row's uid, which keyOf omits: another job may have taken the name since the page was drawn.
  const post = (verb: string, body?: unknown) => send<{ message: string }>("POST", jobPath(view.row, [verb]), body);
  const actions: Action[] = [];
  if (!ended && suspended) {
    actions.push({
      name: "resume",
      label: "Resume",
      question: `${name} continues from its newest checkpoint.`,
      done: () => post("resume"),
    });
  }
  if (!ended && !suspended) {
    actions.push({
      name: "suspend",
      label: "Suspend",
      question: `The pods of ${name} save a checkpoint and end. Resume continues from the checkpoint.`,
      done: () => post("suspend"),
    });
  }
  if (!ended && workers !== null) {
    actions.push({
      name: "scale",
      label: "Scale",
      question: `${name} is suspended, and continues from its checkpoint with the new number of workers.`,
      done: (wanted) => post("scale", { replicas: { worker: wanted } }),
    });
  }
  actions.push({
    name: "delete",
    label: "Delete",
    question: `${name} and its pods are deleted. Its artifacts stay in the bucket.`,
    done: () => send("DELETE", jobPath(view.row)),
  });
  return actions;
}

export function Actions({ view, changed }: { view: JobView; changed: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [action, setAction] = useState<Action>();
  const [workers, setWorkers] = useState(1);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Refused>();
  const [message, setMessage] = useState("");
  const { name } = view.row;
  const word = jobWord(keyOf(view.row));

  const ask = (asked: Action) => {
    setAction(asked);
    setWorkers(view.row.workers ?? 1);
    setProblem(undefined);
    dialog.current?.showModal();
  };
  const confirm = async (event: Event) => {
    event.preventDefault();
    if (!action) return;
    setBusy(true);
    try {
      setMessage((await action.done(workers)).message);
      dialog.current?.close();
      changed();
    } catch (error) {
      setProblem(error instanceof Refused ? error : new Refused(0, String(error), null));
    } finally {
      setBusy(false);
    }
  };
  const command = view.commands.find((each) => each.action === action?.name)?.command.replace("N", String(workers));

  return (
    <>
      <div class="bar">
        {actionsOf(view).map((each) => (
          <button key={each.name} type="button" class={each.name === "delete" ? "quiet danger" : "quiet"} onClick={() => ask(each)}>
            {each.label}
          </button>
        ))}
        <a class="button quiet" href={href("new", word)}>
          Run again
        </a>
        {view.artifacts?.checkpoint && (
          <a class="button quiet" href={href("new", word, "resume")}>
            Go on from its checkpoint
          </a>
        )}
      </div>
      <p role="status">{message}</p>
      <dialog ref={dialog} aria-labelledby="question">
        <form onSubmit={confirm}>
          <h2 id="question">
            {action?.label} {name}?
          </h2>
          <p>{action?.question}</p>
          {action?.name === "scale" && (
            <label>
              Workers{" "}
              <input
                type="number"
                min={1}
                required
                value={workers}
                onInput={(event) => setWorkers(event.currentTarget.valueAsNumber)}
              />
            </label>
          )}
          {command && <Command command={command} />}
          <Problem problem={problem} />
          <div class="bar">
            <button type="submit" class={action?.name === "delete" ? "danger" : ""} disabled={busy}>
              {busy ? "…" : action?.label}
            </button>
            <button type="button" class="quiet" onClick={() => dialog.current?.close()}>
              Cancel
            </button>
          </div>
        </form>
      </dialog>
    </>
  );
}

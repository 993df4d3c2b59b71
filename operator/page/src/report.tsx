/** What `dtj report` says of the compared jobs: its tables, pictures and notes, and the command of the same. */

import { useEffect, useState } from "preact/hooks";
import { download, Refused, reportPath } from "./api";
import { Command, Problem } from "./parts";
import { usePolled } from "./polled";
import { Sortable } from "./sortable";
import type { JobKey, Report } from "./api";

const SETTLE_MILLISECONDS = 400;

export function ReportOf({ jobs }: { jobs: JobKey[] }) {
  const [baseline, setBaseline] = useState("");
  const [price, setPrice] = useState("");
  const [fields, setFields] = useState("");
  const [failed, setFailed] = useState<Refused>();
  const typed = useSettled(JSON.stringify([price, fields]));
  const [settledPrice, settledFields] = JSON.parse(typed) as [string, string];
  const wishes = { baseline, price: settledPrice.trim(), groupBy: settledFields.split(/[\s,]+/).filter(Boolean) };
  const { data, problem } = usePolled<Report>(reportPath("report", jobs, wishes), 0);
  // While a changed report is made, the last one stays.
  const [shown, setShown] = useState<Report>();
  useEffect(() => {
    if (data) setShown(data);
  }, [data]);
  const save = async () => {
    setFailed(undefined);
    try {
      await download(reportPath("report.html", jobs, wishes), "report.html");
    } catch (error) {
      setFailed(error instanceof Refused ? error : new Refused(0, String(error), null));
    }
  };
  return (
    <section aria-busy={!data && !problem}>
      <h2>Report</h2>
      <div class="bar">
        <label>
          Compare with{" "}
          <select value={baseline} onChange={(event) => setBaseline(event.currentTarget.value)}>
            <option value="">nothing</option>
            {(shown?.baselines ?? []).map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </label>
        <label>
          Price of a pod an hour, $0.90/h or by role{" "}
          <input type="text" placeholder="worker=0.90,ps=0.023" value={price} onInput={(event) => setPrice(event.currentTarget.value)} />
        </label>
        <label>
          Group by{" "}
          <input type="text" placeholder="workers" value={fields} onInput={(event) => setFields(event.currentTarget.value)} />
        </label>
        <button type="button" class="quiet" onClick={save}>
          Save the report
        </button>
      </div>
      <Problem problem={problem ?? failed} />
      {!shown && !problem && <p>The report is being made.</p>}
      {shown && (
        <>
          {shown.leftOut.map(({ job, reason }) => (
            <p key={job}>
              {job} is not in the report: {reason}
            </p>
          ))}
          {shown.tables.map((table) => (
            <Sortable key={table.title} table={table} />
          ))}
          {shown.pictures.map((picture) => (
            <p key={picture.name}>
              <img class="picture" alt={picture.alternative} src={`data:image/png;base64,${picture.png}`} />
            </p>
          ))}
          {shown.noPictures && <p>{shown.noPictures}</p>}
          {shown.tables.length > 0 && (
            <ul>
              {shown.notes.map((note) => (
                <li key={note}>{note}</li>
              ))}
            </ul>
          )}
          <Command command={shown.command} />
        </>
      )}
    </section>
  );
}

/** A text once it has not changed for a moment. */
function useSettled(text: string): string {
  const [settled, setSettled] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(text), SETTLE_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [text]);
  return settled;
}

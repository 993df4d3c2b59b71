/** The page of `dtj ui`. */

import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./page.css";
import { takeToken } from "./api";
import { Compare } from "./compare";
import { Editor } from "./editor";
import { Job } from "./job";
import { List } from "./list";
import { href, useRoute } from "./route";
import { usePolled } from "./polled";
import type { About } from "./api";

function whereOf({ place, history, context, namespace }: About): string {
  const words = { cluster: context, bucket: `past jobs of ${history}`, machine: "runs of this machine" }[place];
  return [words, namespace && `namespace ${namespace}`].filter(Boolean).join(", ");
}

function Page() {
  const route = useRoute();
  const { data: about } = usePolled<About>("about", 0);
  return (
    <>
      <header>
        <nav aria-label="dtj">
          <a href={href("list")}>dtj</a>
          {about && <span>{whereOf(about)}</span>}
        </nav>
      </header>
      <main>
        {route.page === "list" && <List about={about} />}
        {route.page === "job" && <Job key={JSON.stringify(route.job)} job={route.job} about={about} />}
        {route.page === "compare" && <Compare jobs={route.jobs} />}
        {route.page === "new" && <Editor key={JSON.stringify(route.from)} from={route.from} about={about} />}
      </main>
    </>
  );
}

takeToken();
render(<Page />, document.body);

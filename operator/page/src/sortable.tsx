/** A table of texts with a caption, which each of its columns sorts. */

import { useMemo, useState } from "preact/hooks";
import { Table } from "./parts";
import type { ReportTable } from "./api";

const NUMBER = /^-?[\d,.]+(e[-+]?\d+)?(?=$|\s)/i;

export function Sortable({ table }: { table: ReportTable }) {
  const [order, setOrder] = useState<{ column: number; down: boolean }>();
  const rows = useMemo(() => sorted(table.rows, order), [table, order]);
  const sort = (column: number) => setOrder({ column, down: order?.column === column ? !order.down : false });
  return (
    <Table label={table.title}>
      <caption>{table.title}</caption>
      <thead>
        <tr>
          {table.headings.map((heading, column) => {
            const by = order?.column === column ? order : undefined;
            return (
              <th key={column} scope="col" aria-sort={by ? (by.down ? "descending" : "ascending") : "none"}>
                <button type="button" class="head" onClick={() => sort(column)}>
                  {heading}
                  <span aria-hidden="true">{by ? (by.down ? " ▼" : " ▲") : ""}</span>
                </button>
              </th>
            );
          })}
        </tr>
      </thead>
      <tbody>
        {rows.map((row, place) => (
          <tr key={place}>
            {row.map((cell, column) =>
              column ? (
                <td key={column}>{cell}</td>
              ) : (
                <th key={column} scope="row">
                  {cell}
                </th>
              ),
            )}
          </tr>
        ))}
      </tbody>
    </Table>
  );
}

/** The rows by a column: numbers by their value, such as `1,010 ± 30`; what is unknown comes last. */
function sorted(rows: string[][], order: { column: number; down: boolean } | undefined): string[][] {
  if (!order) return rows;
  const cell = (row: string[]) => row[order.column] ?? "–";
  const known = rows.filter((row) => cell(row) !== "–");
  known.sort((a, b) => compared(cell(a), cell(b)) * (order.down ? -1 : 1));
  return [...known, ...rows.filter((row) => cell(row) === "–")];
}

function compared(a: string, b: string): number {
  const [first, second] = [a, b].map((text) => NUMBER.exec(text)?.[0].replaceAll(",", ""));
  if (first && second) return Number(first) - Number(second);
  return a.localeCompare(b, "en", { numeric: true });
}

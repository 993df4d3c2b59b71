import assert from "node:assert/strict";
import { test } from "node:test";
import { epochAt, inOrder, nearest, placesOf, rankOf, smoothed } from "../../../operator/page/src/series.ts";
import { gpusInUse, grouped, sortOf, totalsOf } from "../../../operator/page/src/states.ts";

test("smoothing is TensorBoard's, corrected for the missing past", () => {
  assert.deepEqual(smoothed([3, 1, 2], 0), [3, 1, 2]);
  assert.ok(smoothed([5, 5, 5], 0.99).every((value) => Math.abs(value - 5) < 1e-9));
  // 0.6: (1 * 0.4) / 0.4, then (0.4 * 0.6 + 2 * 0.4) / (1 - 0.36).
  assert.deepEqual(smoothed([1, 2], 0.6).map((value) => value.toFixed(6)), ["1.000000", "1.625000"]);
  assert.equal(smoothed([1, NaN, 1], 0.5)[2], 1);
});

test("the pointer takes the nearest point of each curve", () => {
  const found = (x) => nearest([10, 20, 40], x);
  assert.deepEqual([0, 14, 16, 31, 99].map(found), [0, 0, 1, 2, 2]);
  assert.equal(nearest([], 1), -1);
});

test("an epoch between two known ones", () => {
  const known = [[0, 1], [10, 2], [20, 4]];
  assert.deepEqual([0, 5, 15, 99].map((step) => epochAt(known, step)), [1, 1.5, 3, 4]);
  assert.ok(Number.isNaN(epochAt([], 5)));
});

test("what the program says comes first, what says nothing is closed", () => {
  const curve = [[1, 2]];
  const ranks = {
    loss: "program", "train loss": "program", learningRate: "program", bleu: "program", examplesPerSecond: "throughput",
    "train stepSeconds": "throughput", gpuMemory: "machine", seconds: "closed", "train examples": "closed",
  };
  for (const [name, rank] of Object.entries(ranks)) assert.equal(rankOf(name, curve), rank, name);
  assert.equal(rankOf("loss", [[1, 1]]), "closed");
  assert.equal(rankOf("loss", [[1, 1], [1, 2]]), "program");
  assert.equal(rankOf("accuracy", [[0.9]]), "program");
  assert.deepEqual(inOrder(["b", "lr", "test accuracy", "a", "loss"], (each) => each), ["loss", "test accuracy", "lr", "b", "a"]);
});

test("a run keeps its colour, and no two runs have the same", () => {
  const first = placesOf(["a", "b", "c"], {});
  const later = placesOf(["d", "c", "constructor", "a"], first);
  assert.deepEqual([later.a, later.c], [first.a, first.c]);
  const many = placesOf(Array.from({ length: 24 }, (_, n) => `run-${n}`), { "run-3": 5, "run-4": 5 });
  assert.equal(new Set(Object.values(many)).size, 24);
  assert.equal(many["run-3"], 5);
});

test("states: trouble stands in place of the phase", () => {
  const job = (phase, state, gpus) => ({ phase, state, gpus });
  assert.equal(sortOf(job("Running", "Stalled")), "trouble");
  assert.equal(sortOf(job("Pending", "Unschedulable")), "trouble");
  assert.equal(sortOf(job("Pending")), "queued");
  assert.equal(sortOf(job("Failed", "OutOfMemory")), "failed");
  assert.equal(gpusInUse(job("Succeeded", null, 8)), 0);
  const totals = totalsOf([job("Running", "Running", 8), job("Running", "Stalled", 4), job("Failed", "Failed", 64)]);
  assert.deepEqual([totals.gpus, totals.sorts.running, totals.sorts.trouble, totals.sorts.failed], [12, 1, 1, 1]);
  assert.deepEqual(grouped(["b1", "a10", "a9"], (each) => each), [["a9", ["a9"]], ["a10", ["a10"]], ["b1", ["b1"]]]);
});

/** Numbers, times and sizes as text. */

import type { Progress } from "./api";

export const NONE = "–";

/** Writes a value: with at most `digits` significant digits, and in the form that suits `size`. */
export type Form = (value: number | null | undefined, digits?: number, size?: number) => string;

/** Numbers outside these bounds are written with a power of ten: 5e-5. */
const [LEAST, MOST] = [1e-3, 1e9];
/** A float has no more. */
const MOST_DIGITS = 15;

/**
 * A number with at most so many significant digits, but with its whole part in full: 12,345 and 0.05.
 *
 * size: decides whether the number has a power of ten; by default the number itself. On an axis it is the largest.
 * operator/dtj/report/numbers.py has the same rule, and tests/number_texts.json has examples of both.
 */
export const number: Form = (value, digits = 4, size = Math.abs(value ?? 0)) => {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return "0";
  if (size < LEAST || size >= MOST) {
    return value.toLocaleString("en", { notation: "scientific", maximumSignificantDigits: digits }).toLowerCase();
  }
  const whole = `${Math.trunc(Math.abs(value))}`.length;
  return value.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, whole) });
};

/** The texts of an axis: with as many digits as the distance between its ticks needs, all in one form. */
export function ticks(values: number[], apart: number, form: Form = number): string[] {
  const size = Math.max(apart, ...values.map(Math.abs));
  const digits = Math.min(MOST_DIGITS, Math.floor(Math.log10(size / apart)) + 3);
  // A sum of floats may miss zero by the last bit.
  return values.map((value) => form(Math.abs(value) > apart / 1e6 ? value : 0, digits, size));
}

/** The rate of a training: in steps, with their unit, where nobody knows how many examples a step has. */
export function rateOf(progress: Progress | null): string | undefined {
  if (typeof progress?.examplesPerSecond === "number") return number(progress.examplesPerSecond);
  return typeof progress?.stepsPerSecond === "number" ? `${number(progress.stepsPerSecond)} step/s` : undefined;
}

export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days) return `${days}d${hours}h`;
  if (hours) return `${hours}h${minutes}m`;
  if (minutes) return `${minutes}m${whole % 60}s`;
  return `${whole}s`;
}

export function since(time: string | null | undefined, until: number = Date.now()): string {
  return time ? duration((until - Date.parse(time)) / 1000) : NONE;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** size: decides the unit; by default the value itself. */
export function bytes(value: number, digits = 3, size = value): string {
  const unit = Math.min(UNITS.length - 1, Math.max(0, Math.floor(Math.log2(size) / 10)));
  return `${number(value / 1024 ** unit, digits, size / 1024 ** unit)} ${UNITS[unit]}`;
}

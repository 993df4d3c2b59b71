/** Numbers, times and sizes as text. */

export const NONE = "–";

export function number(value: number | null | undefined, digits = 4): string {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  return size >= 1000 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value.toPrecision(digits);
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

export function bytes(size: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = size;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? value.toPrecision(3) : value} ${units[unit]}`;
}

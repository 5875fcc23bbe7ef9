// Numbers, times and sizes as people read them.

export function number(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  return value.toPrecision(size >= 1000 ? 6 : 4);
}

export function bytes(value: number): string {
  let size = value;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (size < 1000) return `${unit === "B" ? size : size.toPrecision(3)} ${unit}`;
    size /= 1000;
  }
  return `${size.toPrecision(3)} TB`;
}

export function duration(seconds: number): string {
  if (!Number.isFinite(seconds) || seconds < 0) return "–";
  if (seconds < 1) return `${seconds.toFixed(2)} s`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A short time, such as that of a training step. */
export function brief(seconds: number): string {
  if (seconds >= 0.9995) return seconds < 100 ? `${Number(seconds.toPrecision(3))} s` : duration(seconds);
  const milliseconds = 1000 * seconds;
  return `${milliseconds >= 10 ? Math.round(milliseconds) : Number(milliseconds.toPrecision(2))} ms`;
}

export function age(seconds: number): string {
  if (seconds < 60) return `${Math.max(0, Math.floor(seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

const pad = (value: number) => String(value).padStart(2, "0");

/** In the reader's own time zone, without depending on a locale. */
export function moment(seconds: number): string {
  const at = new Date(seconds * 1000);
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return `${day} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

export const counted = (count: number, thing: string, plural = `${thing}s`): string =>
  `${number(count)} ${count === 1 ? thing : plural}`;

/** Any value of a configuration in one line. */
export function shown(value: unknown): string {
  if (typeof value === "number")
    return String(value).length <= 9 ? String(value) : String(Number(value.toPrecision(5)));
  if (typeof value === "string") return value;
  if (value === undefined) return "–";
  if (isSecret(value)) return "***";
  return JSON.stringify(value);
}

export const isSecret = (value: unknown): boolean =>
  typeof value === "object" &&
  value !== null &&
  "secret" in value &&
  value.secret === true &&
  Object.keys(value).length === 1;

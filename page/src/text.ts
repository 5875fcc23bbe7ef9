// Text that programs have printed, made fit to be shown.

// Escape sequences for colours and cursors, and control characters other than tab and newline.
const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])/g;
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f\u202a-\u202e\u2066-\u2069]/g;

/** Of a line that was overwritten with carriage returns, as progress bars do, the last version counts. */
const lastVersion = (line: string): string => {
  const end = line.endsWith("\r") ? line.slice(0, -1) : line;
  return end.slice(end.lastIndexOf("\r") + 1);
};

export function plainText(text: string): string {
  const overwritten = text.includes("\r") ? text.split("\n").map(lastVersion).join("\n") : text;
  return overwritten.replace(ESCAPES, "").replace(CONTROLS, "\ufffd");
}

// uPlot formats numbers with navigator.language when it is imported, and dies where that is not a valid tag
// ("en-US@posix" under some locales). This module must be imported before uPlot.
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US", configurable: true });
}
export {};
